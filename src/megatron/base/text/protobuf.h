#pragma once
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megatron {

/// Writes the fields of one message of a protocol buffer, one after the other.
class ProtobufMessage {
 public:
  ProtobufMessage& integer(std::uint32_t field, std::uint64_t value) {
    varint(std::uint64_t{field} << 3);
    varint(value);
    return *this;
  }
  ProtobufMessage& real(std::uint32_t field, double value) {
    varint((std::uint64_t{field} << 3) | 1);
    fixed(std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }
  ProtobufMessage& single(std::uint32_t field, float value) {
    varint((std::uint64_t{field} << 3) | 5);
    fixed(std::bit_cast<std::uint32_t>(value), 4);
    return *this;
  }
  /// A string, bytes, or a message.
  ProtobufMessage& bytes(std::uint32_t field, std::string_view value) {
    varint((std::uint64_t{field} << 3) | 2);
    varint(value.size());
    encoded_ += value;
    return *this;
  }
  const std::string& encoded() const { return encoded_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) encoded_ += static_cast<char>((value & 0x7F) | 0x80);
    encoded_ += static_cast<char>(value);
  }
  void fixed(std::uint64_t value, int size) {
    for (int byte = 0; byte < size; ++byte) encoded_ += static_cast<char>(value >> (8 * byte) & 0xFF);
  }

  std::string encoded_;
};

/// Reads a message whose order of fields is known, from the front: each call takes what it names, or nothing and says
/// so. The bytes may be damaged.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : bytes_(bytes) {}

  /// Whether a field follows of this number and wire type: 0 integer, 1 eight bytes, 2 bytes, 5 four bytes.
  bool key(std::uint32_t field, std::uint32_t type) {
    ProtobufReader ahead = *this;
    if (ahead.integer() != (std::uint64_t{field} << 3 | type)) return false;
    *this = ahead;
    return true;
  }
  std::optional<std::uint64_t> integer() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = take(1);
      if (!byte) return std::nullopt;
      value |= (static_cast<std::uint64_t>((*byte)[0]) & 0x7F) << shift;
      if ((static_cast<unsigned char>((*byte)[0]) & 0x80) == 0) return value;
    }
    return std::nullopt;
  }
  std::optional<std::string_view> take(std::uint64_t size) {
    if (size > bytes_.size()) return std::nullopt;
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  /// The value of a field of bytes whose key was taken.
  std::optional<std::string_view> bytes() {
    const auto size = integer();
    return size ? take(*size) : std::nullopt;
  }

 private:
  std::string_view bytes_;
};

}  // namespace megatron
