#include "megatron/tasks/published/wikitext.h"

#include <algorithm>
#include <utility>

#include "megatron/text/decode/detokenize.h"

namespace megatron::tasks {

std::int64_t count_words(std::string_view text, WordCount how) {
  if (how == WordCount::Paper) return 1 + std::ranges::count(text::trim(text), ' ');
  std::int64_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    words += !space && !inside ? 1 : 0;
    inside = !space;
  }
  return words;
}

EvalText wikitext(std::string text, bool detokenize, bool paper) {
  const bool undo = detokenize || paper;
  const std::int64_t words = count_words(text, undo ? WordCount::Paper : WordCount::WhiteSpace);
  if (!undo) return {std::move(text), words};
  return {text::detokenize_wikitext(paper ? text::trim(text) : std::string_view(text)), words};
}

}  // namespace megatron::tasks
