#include "megatron/data/samples/bert_dataset.h"
#include "megatron/data/samples/sample_kinds.h"

namespace megatron::models::bert {

extern const data::SampleKind kData;
constinit const data::SampleKind kData{.sentences = data::bert_bounds};

}  // namespace megatron::models::bert
