#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "megatron/text/files/hugging_face/tokenizer_document.h"
#include "megatron/text/vocabulary.h"

// What transformers reads beside the file of a tokenizer, and how it changes tokens: tokenizer_config.json,
// special_tokens_map.json, added_tokens.json. Each function throws ConfigError, naming file and member, for what it
// cannot follow.
namespace megatron::text {

/// The added tokens of a folder with vocab.json and merges.txt: those of added_tokens_decoder (tokenizer_config.json),
/// or without it of added_tokens.json; and those that the files name as bos_token and so on, which must be among these
/// or in `vocab`. Ids of those that `vocab` lacks must follow it, as transformers counts them.
std::vector<SpecialToken> added_tokens_beside(const std::filesystem::path& folder, const VocabularyDocument& vocab);

/// Follows what tokenizer_config.json says of such a folder's tokenizer: add_prefix_space, add_bos_token, and RoBERTa's
/// <s> … </s> where tokenizer_class, or without it model_type of config.json, is one that has it.
void follow_config(const std::filesystem::path& folder, Vocabulary& vocabulary);

/// Adds to a SentencePiece model in `folder` what the files beside it say: the added tokens as above, of which those
/// that tokenizer_config.json only names (additional_special_tokens) get the next ids; add_bos_token and add_eos_token;
/// and of a LlamaTokenizer legacy = false, with which the dummy space stands before the whole text alone, not behind
/// special tokens. Nothing for another vocabulary.
void add_pieces_beside(const std::filesystem::path& folder, Vocabulary& vocabulary);

/// Refuses a tokenizer_config.json beside tokenizer.json for which transformers would change the tokenizer:
/// add_prefix_space of another value and, for BERT's classes, do_lower_case, strip_accents, tokenize_chinese_chars.
void check_config(const std::filesystem::path& folder, const Vocabulary& vocabulary);

/// Refuses added tokens beside vocab.txt that it lacks.
void check_added_tokens(const std::filesystem::path& folder, const Vocabulary& vocabulary);

/// The end token that tokenizer_config.json names, or special_tokens_map.json: eos_token, without one sep_token.
std::optional<std::int32_t> end_token_beside(const std::filesystem::path& folder, const Vocabulary& vocabulary);

}  // namespace megatron::text
