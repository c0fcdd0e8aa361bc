#include "megatron/text/texts.h"

#include <algorithm>
#include <cstddef>

#include "megatron/base/text/utf8.h"
#include "megatron/text/vocabulary.h"

namespace megatron::text {

std::vector<std::int32_t> ids_with_text(const Tokenizer& tokenizer, std::span<const std::int64_t> ids,
                                        std::span<const std::int64_t> ends) {
  std::vector<std::int32_t> kept;
  for (const std::int64_t id : ids)
    if (id >= 0 && id < tokenizer.vocab_size() && std::ranges::count(ends, id) == 0)
      kept.push_back(static_cast<std::int32_t>(id));
  return kept;
}

std::vector<std::int32_t> opening_of(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  std::vector<std::int32_t> opening;
  for (const Template::Item& item : tokenizer.vocabulary().frame.single) {
    if (item.kind != Template::Kind::Token) break;
    opening.push_back(item.token);
  }
  if (ids.size() >= opening.size() && std::ranges::equal(ids.first(opening.size()), opening)) return {};
  return opening;
}

std::size_t common_characters(std::string_view other, std::string_view text) {
  auto at = static_cast<std::size_t>(std::ranges::mismatch(other, text).in2 - text.begin());
  // Back to the beginning of a character that continues here; a byte that belongs to none begins nothing.
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, at); ++back)
    if (decode_utf8(text.data() + at - back, text.data() + text.size()).length > static_cast<int>(back))
      return at - back;
  return at;
}

std::string text_after(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                       std::span<const std::int32_t> added) {
  std::vector<std::int32_t> ids(prompt.begin(), prompt.end());
  ids.insert(ids.end(), added.begin(), added.end());
  const std::string whole = tokenizer.decode(ids);
  return whole.substr(common_characters(tokenizer.decode(prompt), whole));
}

}  // namespace megatron::text
