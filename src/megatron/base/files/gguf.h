#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// GGUF, llama.cpp's one file of a model with its tokenizer, as data: versions 2 and 3, little-endian.
//
//   "GGUF", u32 version, u64 tensors, u64 entries
//   entries   key, type, value            strings are u64 bytes and then they
//   tensors   name, u32 dimensions, u64 sizes (columns first), u32 type, u64 offset within the data
//   data      each tensor from a multiple of general.alignment (32) bytes on
namespace megatron {

/// GGMLQuantizationType, of those that are read here.
enum class GgufType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30
};

/// Numbers of a row that have one piece of `bytes` in the file.
struct GgufBlock {
  std::int64_t numbers, bytes;
};
GgufBlock gguf_block(GgufType type);

/// The value of an entry: whole numbers and lists of them are int64, others double. Texts are views of the bytes.
using GgufValue = std::variant<std::int64_t, double, bool, std::string_view, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string_view>>;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::F32;
  std::vector<std::int64_t> shape;     ///< rows first; the last is whole blocks
  std::uint64_t begin = 0, bytes = 0;  ///< in the file
};

/// What stands before the data, checked: each tensor lies in the file, names and keys come once, numbers are numbers.
class Gguf {
 public:
  /// `bytes`: the file, which messages call `name`; it must outlive this. Throws ConfigError for what is damaged, or
  /// has a version or a type of tensor that is not read here.
  Gguf(std::string_view bytes, std::string name);

  const std::string& name() const { return name_; }
  const std::map<std::string, GgufValue, std::less<>>& entries() const { return entries_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  /// The value of `key`; null where there is none. Throws ConfigError naming it where it is of another kind.
  template <class T>
  const T* find(std::string_view key) const {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    if (const T* value = std::get_if<T>(&found->second)) return value;
    refuse_kind(key);
  }

 private:
  [[noreturn]] void refuse_kind(std::string_view key) const;

  std::string name_;
  std::map<std::string, GgufValue, std::less<>> entries_;
  std::vector<GgufTensor> tensors_;
};

/// Whether `path` is a file that begins as GGUF does.
bool is_gguf(const std::filesystem::path& path);

}  // namespace megatron
