#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "megatron/serve/answer_text.h"
#include "megatron/serve/api/responses.h"
#include "megatron/serve/http/server.h"
#include "megatron/serve/metrics.h"
#include "megatron/serve/task.h"
#include "megatron/serve/tools/tool_call_parser.h"

namespace megatron::serve {

/// What a response is made of besides its texts.
struct TextResponseOptions {
  ResponseHead head = {};
  bool stream = false, include_usage = false, echo = false, logprobs = false;
  std::vector<std::int64_t> ends = {};
  std::vector<std::string> stop = {};
  std::optional<ToolParsing> tools = {};  ///< without live and new_id, which each text sets; none: no tools
  std::uint64_t call_key = 0;             ///< of the ids of calls
};

/// The response to one request: its texts are listeners, and say what they hear to one client, at once or at the end.
class TextResponse : public std::enable_shared_from_this<TextResponse> {
 public:
  TextResponse(TextResponseOptions options, const text::Tokenizer& tokenizer, std::shared_ptr<Reply> reply,
               Metrics& metrics)
      : options_(std::move(options)), tokenizer_(tokenizer), reply_(std::move(reply)), metrics_(metrics) {}

  /// The next choice's listener, after whose prompt its text comes. `first_of_prompt`: whose tokens count.
  std::shared_ptr<TextListener> add_choice(const PromptTokens& prompt, bool first_of_prompt);

 private:
  class Choice;

  const char* path() const;
  void begin();
  void say(const ChoicePiece& piece);
  void ended();
  void failed(int status, const std::string& message);

  TextResponseOptions options_;
  const text::Tokenizer& tokenizer_;
  std::shared_ptr<Reply> reply_;
  Metrics& metrics_;
  std::mutex mutex_;                 ///< texts are written on one thread; those that wait may be ended by another
  std::vector<ChoicePiece> pieces_;  ///< by choice, where nothing is streamed
  std::size_t open_ = 0;
  Usage usage_;
  bool begun_ = false;
  std::atomic<bool> failed_{false};  ///< nobody waits for its other texts any more
};

}  // namespace megatron::serve
