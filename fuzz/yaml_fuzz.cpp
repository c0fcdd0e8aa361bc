// Any bytes as a YAML file of Megatron-LM's options are either a recipe or a ConfigError; never a crash.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/config/megatron/translate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  try {
    config::translate_megatron_arguments(
        "pretrain_gpt", {"--yaml-cfg", "input"},
        {.world_size = 4, .yaml = std::string(reinterpret_cast<const char*>(data), size)});
  } catch (const ConfigError&) {
  }
  return 0;
}
