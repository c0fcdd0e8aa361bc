#include "megatron/tasks/eval_texts.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"

namespace megatron::tasks {

void EvalTexts::add(std::string_view beginning, std::string_view ending) {
  text_.assign(beginning).append(ending);
  beginning_ids_.clear();
  text_ids_.clear();
  encoder_.encode_append(beginning, beginning_ids_);
  encoder_.encode_append(text_, text_ids_);
  const auto common = std::ranges::mismatch(beginning_ids_, text_ids_).in2;
  const std::int64_t before = common - text_ids_.begin(), scored = text_ids_.end() - common;
  const auto got = [&] { return concat("\"", printable(text_.substr(0, 80)), "\""); };
  if (before == 0)
    throw ConfigError(rule_got_fix("a text must have a token before the part that is scored.", got(),
                                   "take it out, or write something before that part"));
  if (scored == 0)
    throw ConfigError(rule_got_fix("the part of a text that is scored must have a token.", got(),
                                   "take it out, or write something there"));
  if (scored >= most_)
    throw ConfigError(rule_got_fix(
        concat("the part of a text that is scored, and one token before it, must fit into ", most_, " tokens."),
        concat(scored, " tokens: ", got()), "take it out: the model has no more positions"));
  const std::int64_t dropped = std::max<std::int64_t>(0, before + scored - most_);
  shortened_ += dropped > 0 ? 1 : 0;
  const auto begin = static_cast<std::int64_t>(ids_.size());
  ids_.insert(ids_.end(), text_ids_.begin() + dropped, text_ids_.end());
  const auto end = static_cast<std::int64_t>(ids_.size());
  windows_.push_back({.begin = begin, .size = end - begin, .first_scored = end - scored});
}

}  // namespace megatron::tasks
