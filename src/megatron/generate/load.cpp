#include "megatron/generate/load.h"

#include <utility>
#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/model_state.h"

namespace megatron::generate {

void load_weights(const std::filesystem::path& folder, const parallel::ParameterStore& parameters,
                  const plan::GptShape& shape) {
  std::vector<checkpoint::ShardedTensor> tensors;
  for (const auto& parameter : parameters.all()) {
    const auto& spec = parameter->spec;
    for (auto& tensor : checkpoint::model_tensor(spec.name, spec, shape, parameter->value.detach()))
      tensors.push_back(std::move(tensor));
  }
  checkpoint::load(folder, tensors);
}

}  // namespace megatron::generate
