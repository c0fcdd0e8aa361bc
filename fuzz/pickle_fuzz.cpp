// Any bytes are either a pickle of which every value's children are there, or a ConfigError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "megatron/base/error.h"
#include "megatron/interchange/megatron_lm/megatron_names.h"
#include "megatron/interchange/megatron_lm/pickle.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  using namespace megatron::interchange;
  try {
    const Pickle pickle = read_pickle(std::as_bytes(std::span(data, size)), "input");
    for (const PickleNode& node : pickle.nodes)
      for (const std::uint32_t item : node.items)
        if (item >= pickle.nodes.size()) std::abort();
    if (pickle.root >= pickle.nodes.size()) std::abort();
    if (const PickleNode* args = pickle.find(pickle[pickle.root], "args"); args != nullptr)
      model_of_arguments(pickle, *args, {}, "input");
  } catch (const ConfigError&) {
  }
  return 0;
}
