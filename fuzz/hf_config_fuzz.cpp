// Any bytes are either a config.json whose model has a table of weights, or a ConfigError; the same for the index of
// shards. What was read is written and read again as the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/families/hf_config.h"
#include "megatron/families/hf_family.h"
#include "megatron/interchange/hugging_face/safetensors_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  using namespace megatron::interchange;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const families::FolderConfig config = families::parse_config(text, "input");
    const plan::ModelShape shape = families::shape_of(config.model);
    if (shape.num_layers * shape.groups() <= 1024) {
      const families::Mapping mapping = config.family->written_table(shape, [](const std::string&) { return true; });
      if (families::inverted(mapping).size() != families::source_shapes(mapping).size()) std::abort();
    }
    const std::string written = families::config_json(config, "float32");
    if (families::config_json(families::parse_config(written, "written"), "float32") != written) std::abort();
  } catch (const ConfigError&) {
  }
  try {
    for (const auto& [tensor, file] : parse_index(text, "input"))
      if (file.find('/') != std::string::npos) std::abort();
  } catch (const ConfigError&) {
  }
  return 0;
}
