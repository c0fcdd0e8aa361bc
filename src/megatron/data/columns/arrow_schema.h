#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/data/columns/flat_table.h"

namespace megatron::data {

/// What the values of an Arrow array are. Left: of a type that no line shows, read past with its `buffers`.
enum class ArrowKind : std::uint8_t { Left, Bool, Int, Float, String, Bytes, View, List, FixedList, Struct, Map };

struct ArrowField {
  struct Dictionary {
    std::int64_t id;
    int index_width;
  };
  std::string name;
  ArrowKind kind = ArrowKind::Left;
  int buffers = 0;        ///< before those of its children
  bool variadic = false;  ///< more buffers, whose number each batch says
  int width = 0;          ///< bytes of a number, or of an offset
  bool is_signed = true;
  bool is_bytes = false;  ///< of a View
  std::int64_t list_size = 0;
  std::vector<ArrowField> children = {};
  std::optional<Dictionary> dictionary = std::nullopt;  ///< then an array of the field holds indices into it

  bool is_shown() const { return kind != ArrowKind::Left; }
};

/// The columns that the schema message `schema` tells of. Throws ConfigError where it is damaged, or big-endian.
std::vector<ArrowField> read_arrow_schema(const FlatTable& schema, const ColumnFile& file);

}  // namespace megatron::data
