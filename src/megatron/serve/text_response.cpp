#include "megatron/serve/text_response.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/base/text/format.h"
#include "megatron/serve/api/api_error.h"
#include "megatron/serve/error_response.h"

namespace megatron::serve {

class TextResponse::Choice : public TextListener {
 public:
  Choice(std::shared_ptr<TextResponse> response, std::int64_t index, const PromptTokens& prompt, bool counts_prompt)
      : response_(std::move(response)),
        index_(index),
        counts_prompt_(counts_prompt),
        text_(response_->tokenizer_, response_->options_.echo ? std::vector<std::int64_t>() : with_text(prompt),
              response_->options_.ends, response_->options_.stop),
        prompt_(response_->options_.echo ? prompt : PromptTokens()) {
    if (!options().tools) return;
    ToolParsing parsing = *options().tools;
    parsing.live = options().stream;
    parsing.new_id = [this](std::size_t call) { return new_call_id(call); };
    calls_.emplace(std::move(parsing));
  }

  void on_cached(std::int64_t tokens) override;
  void on_prompt(std::vector<ScoredToken> tokens) override { scores_ = std::move(tokens); }
  bool on_token(const ScoredToken& token) override;
  void on_end(Finish finish) override;
  void on_error(int status, const std::string& message) override { response_->failed(status, message); }
  bool gone() const override { return response_->failed_ || response_->reply_->gone(); }

 private:
  /// What the user wrote.
  static std::vector<std::int64_t> with_text(const PromptTokens& prompt) {
    return {prompt.ids.begin() + static_cast<std::ptrdiff_t>(prompt.opening), prompt.ids.end()};
  }
  const TextResponseOptions& options() const { return response_->options_; }
  /// The prompt as a part of the text.
  std::string echoed();
  void say(ToolPiece said, std::optional<Finish> finish);
  /// What a text adds to the answer, `ends` where nothing follows: its calls are told from it.
  ToolPiece parsed(std::string text, bool ends);
  std::string new_call_id(std::size_t call) const;

  std::shared_ptr<TextResponse> response_;
  std::int64_t index_;
  bool counts_prompt_;       ///< its prompt's tokens are part of the usage
  std::int64_t cached_ = 0;  ///< of them
  AnswerText text_;
  PromptTokens prompt_;                ///< that is still to be echoed
  std::vector<ScoredToken> scores_;    ///< of tokens that were not said yet
  std::vector<std::int64_t> offsets_;  ///< of them in the text
  ToolPiece held_;                     ///< where nothing is streamed
  std::optional<ToolCallParser> calls_;
  bool first_ = true;
};

std::string TextResponse::Choice::echoed() {
  const PromptTokens prompt = std::exchange(prompt_, {});
  if (prompt.ids.empty()) return "";
  std::string text;
  if (options().logprobs) offsets_.assign(prompt.opening, 0);
  for (const std::int64_t token : with_text(prompt)) {
    text += text_.pass(token);
    if (options().logprobs) offsets_.push_back(text_.offset());
  }
  return text;
}

void TextResponse::Choice::on_cached(std::int64_t tokens) {
  if (!counts_prompt_) return;
  const std::lock_guard lock(response_->mutex_);
  response_->usage_.cached += tokens - std::exchange(cached_, tokens);
}

bool TextResponse::Choice::on_token(const ScoredToken& token) {
  std::string text = echoed();
  text += text_.push(token.id);
  const bool ends = std::ranges::count(options().ends, token.id) > 0;
  // A completion's tokens are all of them; those who score continuations leave the last one out (lm-eval).
  if (options().logprobs && !(ends && options().head.chat)) {
    scores_.push_back(token);
    offsets_.push_back(text_.offset());
  }
  {
    const std::lock_guard lock(response_->mutex_);
    ++response_->usage_.completion;
  }
  ToolPiece said = parsed(std::move(text), false);
  if (options().stream && (!said.empty() || first_))
    say(std::move(said), std::nullopt);
  else if (!options().stream)
    held_.add(said);
  return !text_.stopped() && !(calls_ && calls_->full());
}

void TextResponse::Choice::on_end(Finish finish) {
  ToolPiece said = std::exchange(held_, {});
  std::string text = echoed() + (text_.stopped() ? "" : text_.finish());
  said.add(parsed(std::move(text), true));
  Finish how = text_.stopped() ? Finish::Stop : finish;
  if (how == Finish::Stop && calls_ && calls_->calls() > 0) how = Finish::ToolCalls;
  say(std::move(said), how);
  response_->ended();
}

ToolPiece TextResponse::Choice::parsed(std::string text, bool ends) {
  if (!calls_) return {.text = std::move(text)};
  ToolPiece said = calls_->push(text);
  if (ends) said.add(calls_->finish());
  return said;
}

std::string TextResponse::Choice::new_call_id(std::size_t call) const {
  std::uint64_t key = stream_key(options().call_key, concat(index_, " ", call));
  if (!options().tools->syntax->short_ids) return fmt::format("call_{:016x}", key);
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id;
  for (int i = 0; i < 9; ++i, key /= kLetters.size()) id += kLetters[key % kLetters.size()];
  return id;
}

void TextResponse::Choice::say(ToolPiece said, std::optional<Finish> finish) {
  ChoicePiece piece{.index = index_,
                    .text = std::move(said.text),
                    .first = std::exchange(first_, false),
                    .finish = finish,
                    .logprobs = nullptr,
                    .calls = std::move(said.calls)};
  if (options().logprobs && (!scores_.empty() || !options().stream)) {
    piece.logprobs = log_probabilities(response_->tokenizer_, options().head.chat, scores_, offsets_);
    scores_.clear();
    offsets_.clear();
  }
  response_->say(piece);
}

std::shared_ptr<TextListener> TextResponse::add_choice(const PromptTokens& prompt, bool first_of_prompt) {
  const auto choice =
      std::make_shared<Choice>(shared_from_this(), static_cast<std::int64_t>(open_), prompt, first_of_prompt);
  if (first_of_prompt) usage_.prompt += std::ssize(prompt.ids);
  pieces_.emplace_back();
  ++open_;
  return choice;
}

// With the first piece: an error before it has a status of its own.
void TextResponse::begin() {
  if (std::exchange(begun_, true)) return;
  metrics_.add("megatron_requests_total", 1, {{"path", path()}, {"status", "200"}});
  reply_->begin({.type = "text/event-stream; charset=utf-8", .body = {}});
}

const char* TextResponse::path() const { return options_.head.chat ? "/v1/chat/completions" : "/v1/completions"; }

void TextResponse::say(const ChoicePiece& piece) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  if (options_.stream) {
    begin();
    reply_->write(event(chunk_json(options_.head, piece)));
  } else {
    pieces_[static_cast<std::size_t>(piece.index)] = piece;
  }
}

void TextResponse::ended() {
  const std::lock_guard lock(mutex_);
  if (failed_ || --open_ > 0) return;
  if (!options_.stream) {
    metrics_.add("megatron_requests_total", 1, {{"path", path()}, {"status", "200"}});
    return reply_->send({.body = response_json(options_.head, pieces_, usage_)});
  }
  if (options_.include_usage) reply_->write(event(usage_chunk_json(options_.head, usage_)));
  reply_->write(kStreamEnd);
  reply_->end();
}

void TextResponse::failed(int status, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (failed_.exchange(true)) return;
  const ApiError error = text_error(status, message);
  if (begun_) {
    reply_->write(event(error_json(error)));
    return reply_->end();
  }
  metrics_.add("megatron_requests_total", 1, {{"path", path()}, {"status", std::to_string(status)}});
  reply_->send(error_response(error));
}

}  // namespace megatron::serve
