#include "megatron/tasks/answers.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "megatron/base/text/utf8.h"
#include "megatron/tasks/case_ranges.h"
#include "megatron/text/characters/bert_tables.h"
#include "megatron/text/characters/unicode_classes.h"

namespace megatron::tasks {
namespace {

constexpr std::uint32_t kCapitalSigma = 0x3A3, kSigma = 0x3C3, kFinalSigma = 0x3C2, kReplacement = 0xFFFD;

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  for_each_character(text, [&](const DecodedChar& c, std::size_t, std::size_t) {
    characters.push_back(c.length == 0 ? kReplacement : c.code_point);
  });
  return characters;
}

/// Whether the first character from `at` on that counts for this has case.
bool has_case_from(const std::u32string& text, std::size_t at) {
  while (at < text.size() && text::in_ranges(kCaseIgnored, text[at])) ++at;
  return at < text.size() && text::in_ranges(kCased, text[at]);
}

/// Small letters as Unicode has them, a sigma at the end of a word in its own form.
std::u32string lower_case(const std::u32string& text) {
  std::u32string lower;
  lower.reserve(text.size());
  // A sigma has case itself, so no two searches go over the same characters.
  bool case_before = false;  // of the last character that is not skipped
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    if (c == kCapitalSigma) {
      const bool ends = case_before && !has_case_from(text, i + 1);
      lower.push_back(ends ? kFinalSigma : kSigma);
    } else if (c < 0x80) {
      lower.push_back(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
    } else {
      const auto* found = std::lower_bound(std::begin(text::kLowerCase), std::end(text::kLowerCase), c,
                                           [](const auto& mapping, std::uint32_t x) { return mapping.from < x; });
      if (found == std::end(text::kLowerCase) || found->from != c)
        lower.push_back(c);
      else
        for (const std::uint32_t part : found->to)
          if (part != 0) lower.push_back(part);
    }
    if (!text::in_ranges(kCaseIgnored, c)) case_before = text::in_ranges(kCased, c);
  }
  return lower;
}

bool is_punctuation(char32_t c) {
  return c < 0x7F && c > ' ' && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z');
}

enum class Kind : std::uint8_t { Other, Word, Space };

Kind kind_of(char32_t c) {
  if (c >= 0x1C && c <= 0x1F) return Kind::Space;  // to Python, though not White_Space
  switch (text::UnicodeClasses::instance().of(c)) {
    case text::CharClass::Letter:
    case text::CharClass::Number:
      return Kind::Word;
    case text::CharClass::Space:
      return Kind::Space;
    case text::CharClass::Other:
      break;
  }
  return Kind::Other;
}

bool is_article(std::u32string_view word) { return word == U"a" || word == U"an" || word == U"the"; }

/// The words of a normalized answer.
std::vector<std::string_view> words_of(std::string_view normalized) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin < normalized.size();) {
    const std::size_t end = std::min(normalized.find(' ', begin), normalized.size());
    words.push_back(normalized.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

/// How many words both have, each as often as the one that has it less often.
std::size_t common_words(std::vector<std::string_view>& a, std::vector<std::string_view>& b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::vector<std::string_view> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  return common.size();
}

AnswerMatch match_normalized(std::string_view gold, std::string_view answer, SquadVersion version) {
  AnswerMatch match{.exact = gold == answer ? 1.0 : 0.0};
  auto gold_words = words_of(gold), answer_words = words_of(answer);
  if (version == SquadVersion::V2 && (gold_words.empty() || answer_words.empty())) {
    match.f1 = match.exact;
    return match;
  }
  const auto common = static_cast<double>(common_words(gold_words, answer_words));
  if (common == 0) return match;
  const double precision = common / static_cast<double>(answer_words.size());
  const double recall = common / static_cast<double>(gold_words.size());
  match.f1 = 2 * precision * recall / (precision + recall);
  return match;
}

}  // namespace

std::string normalize_answer(std::string_view text) {
  std::u32string characters = lower_case(characters_of(text));
  std::erase_if(characters, is_punctuation);
  std::string normalized;
  bool parted = false;  // white space or an article stands between the last word and what follows
  for (std::size_t i = 0; i < characters.size();) {
    const Kind kind = kind_of(characters[i]);
    std::size_t end = i + 1;
    if (kind == Kind::Word)
      while (end < characters.size() && kind_of(characters[end]) == Kind::Word) ++end;
    const auto run = std::u32string_view(characters).substr(i, end - i);
    i = end;
    if (kind == Kind::Space || (kind == Kind::Word && is_article(run))) {
      parted = true;
      continue;
    }
    if (parted && !normalized.empty()) normalized += ' ';
    parted = false;
    for (const char32_t c : run) append_utf8(normalized, c);
  }
  return normalized;
}

AnswerMatch match_answer(std::string_view gold, std::string_view answer, SquadVersion version) {
  return match_normalized(normalize_answer(gold), normalize_answer(answer), version);
}

AnswerMatch match_answer(std::span<const std::string_view> golds, std::string_view answer, SquadVersion version) {
  const std::string normalized = normalize_answer(answer);
  AnswerMatch best;
  bool compared = false;
  const auto take = [&](std::string_view gold) {
    const AnswerMatch match = match_normalized(gold, normalized, version);
    best.exact = std::max(best.exact, match.exact);
    best.f1 = std::max(best.f1, match.f1);
    compared = true;
  };
  for (const std::string_view gold : golds)
    if (const std::string one = normalize_answer(gold); version == SquadVersion::V1 || !one.empty()) take(one);
  if (!compared && version == SquadVersion::V2) take("");
  return best;
}

}  // namespace megatron::tasks
