#include "megatron/data/sample_kinds.h"

#include "megatron/config/tables/model_kind_row.h"

#define MEGATRON_MODEL(name)           \
  namespace megatron::models::name {   \
  extern const data::SampleKind kData; \
  }
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL

namespace megatron::data {

const SampleKind& sample_kind(const std::string& architecture) {
  static constexpr const SampleKind* kRows[] = {
#define MEGATRON_MODEL(name) &models::name::kData,
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL
  };
  return *kRows[config::model_kind_row(architecture)];
}

}  // namespace megatron::data
