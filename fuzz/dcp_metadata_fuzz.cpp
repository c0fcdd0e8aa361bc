// Any bytes are either an index whose tensors are covered once by parts that lie in them, in files of plain names, or a
// ConfigError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "megatron/base/error.h"
#include "megatron/checkpoint/files/safetensors.h"
#include "megatron/interchange/megatron_lm/dist/dcp_metadata.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  using namespace megatron::interchange;
  const auto check = [](const DcpPlace& place) {
    if (place.file.empty() || place.file.front() == '.' || place.file.find('/') != std::string::npos) std::abort();
  };
  try {
    const DcpMetadata metadata = read_dcp_metadata(std::as_bytes(std::span(data, size)), "input");
    for (const auto& [name, tensor] : metadata.tensors) {
      std::uint64_t covered = 0;
      for (const DcpChunk& chunk : tensor.chunks) {
        check(chunk.place);
        covered += checkpoint::shape_elements(chunk.box.shape, name);
        if (!checkpoint::inside(chunk.box, tensor.shape)) std::abort();
      }
      if (covered != checkpoint::shape_elements(tensor.shape, name)) std::abort();
    }
    for (const auto& [name, place] : metadata.objects) check(place);
  } catch (const ConfigError&) {
  }
  return 0;
}
