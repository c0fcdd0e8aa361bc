#include <xxhash.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/base/text/utf8.h"
#include "megatron/checkpoint/files/manifest.h"
#include "megatron/checkpoint/files/safetensors.h"

namespace {

/// A manifest whose body was changed gets the body's checksum: else all that follows would go unseen.
std::string with_right_checksum(std::string_view text) {
  using nlohmann::json;
  const json::parser_callback_t limit_depth = [](int depth, json::parse_event_t, json&) {
    if (depth > 16) throw megatron::ConfigError("too deep");  // as the parser of manifests limits it
    return true;
  };
  try {
    json manifest = json::parse(text, limit_depth);
    if (!manifest.is_object() || !manifest.contains("body")) return std::string(text);
    const std::string body = manifest["body"].dump();
    char hash[17];
    std::snprintf(hash, sizeof hash, "%016lx", static_cast<unsigned long>(XXH3_64bits(body.data(), body.size())));
    manifest["xxh3"] = hash;
    return manifest.dump();
  } catch (const json::exception&) {
    return std::string(text);
  } catch (const megatron::ConfigError&) {
    return std::string(text);
  }
}

}  // namespace

// The header of a safetensors file, and the same bytes as a manifest: both come from disks that others write.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  const auto bytes = std::as_bytes(std::span(data, size));
  const checkpoint::ReadAt read = [&](std::uint64_t offset, std::span<std::byte> into) {
    if (offset > bytes.size() || into.size() > bytes.size() - offset) __builtin_trap();  // asked for more than there is
    std::memcpy(into.data(), bytes.data() + offset, into.size());
  };
  try {
    const auto header = checkpoint::read_safetensors(read, size, "input");
    std::uint64_t position = header.data_begin;
    for (const auto& tensor : header.tensors) {  // back to back, to the end of the file
      if (tensor.begin != position || tensor.end > size) __builtin_trap();
      if (tensor.end - tensor.begin !=
          checkpoint::shape_elements(tensor.shape, "input") * checkpoint::dtype_bytes(tensor.dtype))
        __builtin_trap();
      position = tensor.end;
    }
    if (position != size) __builtin_trap();
    std::string text;
    const auto again = checkpoint::make_safetensors(header.tensors, header.metadata, text);
    if (again.tensors.size() != header.tensors.size()) __builtin_trap();
  } catch (const ConfigError&) {
  }
  try {
    const auto manifest =
        checkpoint::parse_manifest(with_right_checksum({reinterpret_cast<const char*>(data), size}), "input");
    for (const auto& [name, tensor] : manifest.tensors)
      for (const auto& slice : tensor.slices)
        if (!checkpoint::inside(slice.box, tensor.shape) || slice.file >= manifest.files.size()) __builtin_trap();
    for (const auto& file : manifest.files)
      if (file.name.find('/') != std::string::npos || file.name.find('\0') != std::string::npos) __builtin_trap();
  } catch (const ConfigError& error) {
    if (!valid_utf8(error.what()) || std::string_view(error.what()).find('\x1b') != std::string_view::npos)
      __builtin_trap();
  }
  return 0;
}
