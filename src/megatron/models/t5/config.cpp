#include "megatron/config/tables/model_kinds.h"

namespace megatron::models::t5 {

extern const config::ModelTraits kConfig;
constinit const config::ModelTraits kConfig{.encoder_decoder = true, .reads_sentences = true};

}  // namespace megatron::models::t5
