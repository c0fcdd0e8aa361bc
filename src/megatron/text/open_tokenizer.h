#pragma once
#include <string>

#include "megatron/text/tokenizer.h"

namespace megatron::text {

/// The tokenizer in a folder or file, to encode texts with. `type`: data.tokenizer_type. What its file says of batches,
/// which is not applied, is named on stderr. Throws what Tokenizer::load() throws.
Tokenizer open_tokenizer(const std::string& path, const std::string& type = "");

}  // namespace megatron::text
