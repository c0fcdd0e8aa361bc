#include "megatron/checkpoint/files/manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/files/safetensors.h"

namespace megatron::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "megatron-cpp checkpoint";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMaxDepth = 16;                          // a manifest needs 7
constexpr std::int64_t kMaxIteration = std::int64_t{1} << 48;  // a thousand years of steps of 0.1 ms

[[noreturn]] void damaged(const std::string& file, const std::string& got) {
  throw Damage(rule_got_fix(concat(file, ": must be a whole checkpoint manifest."), got, kLoadAnother));
}

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t unhex(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size())
    throw ConfigError("a checksum that is not 16 hexadecimal digits");
  return value;
}

/// The whole number >= 0 `value[key]`.
std::uint64_t number(const json& value, const char* key) {
  const json& field = value.at(key);
  if (!field.is_number_unsigned() || field.get<std::uint64_t>() >> 62 != 0)
    throw ConfigError(concat("a \"", key, "\" that is not a whole number"));
  return field;
}

std::vector<std::int64_t> numbers(const json& value, const char* key) {
  std::vector<std::int64_t> result;
  for (const json& element : value.at(key)) {
    if (!element.is_number_unsigned() || element.get<std::uint64_t>() >> 62 != 0)
      throw ConfigError(concat("a \"", key, "\" that holds no whole number"));
    result.push_back(element);
  }
  return result;
}

FileRecord read_file_record(const json& value) {
  FileRecord record{.name = value.at("name"), .size = number(value, "size"), .block_hashes = {}};
  if (record.name.empty() || record.name[0] == '.' || record.name.find('/') != std::string::npos ||
      record.name.find('\0') != std::string::npos)
    throw ConfigError(concat("a file name \"", printable(record.name), "\" that does not stay in the folder"));
  for (const json& hash : value.at("xxh3")) record.block_hashes.push_back(unhex(hash));
  if (record.block_hashes.size() != record.size / kBlockBytes + (record.size % kBlockBytes != 0))
    throw ConfigError(concat("another number of checksums than ", printable(record.name), " has blocks"));
  return record;
}

/// `key`: the tensor's name.
TensorRecord read_tensor_record(const std::string& key, const json& value, const std::vector<FileRecord>& files) {
  const std::string name = printable(key);
  TensorRecord record{.dtype = value.at("dtype"), .shape = numbers(value, "shape"), .slices = {}};
  const std::uint64_t elements = shape_elements(record.shape, concat("tensor \"", name, "\""));
  const std::uint64_t element_bytes = dtype_bytes(record.dtype);
  if (element_bytes == 0) throw ConfigError(concat("an unknown dtype of \"", name, "\""));
  std::uint64_t covered = 0;
  std::vector<Box> boxes;
  for (const json& slice : value.at("slices")) {
    SliceRecord read{.box = {numbers(slice, "offset"), numbers(slice, "shape")},
                     .file = number(slice, "file"),
                     .begin = number(slice, "begin")};
    if (!inside(read.box, record.shape)) throw ConfigError(concat("a slice outside of \"", name, "\""));
    const std::uint64_t bytes = static_cast<std::uint64_t>(read.box.elements()) * element_bytes;
    if (read.file >= files.size() || read.begin > files[read.file].size || bytes > files[read.file].size - read.begin)
      throw ConfigError(concat("a slice of \"", name, "\" that lies outside of its file"));
    covered += static_cast<std::uint64_t>(read.box.elements());
    boxes.push_back(read.box);
    record.slices.push_back(std::move(read));
  }
  if (any_overlap(boxes)) throw ConfigError(concat("slices of \"", name, "\" that overlap"));
  if (covered != elements) throw ConfigError(concat("slices that leave a part of \"", name, "\" out"));
  return record;
}

/// Bytes of a file belong to one slice: two of the same bytes were never saved, and one of them would be read as the
/// other's numbers.
void check_apart(const Manifest& manifest) {
  struct Range {
    std::uint64_t begin, end;
    const std::string* name;
  };
  std::vector<std::vector<Range>> of_file(manifest.files.size());
  for (const auto& [name, tensor] : manifest.tensors)
    for (const SliceRecord& slice : tensor.slices) {
      const std::uint64_t bytes = static_cast<std::uint64_t>(slice.box.elements()) * dtype_bytes(tensor.dtype);
      if (bytes > 0) of_file[slice.file].push_back({slice.begin, slice.begin + bytes, &name});
    }
  for (std::vector<Range>& ranges : of_file) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < ranges.size(); ++i)
      if (ranges[i].begin < ranges[i - 1].end)
        throw ConfigError(concat("\"", printable(*ranges[i - 1].name), "\" and \"", printable(*ranges[i].name),
                                 "\" in the same bytes of a file"));
  }
}

Manifest read_body(const json& body) {
  Manifest manifest{.iteration = static_cast<std::int64_t>(number(body, "iteration")),
                    .metadata = body.at("metadata"),
                    .files = {},
                    .tensors = {}};
  for (const json& file : body.at("files")) manifest.files.push_back(read_file_record(file));
  for (const auto& [name, value] : body.at("tensors").items())
    manifest.tensors[name] = read_tensor_record(name, value, manifest.files);
  if (manifest.iteration > kMaxIteration)
    throw ConfigError(concat("iteration ", manifest.iteration, ", which no run reaches"));
  check_apart(manifest);
  return manifest;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  json body = {{"iteration", manifest.iteration},
               {"metadata", manifest.metadata},
               {"files", json::array()},
               {"tensors", json::object()}};
  for (const FileRecord& file : manifest.files) {
    json hashes = json::array();
    for (const std::uint64_t hash : file.block_hashes) hashes.push_back(hex(hash));
    body["files"].push_back({{"name", file.name}, {"size", file.size}, {"xxh3", hashes}});
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    json slices = json::array();
    for (const SliceRecord& slice : tensor.slices)
      slices.push_back(
          {{"offset", slice.box.offset}, {"shape", slice.box.shape}, {"file", slice.file}, {"begin", slice.begin}});
    body["tensors"][name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"slices", slices}};
  }
  const std::string text = body.dump();
  const json manifest_json = {
      {"format", kFormat}, {"version", kVersion}, {"xxh3", hex(XXH3_64bits(text.data(), text.size()))}, {"body", body}};
  return manifest_json.dump() + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& file) {
  if (text.size() > kMaxManifestBytes) damaged(file, concat("more than ", kMaxManifestBytes, " bytes"));
  try {
    const json manifest = parse_json(text, kMaxDepth);
    if (!manifest.is_object() || manifest.value("format", "") != kFormat) damaged(file, "JSON that is no manifest");
    const std::uint64_t version = number(manifest, "version");
    if (version < kVersion) damaged(file, concat("version ", version, ", which there never was"));
    if (version > kVersion)
      throw NewerVersion(rule_got_fix(concat(file, ": this program reads version ", kVersion, " of checkpoints."),
                                      concat("version ", version), "load it with the newer megatron that wrote it"));
    const std::string body = manifest.at("body").dump();
    if (unhex(manifest.at("xxh3")) != XXH3_64bits(body.data(), body.size()))
      damaged(file, "a body that does not match its checksum");
    try {
      return read_body(manifest["body"]);
    } catch (const ConfigError& e) {
      damaged(file, e.what());
    }
  } catch (const JsonError& e) {
    damaged(file, e.what());
  } catch (const json::exception& e) {
    damaged(file, concat("a field that is missing or of another type (", printable(e.what()), ")"));
  }
}

}  // namespace megatron::checkpoint
