#include "megatron/base/files/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/text/utf8.h"

namespace megatron {
namespace {

constexpr std::string_view kGgufMagic = "GGUF";
constexpr std::uint32_t kMaxGgufDimensions = 4;
constexpr std::uint64_t kMaxGgufElements = std::uint64_t{1} << 60, kMaxGgufAlignment = std::uint64_t{1} << 20;

/// GGUFValueType.
enum class GgufKind : std::uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, Text, List, U64, I64, F64 };

std::string quoted_name(std::string_view text) { return concat("\"", printable(text.substr(0, 80)), "\""); }

/// The bytes from the front, each read checked.
class GgufBytes {
 public:
  GgufBytes(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  [[noreturn]] void refuse(const std::string& rule, const std::string& got) const {
    throw ConfigError(rule_got_fix(concat(name_, " byte ", at_, ": ", rule), got));
  }
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size() - at_)
      refuse("a GGUF file must hold what it says.", concat("it ends before ", size, " bytes"));
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view text() {
    const std::string_view text = take(number<std::uint64_t>());
    if (!valid_utf8(text)) refuse("texts must be UTF-8.", quoted_name(text));
    return text;
  }
  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return bytes_.size() - at_; }

 private:
  std::string_view bytes_;
  const std::string& name_;
  std::uint64_t at_ = 0;
};

template <class T>
std::int64_t gguf_whole(GgufBytes& bytes) {
  const T value = bytes.number<T>();
  if constexpr (std::is_same_v<T, std::uint64_t>)
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      bytes.refuse("a number must be below 2^63.", concat(value));
  return static_cast<std::int64_t>(value);
}

bool gguf_bool(GgufBytes& bytes) {
  const auto value = bytes.number<std::uint8_t>();
  if (value > 1) bytes.refuse("a bool must be 0 or 1.", concat(static_cast<int>(value)));
  return value == 1;
}

/// `count` values; each takes at least a byte of the file, so that what a list takes in memory is bounded by it.
template <class Read>
auto gguf_list(GgufBytes& bytes, std::uint64_t count, const Read& read) {
  if (count > bytes.left()) bytes.refuse("a list must lie in the file.", concat(count, " values"));
  std::vector<std::decay_t<decltype(read())>> values;
  for (std::uint64_t i = 0; i < count; ++i) values.push_back(read());
  return values;
}

GgufValue read_gguf_list(GgufBytes& bytes) {
  const auto kind = static_cast<GgufKind>(bytes.number<std::uint32_t>());
  const auto count = bytes.number<std::uint64_t>();
  const auto whole = [&]<class T>(T) -> GgufValue {
    return gguf_list(bytes, count, [&] { return gguf_whole<T>(bytes); });
  };
  switch (kind) {
    case GgufKind::U8:
      return whole(std::uint8_t());
    case GgufKind::I8:
      return whole(std::int8_t());
    case GgufKind::U16:
      return whole(std::uint16_t());
    case GgufKind::I16:
      return whole(std::int16_t());
    case GgufKind::U32:
      return whole(std::uint32_t());
    case GgufKind::I32:
      return whole(std::int32_t());
    case GgufKind::U64:
      return whole(std::uint64_t());
    case GgufKind::I64:
      return whole(std::int64_t());
    case GgufKind::Bool:
      return gguf_list(bytes, count, [&] { return std::int64_t{gguf_bool(bytes)}; });
    case GgufKind::F32:
      return gguf_list(bytes, count, [&] { return static_cast<double>(bytes.number<float>()); });
    case GgufKind::F64:
      return gguf_list(bytes, count, [&] { return bytes.number<double>(); });
    case GgufKind::Text:
      return gguf_list(bytes, count, [&] { return bytes.text(); });
    case GgufKind::List:
      break;
  }
  bytes.refuse("a list must be of numbers or texts.", concat("type ", static_cast<std::uint32_t>(kind)));
}

GgufValue read_gguf_value(GgufBytes& bytes) {
  const auto kind = static_cast<GgufKind>(bytes.number<std::uint32_t>());
  switch (kind) {
    case GgufKind::U8:
      return gguf_whole<std::uint8_t>(bytes);
    case GgufKind::I8:
      return gguf_whole<std::int8_t>(bytes);
    case GgufKind::U16:
      return gguf_whole<std::uint16_t>(bytes);
    case GgufKind::I16:
      return gguf_whole<std::int16_t>(bytes);
    case GgufKind::U32:
      return gguf_whole<std::uint32_t>(bytes);
    case GgufKind::I32:
      return gguf_whole<std::int32_t>(bytes);
    case GgufKind::U64:
      return gguf_whole<std::uint64_t>(bytes);
    case GgufKind::I64:
      return gguf_whole<std::int64_t>(bytes);
    case GgufKind::F32:
      return static_cast<double>(bytes.number<float>());
    case GgufKind::F64:
      return bytes.number<double>();
    case GgufKind::Bool:
      return gguf_bool(bytes);
    case GgufKind::Text:
      return bytes.text();
    case GgufKind::List:
      return read_gguf_list(bytes);
  }
  bytes.refuse("an entry must be of a type that GGUF has.", concat("type ", static_cast<std::uint32_t>(kind)));
}

/// All but the place in the file: `begin` is counted from where the data begins.
GgufTensor read_gguf_tensor(GgufBytes& bytes) {
  GgufTensor tensor;
  tensor.name = bytes.text();
  const auto dimensions = bytes.number<std::uint32_t>();
  if (dimensions < 1 || dimensions > kMaxGgufDimensions)
    bytes.refuse(concat("a tensor must have 1 to ", kMaxGgufDimensions, " dimensions."),
                 concat(quoted_name(tensor.name), ": ", dimensions));
  std::uint64_t elements = 1;
  for (std::uint32_t d = 0; d < dimensions; ++d) {
    const auto size = bytes.number<std::uint64_t>();
    if (size < 1 || size > kMaxGgufElements / elements)
      bytes.refuse("a tensor's sizes must be 1 or above, and at most 2^60 numbers.", quoted_name(tensor.name));
    elements *= size;
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  const auto type = bytes.number<std::uint32_t>();
  tensor.type = static_cast<GgufType>(type);
  const GgufBlock block = gguf_block(tensor.type);
  if (block.bytes == 0)
    throw ConfigError(rule_got_fix(
        concat(printable(tensor.name),
               ": tensors of GGUF files are read as F32, F16, BF16, Q8_0, Q6_K, or Q4 or Q5 with _0, _1 or _K."),
        concat("type ", type, " of ggml"), "take a file of one of these: convert_hf_to_gguf.py --outtype q8_0"));
  if (tensor.shape.back() % block.numbers != 0)
    bytes.refuse(concat("rows of this type must be whole blocks of ", block.numbers, "."), quoted_name(tensor.name));
  tensor.bytes = elements / static_cast<std::uint64_t>(block.numbers) * static_cast<std::uint64_t>(block.bytes);
  tensor.begin = bytes.number<std::uint64_t>();
  return tensor;
}

}  // namespace

GgufBlock gguf_block(GgufType type) {
  switch (type) {
    case GgufType::F32:
      return {1, 4};
    case GgufType::F16:
    case GgufType::BF16:
      return {1, 2};
    case GgufType::Q4_0:
      return {32, 18};
    case GgufType::Q4_1:
      return {32, 20};
    case GgufType::Q5_0:
      return {32, 22};
    case GgufType::Q5_1:
      return {32, 24};
    case GgufType::Q8_0:
      return {32, 34};
    case GgufType::Q4_K:
      return {256, 144};
    case GgufType::Q5_K:
      return {256, 176};
    case GgufType::Q6_K:
      return {256, 210};
  }
  return {1, 0};
}

Gguf::Gguf(std::string_view all, std::string name) : name_(std::move(name)) {
  GgufBytes bytes(all, name_);
  if (bytes.left() < kGgufMagic.size() || bytes.take(kGgufMagic.size()) != kGgufMagic)
    bytes.refuse("a GGUF file must begin with GGUF.", "something else");
  const auto version = bytes.number<std::uint32_t>();
  if (version != 2 && version != 3)
    bytes.refuse("GGUF is read in versions 2 and 3, little-endian.", concat("version ", version));
  const auto tensors = bytes.number<std::uint64_t>(), entries = bytes.number<std::uint64_t>();
  for (std::uint64_t i = 0; i < entries; ++i) {
    const std::string_view key = bytes.text();
    if (!entries_.emplace(key, read_gguf_value(bytes)).second) bytes.refuse("no key may come twice.", quoted_name(key));
  }
  std::uint64_t alignment = 32;
  if (const auto* given = find<std::int64_t>("general.alignment")) {
    alignment = static_cast<std::uint64_t>(*given);
    if (*given < 1 || alignment > kMaxGgufAlignment || (alignment & (alignment - 1)) != 0)
      bytes.refuse("general.alignment must be a power of two, at most 2^20.", concat(*given));
  }
  std::set<std::string_view> names;
  for (std::uint64_t i = 0; i < tensors; ++i) tensors_.push_back(read_gguf_tensor(bytes));
  const std::uint64_t data = (bytes.at() + alignment - 1) / alignment * alignment;
  for (GgufTensor& tensor : tensors_) {
    if (!names.insert(tensor.name).second) bytes.refuse("no tensor may come twice.", quoted_name(tensor.name));
    if (tensor.begin % alignment != 0 || data > all.size() || tensor.begin > all.size() - data ||
        tensor.bytes > all.size() - data - tensor.begin)
      bytes.refuse(concat("each tensor must lie in the file, at a multiple of ", alignment, "."),
                   quoted_name(tensor.name));
    tensor.begin += data;
  }
}

void Gguf::refuse_kind(std::string_view key) const {
  throw ConfigError(
      rule_got_fix(concat(name_, ": ", printable(key), " must be of the kind that GGUF gives it."), "another"));
}

bool is_gguf(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::ifstream file(path, std::ios::binary);
  char begin[4] = {};
  return file.read(begin, sizeof begin) && std::string_view(begin, sizeof begin) == kGgufMagic;
}

}  // namespace megatron
