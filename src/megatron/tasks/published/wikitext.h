#pragma once
#include <cstdint>
#include <string>
#include <string_view>

// WikiText and texts like it, as Shoeybi et al. 2019 evaluate them (appendix E.1). text/decode/detokenize.h undoes the
// spaces that the corpus puts between words and signs.
namespace megatron::tasks {

/// Words by which losses are normalized.
enum class WordCount : std::uint8_t {
  WhiteSpace,  ///< runs of characters that are no white space
  /// The paper's T_o: what single spaces separate in the text without the white space at its ends. An end of line
  /// between two spaces counts, and so does nothing between two: 245,566 for WikiText-103's test set.
  Paper,
};
std::int64_t count_words(std::string_view text, WordCount how);

/// A text as it is read by a model, and what its loss is normalized by.
struct EvalText {
  std::string text;
  std::int64_t words = 0;  ///< of the text as it was
};

/// `paper`: without the white space at its ends, then detokenized; with GPT-2's tokens T = 270,329 for WikiText-103's
/// test set. `detokenize`: detokenized as it is. Both count the paper's words.
EvalText wikitext(std::string text, bool detokenize, bool paper);

}  // namespace megatron::tasks
