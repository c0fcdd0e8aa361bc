#include "megatron/text/texts.h"

#include <algorithm>

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
  const auto inside = [&] { return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; };
  for (int back = 0; back < 3 && at > 0 && inside(); ++back) --at;  // to the beginning of a character
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
