// Any bytes are either a config.json whose model has a table of weights, or a ConfigError; the same for the index of
// shards. What was read is written and read again as the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/interchange/hugging_face/hf_config.h"
#include "megatron/interchange/hugging_face/hf_family.h"
#include "megatron/interchange/hugging_face/safetensors_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  using namespace megatron::interchange;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const FolderConfig config = parse_config(text, "input");
    const plan::ModelShape shape = shape_of(config.model);
    if (shape.num_layers * shape.groups() <= 1024) {
      const Mapping mapping = config.family->written_table(shape, [](const std::string&) { return true; });
      if (inverted(mapping).size() != source_shapes(mapping).size()) std::abort();
    }
    const std::string written = config_json(config, "float32");
    if (config_json(parse_config(written, "written"), "float32") != written) std::abort();
  } catch (const ConfigError&) {
  }
  try {
    for (const auto& [tensor, file] : parse_index(text, "input"))
      if (file.find('/') != std::string::npos) std::abort();
  } catch (const ConfigError&) {
  }
  return 0;
}
