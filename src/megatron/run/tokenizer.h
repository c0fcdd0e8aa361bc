#pragma once
#include <string>

#include "megatron/config/run_config.h"
#include "megatron/text/tokenizer.h"

namespace megatron::run {

/// The tokenizer in a folder or file, to encode texts with. `type`: data.tokenizer_type. What its file says of batches,
/// which is not applied, is named on stderr. Throws what text::Tokenizer::load() throws.
text::Tokenizer open_tokenizer(const std::string& path, const std::string& type = "");

/// The tokenizer of the model in `folder`: the one beside its weights, else the one that `recipe`, which its run has
/// saved, names. Throws ConfigError that begins with `job` where there is none.
text::Tokenizer tokenizer_of_model(const std::string& folder, const config::RunConfig& recipe, const char* job);

}  // namespace megatron::run
