#include "megatron/plan/model_kind.h"

namespace megatron::models::gpt {

extern const plan::ModelKind kPlan;
constinit const plan::ModelKind kPlan{.causal = true};

}  // namespace megatron::models::gpt
