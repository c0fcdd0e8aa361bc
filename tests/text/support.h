#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "megatron/base/files/file.h"
#include "megatron/text/tokenizer.h"
#include "tests/testing/folders.h"

namespace megatron::text {

inline std::filesystem::path golden_folder() { return std::filesystem::path(tests_folder()) / "golden/text"; }

/// A text with what Hugging Face tokenizers makes of it (tests/golden/text/make.py).
struct GoldenCase {
  std::string text;
  std::vector<std::int32_t> ids;
  std::vector<std::string> pieces;
};

inline std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  for (const auto& json : nlohmann::json::parse(read_file(golden_folder() / "cases.json")))
    cases.push_back({json["text"], json["ids"], json["pieces"]});
  return cases;
}

/// Up to `max_parts` parts drawn from characters, contractions, runs and broken bytes that cut text in every way.
inline std::string random_text(std::mt19937& random, std::size_t max_parts) {
  static const std::vector<std::string> parts = {"a",
                                                 "b",
                                                 "s",
                                                 "t",
                                                 "re",
                                                 "ve",
                                                 "m",
                                                 "ll",
                                                 "d",
                                                 "'",
                                                 "'",
                                                 "'s",
                                                 " ",
                                                 " ",
                                                 "  ",
                                                 "\n",
                                                 "\t",
                                                 "\r\n",
                                                 "0",
                                                 "7",
                                                 "12",
                                                 ".",
                                                 "==",
                                                 "-",
                                                 "é",
                                                 "ж",
                                                 "日",
                                                 "한",
                                                 "😀",
                                                 "Ⅷ",
                                                 "٣",
                                                 "½",
                                                 "\u00a0",
                                                 "\u2003",
                                                 "\u3000",
                                                 "\u0301",
                                                 "\u200b",
                                                 "\x80",
                                                 "\xff",
                                                 "\xc3",
                                                 "\xe2\x82",
                                                 "\xf0\x9f\x98",
                                                 "\xed\xa0\x80",
                                                 "\xc0\xaf",
                                                 std::string(1, '\0'),
                                                 "aaaaaaaaaaaaaaaaaaaa"};
  std::string text;
  for (std::size_t n = random() % (max_parts + 1); n > 0; --n) text += parts[random() % parts.size()];
  return text;
}

}  // namespace megatron::text
