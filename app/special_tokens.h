#pragma once
#include <string>

#include "megatron/text/tokenizer.h"

namespace megatron::app {

inline constexpr const char* kSpecialTokensHelp =
    "Special tokens that are written in the text: recognised, or text like any other.";
inline constexpr const char* kAddSpecialTokensHelp =
    "Set what the tokenizer's template sets around each text: <s>, [CLS] … [SEP].";

/// What --special-tokens asks for. Throws ConfigError for another word.
text::Specials specials_of(const std::string& flag);

}  // namespace megatron::app
