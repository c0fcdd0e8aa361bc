#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::corpus {

/// Writing systems that are told apart, each by its Unicode blocks.
enum class Script : std::uint8_t {
  Latin,
  Greek,
  Cyrillic,
  Hebrew,
  Arabic,
  Devanagari,
  Thai,
  Kana,
  Hangul,
  Han,
  Other,
};
inline constexpr std::size_t kScripts = 11;

/// What the characters of a text say about its language.
struct CharacterStatistics {
  std::array<std::int64_t, kScripts> letters{};  ///< by script
  std::int64_t trigrams = 0;                     ///< runs of three of a-z and blank inside words and around them
  std::int64_t english_trigrams = 0;             ///< of them those that are among the 200 most frequent of English
};

CharacterStatistics character_statistics(std::string_view text);

/// Languages that documents may have. A simple statistic: at least half of a text's letters must be of a script that
/// is named, or, for "english", of the Latin script with at least 0.29 of its trigrams among the 200 that are most
/// frequent in English (99 novels: 0.42 to 0.50 of theirs; German, French, Spanish, Italian, Dutch and Latin prose:
/// 0.10 to 0.24). It tells scripts apart, and English prose of some fifty words from other languages in Latin letters.
/// It cannot tell languages of one script apart otherwise, nor Scots or pidgins from English, and it says little of
/// texts of a few words, of lists of names and of source code. A text without letters has no language.
class LanguageFilter {
 public:
  /// Names: english, latin, greek, cyrillic, hebrew, arabic, devanagari, thai, kana, hangul, han; another is a
  /// ConfigError. No names: everything passes.
  explicit LanguageFilter(const std::vector<std::string>& names);

  bool passes(std::string_view text) const;

 private:
  bool all_ = false, english_ = false;
  std::array<bool, kScripts> scripts_{};
};

}  // namespace megatron::corpus
