#include "megatron/serve/answer_text.h"

#include <algorithm>
#include <utility>

#include "megatron/base/text/utf8.h"
#include "megatron/serve/api/responses.h"

namespace megatron::serve {

std::string StopSequences::push(std::string_view text) {
  if (stopped_) return "";
  held_ += text;
  // The one that ends first, as if the text had come byte by byte.
  std::size_t cut = 0, end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos || std::pair(at + stop.size(), at) >= std::pair(end, cut)) continue;
    cut = at;
    end = at + stop.size();
  }
  if (end != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, "").substr(0, cut);
  }
  std::size_t keep = 0;  // the longest end that begins a sequence
  for (const std::string& stop : stops_)
    for (std::size_t count = std::min(stop.size() - 1, held_.size()); count > keep; --count)
      if (held_.ends_with(std::string_view(stop).substr(0, count))) keep = count;
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopSequences::finish() { return std::exchange(held_, ""); }

AnswerText::AnswerText(text::Tokenizer tokenizer, const std::vector<std::int64_t>& prompt,
                       std::vector<std::int64_t> ends, std::vector<std::string> stops)
    : tokenizer_(std::move(tokenizer)), ends_(std::move(ends)), decoder_(tokenizer_), stops_(std::move(stops)) {
  for (const std::int64_t token : prompt) decoded(token);
  characters_ = 0;
}

std::string AnswerText::decoded(std::int64_t token) {
  offset_ = characters_;
  return std::ranges::count(ends_, token) == 0 ? text_of(token) : "";
}

std::string AnswerText::text_of(std::int64_t token) {
  offset_ = characters_;
  if (token < 0 || token >= tokenizer_.vocab_size()) return "";
  std::string text = decoder_.push(static_cast<std::int32_t>(token));
  if (text.empty()) {
    held_.push_back(static_cast<std::int32_t>(token));
    return text;
  }
  // What was kept back comes before the token, unless it is the beginning of the token's first character.
  if (const std::string before = held_.empty() ? "" : tokenizer_.decode(held_); valid_utf8(before))
    offset_ += characters_of(before);
  held_.clear();
  characters_ += characters_of(text);
  return text;
}

std::string AnswerText::push(std::int64_t token) { return stops_.push(decoded(token)); }

std::string AnswerText::finish() {
  std::string text = stops_.push(decoder_.finish());
  return text + stops_.finish();
}

}  // namespace megatron::serve
