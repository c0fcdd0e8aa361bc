#pragma once
#include "megatron/run/trained_model.h"
#include "megatron/text/chat_template.h"

namespace megatron::app {

/// The chat template of a model: beside its tokenizer, where one is named, else beside its weights. Throws ConfigError
/// where there is none, or it is no template.
text::ChatTemplate chat_template_of(const recipe::ModelFlags& flags);

}  // namespace megatron::app
