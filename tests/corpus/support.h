#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/data/support.h"

// The truth of these tests: words and sets of them the slow way, for ASCII text.
namespace megatron::corpus {

using data::read_bytes;
using data::TemporaryFolder;
using data::write_bytes;

inline std::vector<std::string> naive_words(std::string_view text) {
  std::vector<std::string> words;
  bool open = false;
  for (const char c : text) {
    const bool in_word = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    if (in_word && !open) words.emplace_back();
    if (in_word) words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    open = in_word;
  }
  return words;
}

/// Runs of n words, each joined by spaces; all words where there are fewer.
inline std::vector<std::string> naive_ngrams(std::string_view text, std::size_t n) {
  const auto words = naive_words(text);
  std::vector<std::string> ngrams;
  n = std::min(n, words.size());
  for (std::size_t i = 0; n > 0 && i + n <= words.size(); ++i) {
    std::string ngram;
    for (std::size_t j = i; j < i + n; ++j) ngram += (ngram.empty() ? "" : " ") + words[j];
    ngrams.push_back(ngram);
  }
  return ngrams;
}

inline double naive_jaccard(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::size_t common = 0;
  for (const std::string& item : a) common += b.count(item);
  const std::size_t all = a.size() + b.size() - common;
  return all == 0 ? 0 : static_cast<double>(common) / static_cast<double>(all);
}

inline std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

/// Text of `n` words drawn from a vocabulary of `vocabulary`.
inline std::vector<std::string> random_words(std::mt19937& engine, int n, unsigned vocabulary) {
  std::vector<std::string> words;
  for (int i = 0; i < n; ++i) words.push_back("w" + std::to_string(engine() % vocabulary));
  return words;
}

inline std::string json_line(const std::string& text) { return "{\"text\": \"" + text + "\"}\n"; }

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// What `action` throws says.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

}  // namespace megatron::corpus
