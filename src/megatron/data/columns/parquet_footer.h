#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/data/columns/unpack.h"

namespace megatron::data {

/// Physical types, by parquet's numbers.
struct Physical {
  enum : int { Boolean, Int32, Int64, Int96, Float, Double, ByteArray, Fixed };
};

/// How values of a leaf become JSON.
enum class ParquetKind : std::uint8_t { Group, Bool, Int32, Int64, Float, Double, String, Bytes };

/// A node of a parquet schema, without those of types that no line shows.
struct ParquetNode {
  std::string name;
  ParquetKind kind = ParquetKind::Group;
  bool is_signed = true;
  bool is_optional = false, is_repeated = false;
  bool is_list = false;                       ///< a list's or map's group, of one repeated node
  bool is_wrapper = false;                    ///< a group of one child, also where that is not shown
  int definition = 0;                         ///< the level from which on it is there
  int repetition = 0;                         ///< of a repeated node: the level at which its next element comes
  std::size_t first_leaf = 0, last_leaf = 0;  ///< which shown leaves are below it: [first, last)
  std::vector<ParquetNode> children = {};
};

struct ParquetLeaf {
  std::size_t column = 0;  ///< of a row group
  ParquetKind kind = ParquetKind::Group;
  bool is_signed = true;
  int physical = 0;  ///< parquet's number of its physical type
  int max_definition = 0, max_repetition = 0;
};

/// Where the pages of a leaf are in one row group.
struct ParquetChunk {
  std::uint64_t begin = 0, size = 0;
  std::int64_t values = 0;
  Codec codec = Codec::None;
};

struct ParquetFooter {
  struct RowGroup {
    std::int64_t rows = 0;
    std::vector<ParquetChunk> chunks;  ///< one a leaf
  };
  ParquetNode root;
  std::vector<ParquetLeaf> leaves;
  std::vector<RowGroup> groups;
};

/// Throws ConfigError where the footer is damaged, or nothing of the file can be shown.
ParquetFooter read_parquet_footer(const ColumnFile& file);

}  // namespace megatron::data
