#include "megatron/plan/model_kind.h"

#define MEGATRON_MODEL(name)          \
  namespace megatron::models::name {  \
  extern const plan::ModelKind kPlan; \
  }
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL

namespace megatron::plan {

const ModelKind& model_kind(const std::string& architecture) {
#define MEGATRON_MODEL(name) \
  if (architecture == #name) return models::name::kPlan;
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL
  return models::gpt::kPlan;
}

}  // namespace megatron::plan
