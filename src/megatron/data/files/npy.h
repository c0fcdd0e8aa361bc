#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"

// numpy's .npy files of integers, one or two dimensions, C order, as numpy.save writes them.
namespace megatron::data {

enum class NpyType : std::uint8_t { I16, I32, I64, U32 };

std::size_t npy_item_size(NpyType type);

/// A .npy file, mapped. The header is checked against the file size; a wrong byte is a ConfigError naming file and
/// offset.
class NpyArray {
 public:
  explicit NpyArray(const std::string& path);
  /// An array over bytes that the caller keeps alive.
  NpyArray(std::span<const std::byte> bytes, const std::string& name);

  NpyType type() const { return type_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t size() const { return size_; }
  /// The element at a flat position; throws std::logic_error outside [0, size()).
  std::int64_t operator[](std::int64_t i) const;
  /// Where that element lies in the file, for messages.
  std::string place_of(std::int64_t i) const;

 private:
  void parse();
  std::string name_;
  std::optional<MappedFile> file_;
  std::span<const std::byte> bytes_, data_;
  NpyType type_ = NpyType::I32;
  std::vector<std::int64_t> shape_;
  std::int64_t size_ = 0;
};

/// A new .npy file of a known shape, filled in place through a mapping: the array lives in the page cache and not in
/// the program's memory. It gets its name in publish(). Disk is allocated first, so a full disk is a
/// std::runtime_error.
class NpyWriter {
 public:
  NpyWriter(const std::string& path, NpyType type, const std::vector<std::int64_t>& shape);
  ~NpyWriter();
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;

  /// The elements, zero at first. `T` must have the size of the type.
  template <class T>
  std::span<T> values() {
    if (sizeof(T) != npy_item_size(type_)) throw std::logic_error("NpyWriter: an element of another size");
    return {reinterpret_cast<T*>(mapped_.data() + header_bytes_), static_cast<std::size_t>(size_)};
  }
  void publish();

 private:
  AtomicFile file_;
  NpyType type_;
  std::size_t header_bytes_ = 0;
  std::int64_t size_ = 1;
  std::span<std::byte> mapped_;
};

}  // namespace megatron::data
