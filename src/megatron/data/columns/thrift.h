#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "megatron/data/columns/rows.h"

namespace megatron::data {

/// Reads Thrift's compact protocol, in which parquet's heads are written. What is nested deeper than kMaxNesting, or
/// does not end, is a ConfigError that names file and byte.
class ThriftReader {
 public:
  enum Type : std::uint8_t { Stop, True, False, Byte, I16, I32, I64, Double, Binary, List, Set, Map, Struct, Uuid };

  /// `part` stands at byte `offset` of the file.
  ThriftReader(const ColumnFile& file, std::uint64_t offset, std::span<const std::byte> part)
      : file_(file), offset_(offset), part_(part) {}

  /// Calls field(number, type) for each field of a struct; where that returns false, the value is skipped.
  template <class Field>
  void read_struct(Field&& field) {
    const Deeper deeper{*this};
    int number = 0;
    while (const Type type = next_field(number))
      if (!field(number, type)) skip(type);
  }
  /// Calls element(type) for each element of a list, which has to read it.
  template <class Element>
  void read_list(Element&& element) {
    const Deeper deeper{*this};
    const auto [count, type] = list_head();
    for (std::uint64_t i = 0; i < count; ++i) element(type);
  }
  /// Whether a value of `type` is one of the type that is wanted: throws where it is not.
  void need(Type type, Type wanted) const {
    if (type != wanted) wrong("a field must have the type that the format gives it.");
  }
  std::int64_t whole();  ///< of I16, I32, I64
  std::string_view binary();
  void skip(Type type);

  /// Bytes read so far.
  std::uint64_t taken() const { return at_; }

 private:
  struct Deeper {
    explicit Deeper(ThriftReader& reader) : depth(reader.depth_) {
      if (++depth > kMaxNesting) reader.wrong("heads may be nested 32 deep.");
    }
    ~Deeper() { --depth; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    int& depth;
  };

  [[noreturn]] void wrong(const char* rule) const;
  std::uint8_t byte();
  std::uint64_t varint();
  Type next_field(int& number);
  std::pair<std::uint64_t, Type> list_head();

  const ColumnFile& file_;
  std::uint64_t offset_, at_ = 0;
  std::span<const std::byte> part_;
  int depth_ = 0;
};

}  // namespace megatron::data
