#include "megatron/checkpoint/files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"

namespace megatron::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors and its tensors are little-endian");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kAlignment = 64;
constexpr std::size_t kMaxDepth = 16;  // a header needs 3
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 60;

[[noreturn]] void damaged(const std::string& file, std::uint64_t offset, const std::string& got) {
  throw ConfigError(rule_got_fix(concat(file, ": must be a whole safetensors file."), concat(got, " at byte ", offset),
                                 "copy the file again: it is cut off or damaged"));
}

/// The header's JSON.
json header_of(const std::string& text, const std::string& file) {
  try {
    json header = parse_json(text, kMaxDepth);
    if (!header.is_object()) damaged(file, kLengthBytes, "a header that is not a JSON object");
    return header;
  } catch (const JsonError& e) {
    damaged(file, kLengthBytes + e.byte, concat("a header with ", e.what()));
  }
}

/// The list of whole numbers `value[key]`.
std::vector<std::uint64_t> numbers(const json& value, const char* key, const std::string& name,
                                   const std::string& file) {
  const auto list = value.is_object() ? value.find(key) : value.end();
  if (!value.is_object() || list == value.end() || !list->is_array())
    damaged(file, kLengthBytes, concat("tensor \"", name, "\" without the list \"", key, "\""));
  std::vector<std::uint64_t> result;
  for (const json& number : *list) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() > kMaxElements)
      damaged(file, kLengthBytes, concat("tensor \"", name, "\" whose \"", key, "\" holds something other than sizes"));
    result.push_back(number.get<std::uint64_t>());
  }
  return result;
}

/// `key`: the tensor's name.
SafetensorsEntry read_entry(const std::string& key, const json& value, std::uint64_t data_begin,
                            std::uint64_t file_size, const std::string& file) {
  const std::string name = printable(key);
  SafetensorsEntry entry{.name = key, .dtype = {}, .shape = {}};
  for (const std::uint64_t size : numbers(value, "shape", name, file))
    entry.shape.push_back(static_cast<std::int64_t>(size));
  const std::vector<std::uint64_t> offsets = numbers(value, "data_offsets", name, file);
  if (!value.contains("dtype") || !value["dtype"].is_string() || dtype_bytes(value["dtype"]) == 0)
    damaged(file, kLengthBytes, concat("tensor \"", name, "\" without a known dtype"));
  entry.dtype = value["dtype"];
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    damaged(file, kLengthBytes, concat("tensor \"", name, "\" whose data_offsets are not [begin, end]"));
  entry.begin = data_begin + offsets[0];
  entry.end = data_begin + offsets[1];
  if (entry.end > file_size)
    damaged(file, file_size, concat("the end of the file, but tensor \"", name, "\" ends at byte ", entry.end, ":"));
  const std::uint64_t bytes =
      shape_elements(entry.shape, concat(file, ": tensor \"", name, "\"")) * dtype_bytes(entry.dtype);
  if (entry.end - entry.begin != bytes)
    damaged(
        file, entry.begin,
        concat(entry.end - entry.begin, " bytes for tensor \"", name, "\", whose shape and dtype need ", bytes, ","));
  return entry;
}

std::map<std::string, std::string> read_metadata(const json& value, const std::string& file) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) damaged(file, kLengthBytes, "a __metadata__ that is not an object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      damaged(file, kLengthBytes, concat("a __metadata__ whose \"", printable(key), "\" is not a string"));
    metadata[key] = text;
  }
  return metadata;
}

}  // namespace

std::uint64_t dtype_bytes(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL" || dtype == "F8_E4M3" || dtype == "F8_E5M2") return 1;
  return 0;
}

std::uint64_t shape_elements(const std::vector<std::int64_t>& shape, const std::string& where) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements) ||
        elements > kMaxElements)
      throw ConfigError(rule_got_fix(concat(where, " must have a shape of at most 2^60 elements."),
                                     concat("a size of ", size), "copy the file again: it is damaged"));
  }
  return elements;
}

SafetensorsHeader make_safetensors(std::vector<SafetensorsEntry> tensors, std::map<std::string, std::string> metadata,
                                   std::string& text) {
  SafetensorsHeader header{.tensors = std::move(tensors), .metadata = std::move(metadata)};
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) object["__metadata__"] = header.metadata;
  std::uint64_t position = 0;
  for (SafetensorsEntry& entry : header.tensors) {
    entry.begin = position;
    position += shape_elements(entry.shape, entry.name) * dtype_bytes(entry.dtype);
    entry.end = position;
    object[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string body = object.dump();
  body.append((kAlignment - (kLengthBytes + body.size()) % kAlignment) % kAlignment, ' ');
  const std::uint64_t length = body.size();
  text.resize(kLengthBytes);
  std::memcpy(text.data(), &length, kLengthBytes);
  text += body;
  header.data_begin = text.size();
  for (SafetensorsEntry& entry : header.tensors) {
    entry.begin += header.data_begin;
    entry.end += header.data_begin;
  }
  return header;
}

SafetensorsHeader read_safetensors(const ReadAt& read, std::uint64_t file_size, const std::string& file) {
  std::uint64_t length = 0;
  if (file_size < kLengthBytes) damaged(file, file_size, "the end of the file inside the header's length");
  read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kMaxHeaderBytes || length > file_size - kLengthBytes)
    damaged(file, 0, concat("a header length of ", length, " in a file of ", file_size, " bytes"));
  std::string text(length, '\0');
  read(kLengthBytes, std::as_writable_bytes(std::span(text)));

  SafetensorsHeader header{.tensors = {}, .metadata = {}, .data_begin = kLengthBytes + length};
  const json object = header_of(text, file);
  for (const auto& [name, value] : object.items()) {
    if (name == "__metadata__") {
      header.metadata = read_metadata(value, file);
    } else {
      header.tensors.push_back(read_entry(name, value, header.data_begin, file_size, file));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t position = header.data_begin;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.begin != position)
      damaged(file, position, concat("a hole or an overlap before tensor \"", printable(entry.name), "\""));
    position = entry.end;
  }
  if (position != file_size) damaged(file, position, concat(file_size - position, " bytes that belong to no tensor"));
  return header;
}

}  // namespace megatron::checkpoint
