#include "megatron/config/tables/model_kinds.h"

namespace megatron::models::bert {

extern const config::ModelTraits kConfig;
constinit const config::ModelTraits kConfig{.reads_sentences = true, .two_segments = true};

}  // namespace megatron::models::bert
