#include "megatron/data/sample_kinds.h"

namespace megatron::models::gpt {

extern const data::SampleKind kData;
constinit const data::SampleKind kData{};

}  // namespace megatron::models::gpt
