#pragma once
#include <string>
#include <string_view>

#include "megatron/text/vocabulary.h"

namespace megatron::text {

/// Whether a file begins as tiktoken's do: a token in base64, a space, its rank.
bool looks_like_tiktoken(std::string_view text);

/// A rank file of tiktoken: a line for each token, its bytes in base64 and its rank, which is its id. The file says
/// neither how text is cut nor which special tokens there are; both follow from the number of ranks:
///
///   50256 r50k_base (GPT-2)   50280 p50k_base   100256 cl100k_base   128000 Llama 3
///   151643 Qwen   199998 o200k_base   200000 Llama 4
///
/// Throws ConfigError for another number, and for what is no such file. `file_name` is kept for saving.
Vocabulary parse_tiktoken(std::string_view text, const std::string& name, const std::string& file_name);

}  // namespace megatron::text
