#pragma once
#include <string>
#include <string_view>

#include "megatron/text/vocabulary.h"

namespace megatron::text {

/// Megatron-LM's names of kinds of tokenizers (`--tokenizer-type`) that are known here:
///
///   GPT2BPETokenizer                              byte-level BPE
///   BertWordPieceLowerCase, BertWordPieceCase     WordPiece that lowers case, or does not
///   SentencePieceTokenizer, GPTSentencePieceTokenizer   a `.model` file
///   Llama2Tokenizer                               the same, and <s> before a text that is framed
///   HuggingFaceTokenizer                          tokenizer.json, or any other file of a Hugging Face folder
///   TikTokenizer                                  a file of ranks, or tekken.json
///   NullTokenizer                                 numbers; the path is how many
///
/// Checks that a vocabulary is of that kind, and sets what it asks for: documents of GPT2BPETokenizer and TikTokenizer
/// end with <|endoftext|>, whatever tokenizer_config.json names. Throws ConfigError for another kind or name.
void apply_type(std::string_view type, const std::string& name, Vocabulary& vocabulary);

}  // namespace megatron::text
