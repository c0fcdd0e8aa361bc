#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/files/hugging_face/tokenizer_document.h"
#include "megatron/text/vocabulary.h"

namespace megatron::text {

// Files of tokenizers. What is read comes from outside: every id, merge and component is checked, and
// whatever could make the tokens differ from the file's intent is a ConfigError that names it. `name` is what messages
// call the file.

/// The file of `folder` that holds its tokenizer, as read_vocabulary() chooses it; nothing where none does.
std::optional<std::filesystem::path> tokenizer_file(const std::filesystem::path& folder);

/// Reads a folder or file as Tokenizer::load() describes. Of a folder the first of these that is there: tokenizer.json,
/// tekken.json, encoder.json with vocab.bpe, vocab.json with merges.txt, vocab.txt, tokenizer.model, spiece.model, the
/// only *.tiktoken, the only *.model. A file is what its beginning says: JSON, ranks, or a SentencePiece model. Beside
/// it, tokenizer_config.json names the end token, and how vocab.txt is normalized; tokenizer_config.h what else is read
/// there. For the type NullTokenizer `path` is a number.
Vocabulary read_vocabulary(const std::filesystem::path& path, std::string_view type = {});

/// Hugging Face's tokenizer.json: models BPE (over bytes and over characters), WordPiece, Unigram, WordLevel; the steps
/// of pipeline.h; added tokens of every kind; post-processors ByteLevel, TemplateProcessing, BertProcessing,
/// RobertaProcessing. A part that is not known is refused by name. Truncation and padding are for the caller of a
/// batch, not for a text: Vocabulary::not_applied names them. Ids may have holes. Mistral's tekken.json is known by its
/// members (tekken_file.h).
Vocabulary parse_tokenizer_json(std::string_view json, const std::string& name);

/// GPT-2's pair of files: an object of tokens and ids, and lines "left right" in order of importance (a first line
/// "#version…" is skipped). `specials`: what is added to the vocabulary, and what of it is special
/// (tokenizer_config.h).
Vocabulary parse_vocab_and_merges(const VocabularyDocument& vocab, const std::string& vocab_name,
                                  std::vector<SpecialToken> specials, std::string_view merges,
                                  const std::string& merges_name);

/// BERT's vocab.txt: a token a line in UTF-8, its id the number of the line. The tokens [PAD], [UNK], [CLS], [SEP] and
/// [MASK] are special where the vocabulary has them.
Vocabulary parse_vocab_txt(std::string_view text, const std::string& name, const BertNormalization& normalization);

/// WordPiece as BERT has it: of `specials` those that are tokens are special, and where [CLS] and [SEP] are, they frame
/// texts.
Vocabulary bert_vocabulary(std::vector<std::string> tokens, const std::vector<std::string>& specials,
                           const BertNormalization& normalization);

/// <s> A </s>, and a pair as <s> A </s> </s> B </s>; one type for all.
Template roberta_template(std::int32_t cls, std::int32_t sep);

/// tokenizer.json of a vocabulary, which must not have a `source`; parse_tokenizer_json gives the vocabulary back.
std::string to_tokenizer_json(const Vocabulary& vocabulary);

/// Writes to_tokenizer_json(), or the file that the vocabulary came from, into `folder`; see Tokenizer::save().
void write_vocabulary(const Vocabulary& vocabulary, const std::filesystem::path& folder);

}  // namespace megatron::text
