#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "megatron/serve/api/request.h"
#include "megatron/serve/api/responses.h"
#include "megatron/serve/fair_queue.h"
#include "megatron/serve/metrics.h"

namespace megatron::serve {

using Clock = std::chrono::steady_clock;

/// Which tokens may follow a text (grammar). Members throw ApiError where the text's request is at fault.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  /// Whether token id may come next, by id; `ends`: also whether the text may end.
  virtual const std::vector<bool>& allowed() = 0;
  virtual void take(std::int64_t token) = 0;
};

/// Hears of one text as it is written, on the thread that writes.
class TextListener {
 public:
  virtual ~TextListener() = default;
  /// How many of the prompt's tokens need not be read, as their keys and values are there. Before all others; again
  /// where the text starts over.
  virtual void on_cached(std::int64_t /*tokens*/) {}
  /// The prompt's tokens with their log-probabilities, where these were asked for.
  virtual void on_prompt(std::vector<ScoredToken> /*tokens*/) {}
  /// A token; returns whether the text is to continue.
  virtual bool on_token(const ScoredToken& token) = 0;
  virtual void on_end(Finish finish) = 0;
  /// What a model that writes nothing makes of the whole text, in place of tokens and their end.
  virtual void on_embedding(const std::vector<float>& /*embedding*/) {}
  /// The text ends here, by an error of ours or because its time is over.
  virtual void on_error(int status, const std::string& message) = 0;
  /// Whether nobody waits for the text any more. Asked from any thread.
  virtual bool gone() const = 0;
};

/// A prompt as the model reads it.
struct PromptTokens {
  std::vector<std::int64_t> ids;
  std::size_t opening = 0;  ///< of them, that were set before the text of the prompt (text::opening_of())
};

/// A text to write.
struct TextTask {
  std::vector<std::int64_t> prompt = {};  ///< at least one token
  std::int64_t adapter = 0;               ///< of the model's, by its number from 1 on; 0: none
  std::int64_t max_tokens = 0;            ///< prompt and these fit into the context
  std::vector<std::int64_t> ends = {};    ///< tokens that end it
  Sampling sampling = {};
  std::uint64_t seed = 0;
  std::int64_t copy = 0;                      ///< of the same prompt in the request (generate::Draws)
  std::optional<std::int64_t> logprobs = {};  ///< likeliest tokens with each
  bool prompt_logprobs = false;
  std::shared_ptr<TokenMask> mask = {};  ///< or null
  std::string client = {};               ///< who shares the queue's fairness
  std::shared_ptr<TextListener> listener = {};
  Clock::time_point arrived = {}, deadline = {};
};

struct QueueLimits {
  std::size_t texts = 256, texts_of_client = 128;
};

/// Texts that wait to be written: put in by those who answer requests, taken out by the thread that writes.
class TaskQueue {
 public:
  explicit TaskQueue(const QueueLimits& limits) : queue_(limits.texts, limits.texts_of_client) {}

  /// All of a request's texts, or none. Throws ApiError 429 with a time to try again where they are too many, 503 once
  /// stop() was called.
  void submit(std::vector<TextTask> tasks);

  /// The next text, if any waits for which fits(task).
  template <class Fits>
  std::optional<TextTask> take_if(const Fits& fits) {
    const std::lock_guard lock(mutex_);
    if (queue_.empty() || !fits(queue_.front())) return std::nullopt;
    return queue_.pop();
  }
  /// Texts that nobody waits for, or whose time is over at `now`, which will not be written.
  std::vector<TextTask> take_stale(Clock::time_point now);

  /// Returns when a text waits, stop() was called or `most` has passed.
  void wait(std::chrono::milliseconds most);
  /// Forgets what waits.
  void clear();
  /// From now on nothing is taken in.
  void stop();
  bool stopped() const;
  std::size_t size() const;

  /// Tokens a second that have been written lately, by which the time to try again is told.
  void set_rate(double tokens_per_s);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  FairQueue<TextTask> queue_;
  bool stopped_ = false;
  double tokens_per_s_ = 0;
};

/// Seconds after which a client may try again where `tokens` wait in front of it: 1 to 60.
int retry_after_s(double tokens, double tokens_per_s);

/// Ends the tasks that wait beyond their deadlines, or whose clients are gone, by 503; `metrics` counts them
/// (megatron_texts_total).
void end_stale(TaskQueue& queue, Metrics& metrics, Clock::time_point now);
/// Ends all that waits by 503: the server is stopping.
void end_waiting(TaskQueue& queue);

}  // namespace megatron::serve
