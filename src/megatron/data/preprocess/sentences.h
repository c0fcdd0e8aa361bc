#pragma once
#include <cstddef>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace megatron::data {

/// Cuts text into sentences by rules, in one pass over the bytes (docs/data.md has its precision and recall):
///
/// * Blank lines end a sentence.
/// * ". ! ?" and "…", with the quotes and brackets that close behind them, end one where white space follows and what
///   comes next does not begin with a small letter.
/// * A full stop ends none after the initial of a name ("J. Austen"), after a title ("Mr."), or before a number after
///   "No.", "vol.", "p."; after an abbreviation that may also stand last ("etc.", "p.m.", "U.S.") it does where the
///   next word often begins sentences.
/// * The full stops of Chinese and Japanese end one wherever they stand.
///
/// Bytes that are not UTF-8 count as letters. Immutable; may be used by many threads at once.
class SentenceSplitter {
 public:
  /// `language`: "en", "de", "fr" or "es" (or "english", …), whose abbreviations count; anything else is a ConfigError.
  /// `keep_newlines`: what stands between two sentences belongs to the first, so that the sentences joined are the
  /// text; else white space around them is left out.
  explicit SentenceSplitter(std::string_view language = "en", bool keep_newlines = false);

  /// Appends the sentences of `text`, none of them blank, as views into it.
  void split(std::string_view text, std::vector<std::string_view>& sentences) const;

 private:
  bool full_stop_ends(std::string_view text, std::size_t begin, std::size_t stop, std::size_t next) const;
  bool add(std::string_view sentence, std::vector<std::string_view>& sentences) const;

  bool keep_newlines_;
  bool ordinals_ = false;       // "3. Oktober"
  bool spaced_quotes_ = false;  // "« Non ! »"
  std::unordered_set<std::string_view> titles_, numbers_, last_, starters_;
};

}  // namespace megatron::data
