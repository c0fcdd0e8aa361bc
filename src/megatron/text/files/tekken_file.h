#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "megatron/text/vocabulary.h"

namespace megatron::text {

/// Whether a JSON file has the members of Mistral's tekken.json, `config` and `vocab`.
bool is_tekken(const nlohmann::json& file);

/// Mistral's tekken.json: an expression, special tokens, which take the first ids, and ranks, of which those that the
/// vocabulary has no room for are left out, as in mistral_common. A text is framed by <s>. The members that concern
/// images, sound and settings of models are no part of a text's tokens. Throws ConfigError for what is no such file.
/// `source` is kept for saving.
Vocabulary parse_tekken(const nlohmann::json& file, const std::string& name, SourceFile source);

}  // namespace megatron::text
