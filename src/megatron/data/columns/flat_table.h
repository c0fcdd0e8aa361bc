#pragma once
#include <concepts>
#include <cstring>
#include <optional>
#include <string_view>

#include "megatron/data/columns/rows.h"

namespace megatron::data {

/// A table of a flatbuffer, of which nothing is believed: each access checks that what it reads lies in the buffer.
/// Fields go by the number that they have in the format's schema.
class FlatTable {
 public:
  /// The root of the buffer `part` of the file, which stands there at byte `offset`.
  FlatTable(const ColumnFile& file, std::uint64_t offset, std::span<const std::byte> part)
      : FlatTable(file, offset, part, part.size() < 4 ? ~std::uint64_t{0} : read<std::uint32_t>(part.data())) {}

  template <class T>
  T number(int field, T if_absent) const {
    const std::uint64_t at = place(field, sizeof(T));
    return at == 0 ? if_absent : read<T>(part_.data() + at);
  }
  bool has(int field) const { return place(field, 1) != 0; }

  std::optional<FlatTable> table(int field) const {
    const std::uint64_t at = place(field, 4);
    if (at == 0) return std::nullopt;
    return FlatTable(file_, offset_, part_, target(at));
  }
  std::string_view string(int field) const {
    const std::span<const std::byte> bytes = vector(field, 1);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  /// The bytes of a vector of elements of `width` bytes; empty where it is absent.
  std::span<const std::byte> vector(int field, std::uint64_t width) const {
    const std::uint64_t at = place(field, 4);
    if (at == 0) return {};
    const std::uint64_t begin = target(at);
    need(begin, 4);
    const std::uint64_t count = read<std::uint32_t>(part_.data() + begin);
    need(begin + 4, count * width);  // of 2^32 and small numbers
    return part_.subspan(static_cast<std::size_t>(begin + 4), static_cast<std::size_t>(count * width));
  }
  std::size_t tables(int field) const { return vector(field, 4).size() / 4; }
  FlatTable table_of(int field, std::size_t index) const {
    const std::span<const std::byte> offsets = vector(field, 4);
    const auto at = static_cast<std::uint64_t>(offsets.data() - part_.data()) + index * 4;
    return FlatTable(file_, offset_, part_, target(at));
  }

  template <class T>
  static T read(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

 private:
  FlatTable(const ColumnFile& file, std::uint64_t offset, std::span<const std::byte> part, std::uint64_t at)
      : file_(file), offset_(offset), part_(part), at_(at) {
    need(at_, 4);
    const std::int64_t table = static_cast<std::int64_t>(at_) - read<std::int32_t>(part_.data() + at_);
    if (table < 0) wrong();
    fields_ = static_cast<std::uint64_t>(table);
    need(fields_, 4);
    fields_bytes_ = read<std::uint16_t>(part_.data() + fields_);
    need(fields_, fields_bytes_);
  }

  /// Where a field of `size` bytes stands; 0 where it is absent.
  std::uint64_t place(int field, std::uint64_t size) const {
    const std::uint64_t entry = 4 + 2 * static_cast<std::uint64_t>(field);
    if (entry + 2 > fields_bytes_) return 0;
    const std::uint64_t relative = read<std::uint16_t>(part_.data() + fields_ + entry);
    if (relative == 0) return 0;
    need(at_ + relative, size);
    return at_ + relative;
  }
  std::uint64_t target(std::uint64_t at) const { return at + read<std::uint32_t>(part_.data() + at); }
  void need(std::uint64_t at, std::uint64_t size) const {
    if (at > part_.size() || size > part_.size() - at) wrong();
  }
  [[noreturn]] void wrong() const {
    file_.damaged(offset_, "the head of a message must be a flatbuffer.", "a place outside of it");
  }

  const ColumnFile& file_;
  std::uint64_t offset_;  // of part_ in the file
  std::span<const std::byte> part_;
  std::uint64_t at_, fields_ = 0, fields_bytes_ = 0;
};

}  // namespace megatron::data
