#include "megatron/data/sample_kinds.h"
#include "megatron/data/samples/t5_dataset.h"

namespace megatron::models::t5 {

extern const data::SampleKind kData;
constinit const data::SampleKind kData{
    .sentences = [](std::int64_t seq_length, bool) { return data::t5_bounds(seq_length); }};

}  // namespace megatron::models::t5
