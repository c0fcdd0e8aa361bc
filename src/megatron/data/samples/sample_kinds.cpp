#include "megatron/data/samples/sample_kinds.h"

#include <stdexcept>

#define MEGATRON_MODEL(name)           \
  namespace megatron::models::name {   \
  extern const data::SampleKind kData; \
  }
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL

namespace megatron::data {

const SampleKind& sample_kind(const std::string& architecture) {
#define MEGATRON_MODEL(name) \
  if (architecture == #name) return models::name::kData;
#include "megatron/models/kinds.def"
#undef MEGATRON_MODEL
  throw std::out_of_range("no kind of model is named " + architecture);
}

}  // namespace megatron::data
