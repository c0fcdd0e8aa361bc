#include "megatron/text/split/added_tokens.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/bert_tables.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/characters/unicode_classes.h"

namespace megatron::text {
namespace {

/// The last character of `text`; length 0 where it ends inside none.
DecodedChar last_char(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(4, text.size()); ++back) {
    const char* p = text.data() + text.size() - back;
    const DecodedChar c = decode_utf8(p, text.data() + text.size());
    if (c.length == static_cast<int>(back)) return c;
  }
  return {};
}

DecodedChar first_char(std::string_view text) {
  return text.empty() ? DecodedChar{} : decode_utf8(text.data(), text.data() + text.size());
}

bool is_word(const DecodedChar& c) { return c.length > 0 && in_ranges(kWordRanges, c.code_point); }
bool is_space(const DecodedChar& c) {
  return c.length > 0 && UnicodeClasses::instance().of(c.code_point) == CharClass::Space;
}

}  // namespace

AddedTokens::AddedTokens(const Vocabulary& vocabulary, const TokenIndex& token_ids,
                         const std::function<std::string(std::string_view)>& normalize) {
  for (const SpecialToken& special : vocabulary.specials) {
    const std::int32_t found = token_ids.find(special.content);
    if (found < 0 || found != special.id)
      throw ConfigError(rule_got_fix(concat("tokenizer: special token ", in_quotes(special.content),
                                            " must have the id that the vocabulary gives it"),
                                     concat("id ", special.id)));
    std::string content = special.normalized ? normalize(special.content) : special.content;
    if (content.size() > kMaxTokenBytes)
      throw ConfigError(rule_got_fix(concat("tokenizer: an added token must have at most ", kMaxTokenBytes, " bytes"),
                                     concat(content.size(), " bytes of id ", special.id)));
    if (!content.empty()) tables_[special.normalized ? 1 : 0].entries.push_back({std::move(content), special});
  }
  for (Table& table : tables_) index(table);
}

void AddedTokens::index(Table& table) {
  for (std::size_t i = table.entries.size(); i-- > 0;) {  // of equals the first stays
    table.contents.add(table.entries[i].content, static_cast<std::int32_t>(i));
  }
}

bool AddedTokens::find(Phase phase, std::string_view text, std::size_t& search, std::size_t done, Match& match) const {
  const Table& table = tables_[static_cast<std::size_t>(phase)];
  if (table.entries.empty()) return false;
  for (; search < text.size(); ++search) {
    if (!table.contents.may_begin(text[search])) continue;
    const auto [size, index] = table.contents.longest(text.substr(search));
    if (size == 0) continue;
    const Entry& entry = table.entries[static_cast<std::size_t>(index)];
    match = {.begin = search, .end = search + entry.content.size(), .id = entry.token.id};
    search = match.end;
    if (entry.token.single_word &&
        (is_word(last_char(text.substr(0, match.begin))) || is_word(first_char(text.substr(match.end))))) {
      --search;  // the loop continues behind it
      continue;
    }
    if (entry.token.lstrip) {
      for (DecodedChar c = last_char(text.substr(0, match.begin)); match.begin > done && is_space(c);
           c = last_char(text.substr(0, match.begin)))
        match.begin -= static_cast<std::size_t>(c.length);
      match.begin = std::max(match.begin, done);
    }
    if (entry.token.rstrip)
      for (DecodedChar c = first_char(text.substr(match.end)); is_space(c); c = first_char(text.substr(match.end)))
        match.end += static_cast<std::size_t>(c.length);
    return true;
  }
  return false;
}

}  // namespace megatron::text
