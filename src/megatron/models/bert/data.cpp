#include "megatron/data/sample_kinds.h"
#include "megatron/data/samples/bert_dataset.h"

namespace megatron::models::bert {

extern const data::SampleKind kData;
constinit const data::SampleKind kData{.sentences = data::bert_bounds};

}  // namespace megatron::models::bert
