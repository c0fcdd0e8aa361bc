#include "megatron/train/data/model_samples.h"

#include "megatron/config/tables/model_kind_row.h"

#define MEGATRON_MODEL(name)               \
  namespace megatron::models::name {       \
  extern const train::ModelSamples kTrain; \
  }
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL

namespace megatron::train {

const ModelSamples& model_samples(const std::string& architecture) {
  static constexpr const ModelSamples* kRows[] = {
#define MEGATRON_MODEL(name) &models::name::kTrain,
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL
  };
  return *kRows[config::model_kind_row(architecture)];
}

}  // namespace megatron::train
