#include "megatron/train/model_samples.h"

#define MEGATRON_MODEL(name)               \
  namespace megatron::models::name {       \
  extern const train::ModelSamples kTrain; \
  }
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL

namespace megatron::train {

const ModelSamples& model_samples(const std::string& architecture) {
#define MEGATRON_MODEL(name) \
  if (architecture == #name) return models::name::kTrain;
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL
  return models::gpt::kTrain;
}

}  // namespace megatron::train
