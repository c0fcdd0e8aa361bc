#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
};

/// What BERT does to text before it is cut into words (Devlin et al. 2019).
struct BertNormalization {
  bool clean_text = true;     ///< Control characters go, every white space is a blank.
  bool space_chinese = true;  ///< Each Chinese character is a word.
  bool strip_accents = true;
  bool lower_case = true;
};

/// The model that takes the longest piece of a word that is a token, again and again, instead of merging.
struct WordPiece {
  std::string unknown = "[UNK]";  ///< A token: what a word becomes that cannot be cut into tokens.
  std::string prefix = "##";      ///< Of tokens that go on a word.
  std::int64_t max_word_characters = 100;
  bool cleanup = true;  ///< Decoding takes blanks away before signs and contractions.
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

/// A tokenizer as data, as files hold it.
///
/// Rules (Tokenizer's constructor checks them): no two tokens have the same bytes; each merge joins two tokens into a
/// token that is their concatenation, and no pair is merged twice; special tokens are tokens of the vocabulary, and so
/// is what WordPiece and template name.
///
/// With merges this is byte-level BPE. A byte that is no token is left out of the text, as by Hugging Face tokenizers:
/// decoding gives back every text only where all 256 bytes are tokens.
struct Vocabulary {
  std::vector<std::string> tokens;                            ///< Bytes of each id, special tokens included.
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  ///< Ids of left and right half, most important first.
  std::vector<SpecialToken> specials;
  bool ignore_merges = false;  ///< A piece that is a token becomes it even where the merges would not make it.
  bool split_digits = false;   ///< Text is cut around every number character before GPT-2's expression cuts it.
  std::optional<BertNormalization> normalization;
  std::optional<WordPiece> word_piece;  ///< The model is WordPiece over BERT's words; no merges.
  Template frame;
};

}  // namespace megatron::text
