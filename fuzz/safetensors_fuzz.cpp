#include <cstdint>
#include <cstring>
#include <span>

#include "megatron/base/error.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/safetensors.h"

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
    const auto manifest = checkpoint::parse_manifest({reinterpret_cast<const char*>(data), size}, "input");
    for (const auto& [name, tensor] : manifest.tensors)
      for (const auto& slice : tensor.slices)
        if (!checkpoint::inside(slice.box, tensor.shape) || slice.file >= manifest.files.size()) __builtin_trap();
  } catch (const ConfigError&) {
  }
  return 0;
}
