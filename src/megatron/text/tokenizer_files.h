#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/vocabulary.h"

namespace megatron::text {

// Files of tokenizers. What is read comes from outside: every id, merge and component is checked, and
// whatever could make the tokens differ from the file's intent is a ConfigError that names it. `name` is what messages
// call the file.

/// Reads a folder or file as Tokenizer::load() describes.
Vocabulary read_vocabulary(const std::filesystem::path& path);

/// Hugging Face's tokenizer.json with either model:
///   BPE        pre-tokenizer ByteLevel (the GPT-2 expression, no prefix space), or Digits and it; decoder ByteLevel;
///   WordPiece  pre-tokenizer BertPreTokenizer; decoder WordPiece;
/// added tokens of every kind, normalizer none or BertNormalizer, post-processor none, ByteLevel, TemplateProcessing or
/// BertProcessing. Truncation and padding are for the caller of a batch, not for a text: they are not applied. Ids must
/// be 0 … n - 1 without gaps.
Vocabulary parse_tokenizer_json(std::string_view json, const std::string& name);

/// GPT-2's pair of files: an object of tokens and ids, and lines "left right" in order of importance (a first line
/// "#version…" is skipped). <|endoftext|> is special where the vocabulary has it.
Vocabulary parse_vocab_and_merges(std::string_view vocab_json, const std::string& vocab_name, std::string_view merges,
                                  const std::string& merges_name);

/// BERT's vocab.txt: a token a line, its id the number of the line. The tokens [PAD], [UNK], [CLS], [SEP] and [MASK]
/// are special where the vocabulary has them.
Vocabulary parse_vocab_txt(std::string_view text, const std::string& name, const BertNormalization& normalization);

/// WordPiece as BERT has it: of `specials` those that are tokens are special, and where [CLS] and [SEP] are, they frame
/// texts.
Vocabulary bert_vocabulary(std::vector<std::string> tokens, const std::vector<std::string>& specials,
                           const BertNormalization& normalization);

/// tokenizer.json of a vocabulary; parse_tokenizer_json gives the vocabulary back.
std::string to_tokenizer_json(const Vocabulary& vocabulary);

/// Writes to_tokenizer_json() to `folder`/tokenizer.json; see Tokenizer::save().
void write_tokenizer_json(const Vocabulary& vocabulary, const std::filesystem::path& folder);

}  // namespace megatron::text
