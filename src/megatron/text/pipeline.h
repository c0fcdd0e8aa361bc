#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

// The steps that text takes to a model and back, as data: those of Hugging Face's tokenizer.json, whose names they
// have, and SentencePiece's own. What they do is in normalize.h, split.h and decode.h.
namespace megatron::text {

/// What a step looks for: a string as it is, or a regular expression (regex.h).
struct Pattern {
  std::string text;
  bool is_regex = false;
  bool operator==(const Pattern&) const = default;
};

/// What BERT does to text before it is cut into words (Devlin et al. 2019).
struct BertNormalization {
  bool clean_text = true;     ///< Control characters go, every white space is a space.
  bool space_chinese = true;  ///< Each Chinese character is a word.
  bool strip_accents = true;
  bool lower_case = true;
  bool operator==(const BertNormalization&) const = default;
};

namespace normalizer {

/// NFD, NFC, NFKD or NFKC.
struct UnicodeForm {
  bool compose = false, compatible = false;
  bool operator==(const UnicodeForm&) const = default;
};
struct Lowercase {
  bool operator==(const Lowercase&) const = default;
};
/// Takes marks away.
struct StripAccents {
  bool operator==(const StripAccents&) const = default;
};
/// Takes white space away at the ends.
struct Strip {
  bool left = true, right = true;
  bool operator==(const Strip&) const = default;
};
struct Replace {
  Pattern pattern;
  std::string content;
  bool operator==(const Replace&) const = default;
};
/// Puts `content` before a text that is not empty.
struct Prepend {
  std::string content;
  bool operator==(const Prepend&) const = default;
};
/// SentencePiece's compiled replacements, as Hugging Face applies them: to short grapheme clusters and to characters.
struct Precompiled {
  std::string charsmap;  ///< As the file holds it (charsmap.h).
  bool operator==(const Precompiled&) const = default;
};
/// SentencePiece's normalizer as a whole.
struct SentencePiece {
  std::string charsmap;  ///< Empty: none.
  bool add_dummy_prefix = true;
  bool remove_extra_spaces = true;
  bool escape_spaces = true;              ///< U+2581 instead of a space.
  bool space_is_suffix = false;           ///< The dummy space goes behind the text.
  std::vector<std::string> user_symbols;  ///< Left as they are.
  bool operator==(const SentencePiece&) const = default;
};
/// Every byte becomes a character of its own (byte_level.h).
struct ByteLevel {
  bool operator==(const ByteLevel&) const = default;
};

}  // namespace normalizer

using Normalizer = std::variant<normalizer::UnicodeForm, normalizer::Lowercase, normalizer::StripAccents,
                                normalizer::Strip, normalizer::Replace, normalizer::Prepend, BertNormalization,
                                normalizer::Precompiled, normalizer::SentencePiece, normalizer::ByteLevel>;

/// Where a match of a pattern goes.
enum class SplitBehavior : std::uint8_t { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

/// Which texts get the mark of a word's beginning: none, only what begins the whole text, or all.
enum class PrependScheme : std::uint8_t { Never, First, Always };

namespace pretokenizer {

/// Cuts as GPT-2 does (with use_regex), and makes every byte a character of its own.
struct ByteLevel {
  bool add_prefix_space = false, use_regex = true;
  bool operator==(const ByteLevel&) const = default;
};
struct Split {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::Isolated;
  bool invert = false;  ///< The pattern is what stays, not what is between.
  bool operator==(const Split&) const = default;
};
/// Runs of word characters, and runs of what is neither word nor space.
struct Whitespace {
  bool operator==(const Whitespace&) const = default;
};
struct WhitespaceSplit {
  bool operator==(const WhitespaceSplit&) const = default;
};
struct BertWords {
  bool operator==(const BertWords&) const = default;
};
struct Digits {
  bool individual = false;
  bool operator==(const Digits&) const = default;
};
struct Punctuation {
  SplitBehavior behavior = SplitBehavior::Isolated;
  bool operator==(const Punctuation&) const = default;
};
/// Spaces become `replacement`, which begins each word.
struct Metaspace {
  std::string replacement = "\u2581";
  PrependScheme prepend = PrependScheme::Always;
  bool split = true;
  bool operator==(const Metaspace&) const = default;
};

}  // namespace pretokenizer

using PreTokenizer =
    std::variant<pretokenizer::ByteLevel, pretokenizer::Split, pretokenizer::Whitespace, pretokenizer::WhitespaceSplit,
                 pretokenizer::BertWords, pretokenizer::Digits, pretokenizer::Punctuation, pretokenizer::Metaspace>;

namespace decoder {

struct ByteLevel {
  bool operator==(const ByteLevel&) const = default;
};
/// Tokens that begin with `prefix` are joined to the one before, others with a space between.
struct WordPiece {
  std::string prefix = "##";
  bool cleanup = true;  ///< Takes spaces away before signs and contractions.
  bool operator==(const WordPiece&) const = default;
};
struct Metaspace {
  std::string replacement = "\u2581";
  PrependScheme prepend = PrependScheme::Always;
  bool operator==(const Metaspace&) const = default;
};
struct Replace {
  Pattern pattern;
  std::string content;
  bool operator==(const Replace&) const = default;
};
/// Tokens <0x00> … <0xFF> become bytes.
struct ByteFallback {
  bool operator==(const ByteFallback&) const = default;
};
/// All tokens become one.
struct Fuse {
  bool operator==(const Fuse&) const = default;
};
/// Takes up to `start` and `stop` times the character `content` away at the ends of each token.
struct Strip {
  std::string content;
  std::int32_t start = 0, stop = 0;
  bool operator==(const Strip&) const = default;
};
/// The suffix of words becomes a space, but not behind the last.
struct BpeSuffix {
  std::string suffix = "</w>";
  bool operator==(const BpeSuffix&) const = default;
};
/// SentencePiece's way back: control tokens give no text, the unknown one " ⁇ ", bytes are joined, U+2581 is a space.
struct SentencePiece {
  std::string unknown_surface = " \u2047 ";
  bool drop_first_space = true;       ///< The space that the text begins with.
  bool drop_all_first_spaces = true;  ///< All that it begins with.
  bool operator==(const SentencePiece&) const = default;
};

}  // namespace decoder

using Decoder =
    std::variant<decoder::ByteLevel, decoder::WordPiece, decoder::Metaspace, decoder::Replace, decoder::ByteFallback,
                 decoder::Fuse, decoder::Strip, decoder::BpeSuffix, decoder::SentencePiece>;

/// The offsets of a token leave out spaces that it has at its ends (post-processors ByteLevel and Roberta).
struct TrimOffsets {
  bool add_prefix_space = true;
  bool operator==(const TrimOffsets&) const = default;
};

/// All steps, each list in its order. No decoders: tokens with a space between.
struct Pipeline {
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  std::vector<Decoder> decoders;
  bool operator==(const Pipeline&) const = default;
};

}  // namespace megatron::text
