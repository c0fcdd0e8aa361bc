#include "megatron/serve/answer_text.h"

#include <algorithm>
#include <utility>

#include "megatron/base/text/utf8.h"
#include "megatron/serve/api/responses.h"
#include "megatron/text/files/hugging_face/pipeline_forms.h"
#include "megatron/text/texts.h"

namespace megatron::serve {
namespace {

/// Whether the suffix of a word becomes a space only where another token follows (</w>).
bool decodes_late(const text::Tokenizer& tokenizer) {
  return std::ranges::any_of(text::decoders_of(tokenizer.vocabulary()), [](const text::Decoder& decoder) {
    return std::holds_alternative<text::decoder::BpeSuffix>(decoder);
  });
}

/// The bytes at the end of a text that begin a character and are not all of it.
std::string_view unfinished(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::size_t length = byte < 0xC2 || byte > 0xF4 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return length > back ? text.substr(text.size() - back) : "";
  }
  return "";
}

}  // namespace

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
    : tokenizer_(std::move(tokenizer)),
      ends_(std::move(ends)),
      decoder_(tokenizer_),
      stops_(std::move(stops)),
      late_(decodes_late(tokenizer_)) {
  std::string given;
  for (const std::int64_t token : prompt) given += decoded(token);
  const std::string whole = tokenizer_.decode(text::ids_with_text(tokenizer_, prompt, ends_));
  if (whole.starts_with(given)) of_prompt_ = whole.substr(given.size());
  if (late_) held_.clear();
  characters_ = 0;
}

/// `text` as the decoder has given it, from where it leaves what it still had of the prompt.
std::string AnswerText::without_prompt(std::string text) {
  if (text.empty()) return text;
  const std::string prompt = std::exchange(of_prompt_, "");
  return text.erase(0, text::common_characters(prompt, text));
}

std::string AnswerText::decoded(std::int64_t token) {
  if (std::ranges::count(ends_, token) == 0) return text_of(token);
  offset_ = characters_ + (late_ ? characters_of(tokenizer_.decode(held_)) : 0);
  return "";
}

std::string AnswerText::text_of(std::int64_t token) {
  offset_ = characters_;
  if (token < 0 || token >= tokenizer_.vocab_size()) return "";
  const std::string given = decoder_.push(static_cast<std::int32_t>(token));
  std::string text = without_prompt(given);
  if (late_) {  // the text of the tokens before it
    offset_ = characters_ += characters_of(text);
    held_ = {static_cast<std::int32_t>(token)};
    return text;
  }
  if (given.empty()) {
    held_.push_back(static_cast<std::int32_t>(token));
    return text;
  }
  // What was kept back comes before the token, unless it is the beginning of the token's first character.
  const std::string before = tail_ + (held_.empty() ? "" : tokenizer_.decode(held_));
  const std::int64_t kept =
      characters_of(valid_utf8(before) ? before : given.substr(0, text::common_characters(before, given)));
  offset_ += std::max<std::int64_t>(0, kept - (characters_of(given) - characters_of(text)));
  held_.clear();
  tail_ = unfinished(tokenizer_.decode({{static_cast<std::int32_t>(token)}}));
  characters_ += characters_of(text);
  return text;
}

std::string AnswerText::push(std::int64_t token) { return stops_.push(decoded(token)); }

std::string AnswerText::finish() {
  std::string text = stops_.push(without_prompt(decoder_.finish()));
  return text + stops_.finish();
}

}  // namespace megatron::serve
