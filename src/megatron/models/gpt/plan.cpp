#include "megatron/plan/model_kind.h"

namespace megatron::models::gpt {

extern const plan::ModelKind kPlan;
constinit const plan::ModelKind kPlan{};

}  // namespace megatron::models::gpt
