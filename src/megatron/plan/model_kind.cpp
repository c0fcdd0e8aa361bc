#include "megatron/plan/model_kind.h"

#include "megatron/config/tables/model_kind_row.h"

#define MEGATRON_MODEL(name)          \
  namespace megatron::models::name {  \
  extern const plan::ModelKind kPlan; \
  }
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL

namespace megatron::plan {

const ModelKind& model_kind(const std::string& architecture) {
  static constexpr const ModelKind* kRows[] = {
#define MEGATRON_MODEL(name) &models::name::kPlan,
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL
  };
  return *kRows[config::model_kind_row(architecture)];
}

}  // namespace megatron::plan
