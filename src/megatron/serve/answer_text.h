#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/tokenizer.h"

// A text as it is written, token by token, up to where it is to stop.
namespace megatron::serve {

/// Lets a text through up to the first of some sequences, which may lie across its pieces.
class StopSequences {
 public:
  explicit StopSequences(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// What is certain of the text so far: not what may be the beginning of a sequence.
  std::string push(std::string_view text);
  /// What was held back.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

/// What tokens add to the text of a prompt (text::text_after), as far as it is certain, up to a stop sequence.
class AnswerText {
 public:
  /// `ends`: tokens without a text.
  AnswerText(text::Tokenizer tokenizer, const std::vector<std::int64_t>& prompt, std::vector<std::int64_t> ends,
             std::vector<std::string> stops);

  std::string push(std::int64_t token);
  /// The text of a prompt's token, where that is a part of the text: neither ends nor stop sequences are looked for.
  std::string pass(std::int64_t token) { return text_of(token); }
  /// Where in the whole text, in characters, the token begins that was pushed or passed last.
  std::int64_t offset() const { return offset_; }
  std::string finish();
  bool stopped() const { return stops_.stopped(); }

 private:
  std::string decoded(std::int64_t token);
  std::string text_of(std::int64_t token);
  std::string without_prompt(std::string text);

  text::Tokenizer tokenizer_;
  std::vector<std::int64_t> ends_;
  text::StreamDecoder decoder_;
  StopSequences stops_;
  bool late_;                       ///< a token's text is certain when the next token comes, not before
  std::string of_prompt_;           ///< the text of the prompt that the decoder has not given yet
  std::string tail_;                ///< of a token's bytes, whose others were given: the beginning of a character
  std::vector<std::int32_t> held_;  ///< tokens after it whose text is not certain yet
  std::int64_t characters_ = 0, offset_ = 0;
};

}  // namespace megatron::serve
