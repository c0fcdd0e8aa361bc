#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "app/print.h"
#include "megatron/text/texts.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {

/// A text on stdout as it is written, id by id.
class TextStream {
 public:
  /// `ends`: tokens without a text.
  TextStream(const text::Tokenizer& tokenizer, std::vector<std::int64_t> ends)
      : tokenizer_(tokenizer), ends_(std::move(ends)), decoder_(tokenizer) {}

  void push(const std::vector<std::int64_t>& ids) {
    std::string text;
    for (const std::int32_t id : text::ids_with_text(tokenizer_, ids, ends_)) text += decoder_.push(id);
    show(text);
  }

  /// What is still to come, and the end of the line.
  void finish() { show(decoder_.finish() + "\n"); }

 private:
  static void show(const std::string& text) {
    print_text(text);
    std::fflush(stdout);
  }

  text::Tokenizer tokenizer_;
  std::vector<std::int64_t> ends_;
  text::StreamDecoder decoder_;
};

}  // namespace megatron::app
