#pragma once
#include <string>
#include <string_view>

#include "megatron/text/vocabulary.h"

namespace megatron::text {

/// SentencePiece's `.model` file, a protocol buffer: Unigram and byte-pair encoding. Control pieces are special tokens.
/// Throws ConfigError for what is damaged, and by name for what is not supported: other models, and replacements in
/// decoded text. `file_name` is kept for saving.
Vocabulary parse_sentencepiece_model(std::string_view bytes, const std::string& name, const std::string& file_name);

}  // namespace megatron::text
