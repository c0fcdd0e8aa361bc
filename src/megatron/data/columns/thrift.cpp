#include "megatron/data/columns/thrift.h"

namespace megatron::data {

void ThriftReader::wrong(const char* rule) const { file_.damaged(offset_ + at_, rule, "other bytes"); }

std::uint8_t ThriftReader::byte() {
  if (at_ >= part_.size()) wrong("a head must be whole.");
  return std::to_integer<std::uint8_t>(part_[static_cast<std::size_t>(at_++)]);
}

std::uint64_t ThriftReader::varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const std::uint64_t next = byte();
    value |= (next & 127) << shift;
    if (next < 128) return value;
  }
  wrong("a number must have at most 64 bits.");
}

std::int64_t ThriftReader::whole() {
  const std::uint64_t value = varint();
  return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

std::string_view ThriftReader::binary() {
  const std::uint64_t size = varint();
  if (size > part_.size() - at_) wrong("a string must lie in its head.");
  const std::string_view text(reinterpret_cast<const char*>(part_.data()) + at_, static_cast<std::size_t>(size));
  at_ += size;
  return text;
}

ThriftReader::Type ThriftReader::next_field(int& number) {
  const std::uint8_t head = byte();
  if (head == 0) return Stop;
  if ((head & 15) == 0 || (head & 15) > Uuid) wrong("a field must have a type.");
  number = (head >> 4) != 0 ? number + (head >> 4) : static_cast<int>(static_cast<std::int16_t>(whole()));
  return static_cast<Type>(head & 15);
}

std::pair<std::uint64_t, ThriftReader::Type> ThriftReader::list_head() {
  const std::uint8_t head = byte();
  const std::uint64_t count = (head >> 4) == 15 ? varint() : static_cast<std::uint64_t>(head >> 4);
  if ((head & 15) == 0 || (head & 15) > Uuid) wrong("a list must have a type.");
  if (count > part_.size() - at_) wrong("a list must lie in its head.");  // each element has a byte at least
  return {count, static_cast<Type>(head & 15)};
}

void ThriftReader::skip(Type type) {
  switch (type) {
    case Stop:
    case True:
    case False:
      return;
    case Byte:
      byte();
      return;
    case I16:
    case I32:
    case I64:
      varint();
      return;
    case Double:
      for (int i = 0; i < 8; ++i) byte();
      return;
    case Uuid:
      for (int i = 0; i < 16; ++i) byte();
      return;
    case Binary:
      binary();
      return;
    case List:
    case Set:
      return read_list([this](Type element) { element == True || element == False ? void(byte()) : skip(element); });
    case Map: {
      const Deeper deeper{*this};
      const std::uint64_t count = varint();
      if (count == 0) return;
      if (count > part_.size() - at_) wrong("a map must lie in its head.");
      const std::uint8_t types = byte();
      for (std::uint64_t i = 0; i < 2 * count; ++i) {
        const auto each = static_cast<Type>(i % 2 == 0 ? types >> 4 : types & 15);
        if (each == Stop || each > Uuid) wrong("a map must have types.");
        each == True || each == False ? void(byte()) : skip(each);
      }
      return;
    }
    case Struct:
      return read_struct([](int, Type) { return false; });
  }
}

}  // namespace megatron::data
