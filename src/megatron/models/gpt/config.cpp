#include "megatron/config/tables/model_kinds.h"

namespace megatron::models::gpt {

extern const config::ModelTraits kConfig;
constinit const config::ModelTraits kConfig{.causal = true};

}  // namespace megatron::models::gpt
