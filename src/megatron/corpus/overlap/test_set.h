#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::corpus {

/// Texts that a model will be tested on.
struct TestSetOptions {
  std::vector<std::string> inputs = {};
  /// As the formats of text_reader.h (auto, jsonl, lines, paragraphs, file), or wikitext (an article is a document; it
  /// begins with a line " = Title = "), or squad (SQuAD's JSON, 1.1 and 2.0).
  std::string format = "auto";
  /// jsonl: the key of the text; of an array each string is a document. squad: question or context. Empty: "text" and,
  /// as Megatron-LM's tool takes it, "question".
  std::string key = "";
};

/// Calls `document(text, file, number)` for each document; number: its line from 1, or for squad which it is, from 1.
/// Throws ConfigError for what is not in the format.
void read_test_set(const TestSetOptions& options,
                   const std::function<void(std::string_view, const std::string&, std::int64_t)>& document);

}  // namespace megatron::corpus
