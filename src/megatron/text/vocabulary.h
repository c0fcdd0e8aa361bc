#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/text/pipeline.h"

namespace megatron::text {

/// A token outside the model: it stands for something that is not text, or must never be cut.
struct SpecialToken {
  std::string content;
  std::int32_t id = 0;
  bool special = true;       ///< Hugging Face's mark; both kinds are recognised in the text.
  bool single_word = false;  ///< Recognised only where no word character touches it.
  bool lstrip = false;       ///< Takes the white space before it.
  bool rstrip = false;       ///< Takes the white space after it.
  bool normalized = false;   ///< Looked for, normalized, in the normalized text between the others.
  bool outside = false;      ///< The model's own vocabulary does not have it: the model makes it of no text.
};

/// The model that takes the longest piece of a word that is a token, again and again, instead of merging.
struct WordPiece {
  std::string unknown = "[UNK]";  ///< A token: what a word becomes that cannot be cut into tokens.
  std::string prefix = "##";      ///< Of tokens that continue a word.
  std::int64_t max_word_characters = 100;
  bool cleanup = true;  ///< Decoding takes spaces away before signs and contractions.
};

/// The model that gives each token a score and takes the tokens whose sum is largest (Kudo 2018), as Hugging Face does.
struct Unigram {
  std::vector<double> scores;  ///< One for each id: the logarithm of its probability.
  std::int32_t unknown = -1;   ///< Stands for characters that are in no token; -1: a text with such is refused.
  bool byte_fallback = false;  ///< They become the tokens <0x00> … <0xFF> of their bytes, if these are there.
};

/// Byte-pair encoding that begins with characters, not bytes: Llama-2's, Mistral's, CLIP's.
struct CharacterBpe {
  std::optional<std::string> unknown;  ///< What a character becomes that is no token; none: nothing.
  bool fuse_unknown = false;           ///< Neighbours that are unknown are one token.
  bool byte_fallback = false;          ///< They become the tokens <0x00> … <0xFF> of their bytes, if these are there.
  std::string prefix;                  ///< Of the characters of a piece but the first.
  std::string suffix;                  ///< Of its last character.
};

/// SentencePiece's own two models, of a `.model` file (Kudo and Richardson 2018).
struct SentencePiece {
  enum class Type : std::uint8_t { Normal = 1, Unknown = 2, Control = 3, UserDefined = 4, Unused = 5, Byte = 6 };
  bool unigram = false;  ///< Else byte-pair encoding: of neighbours that join to a token the best score goes first.
  bool byte_fallback = false;
  std::vector<Type> types;  ///< One for each id; one of them is Unknown.
  std::vector<float> scores;
};

/// The model whose tokens are whole pieces. With the numbers 0 … n - 1 as tokens it is Megatron's null tokenizer.
struct WordLevel {
  std::optional<std::string> unknown;  ///< What other pieces become; none: a text with such is refused.
};

/// How a tokenizer frames one text or a pair: [CLS] first [SEP] second [SEP]. Empty: the texts alone.
struct Template {
  enum class Kind : std::uint8_t { First, Second, Token };
  struct Item {
    Kind kind = Kind::First;
    std::int32_t token = 0;  ///< Of Kind::Token.
    std::int32_t type = 0;   ///< Token type of what stands here.
  };
  std::vector<Item> single, pair;
};

/// The file that a tokenizer was read from, where tokenizer.json could not hold it exactly.
struct SourceFile {
  std::string name, bytes;
};

/// A tokenizer as data, as files hold it.
///
/// Rules (Tokenizer's constructor checks them): no two tokens have the same bytes, but a special token that is
/// `outside` may have those of one of the model's, as GPT-NeoX's runs of spaces; each merge joins two tokens into a
/// token that is their concatenation, and no pair is merged twice; special tokens are tokens of the vocabulary, and so
/// is what WordPiece and template name. An id whose token is empty is a hole: no text becomes it, it decodes to
/// nothing.
///
/// The model is the one of `word_piece`, `unigram`, `characters`, `sentence_piece`, `word_level` that is there, or
/// byte-level BPE. A byte that is no token is left out of the text by it, as by Hugging Face tokenizers: decoding gives
/// back every text only where all 256 bytes are tokens.
///
/// Two ways to the model have scanners of their own, and no `pipeline`: GPT-2's (its expression, with `split_digits` or
/// without, before byte-level BPE) and BERT's (its words, before WordPiece), both with `normalization` or without.
struct Vocabulary {
  std::vector<std::string> tokens;                            ///< Bytes of each id, special tokens included.
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  ///< Ids of left and right half, most important first.
  std::vector<SpecialToken> specials;
  bool ignore_merges = false;  ///< A piece that is a token becomes it even where the merges would not make it.
  bool equal_ranks = false;    ///< Merges that make the same token stand together and are equally important.
  bool split_digits = false;   ///< Text is cut around every number character before GPT-2's expression cuts it.
  std::optional<BertNormalization> normalization;
  std::optional<WordPiece> word_piece;  ///< The model is WordPiece over BERT's words; no merges.
  std::optional<Unigram> unigram;
  std::optional<CharacterBpe> characters;
  std::optional<SentencePiece> sentence_piece;
  std::optional<WordLevel> word_level;
  std::optional<Pipeline> pipeline;  ///< The steps around the model, where they are not the two of above.
  std::optional<TrimOffsets> trim_offsets;
  Template frame;
  std::optional<std::int32_t> end_of_text;  ///< The end token that the files name.
  std::vector<std::string> not_applied;     ///< What the file says of batches, not of a text: truncation, padding.
  std::optional<SourceFile> source;
  std::vector<std::int32_t> made;  ///< The token of each merge, where who read the file met it; else empty.
};

}  // namespace megatron::text
