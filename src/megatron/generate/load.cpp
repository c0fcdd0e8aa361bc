#include "megatron/generate/load.h"

#include <vector>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/model_state.h"

namespace megatron::generate {

void load_weights(const std::filesystem::path& folder, const parallel::ParameterStore& parameters,
                  const plan::GptShape& shape) {
  std::vector<checkpoint::ShardedTensor> tensors;
  for (const auto& parameter : parameters.all())
    tensors.push_back(
        checkpoint::model_tensor(parameter->spec.name, parameter->spec, shape, parameter->value.detach()));
  checkpoint::load(folder, tensors);
}

}  // namespace megatron::generate
