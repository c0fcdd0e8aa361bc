#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/generate/sampler.h"
#include "megatron/generate/serving/slot_model.h"
#include "megatron/serve/metrics.h"
#include "megatron/serve/task.h"

namespace megatron::generate {

struct EngineOptions {
  std::int64_t slots = 16;  ///< texts that are written at once
  /// Positions of all their caches, and of those that are kept. While a text's cache grows, its old one is there
  /// besides: at most one context more.
  std::int64_t cache_tokens = 8192;
  /// Tokens of a prompt that are read at once; texts under way get a token each in between. Also the length of the
  /// pieces by which prompts share what was read of them.
  std::int64_t read_tokens = 256;
  bool keep_prefixes = true;  ///< caches of texts that have ended serve prompts that begin alike
  double drain_s = 30;        ///< once stopped, texts under way may take as long
};

/// Writes the texts of a queue, many at once (continuous batching): before each step texts that have ended leave, and
/// others come in where slots and cache are free. What is drawn for a text is a function of its task alone.
class Engine {
 public:
  using Now = std::function<serve::Clock::time_point()>;
  /// All must outlive this.
  Engine(SlotModel& model, serve::TaskQueue& queue, serve::Metrics& metrics, EngineOptions options,
         Now now = serve::Clock::now);

  /// Until the queue is stopped and its texts have ended, or drain_s later.
  void run();
  /// One round: comings and goings, a piece of a prompt, a token of each text. Returns whether there was work.
  bool step();

 private:
  struct Text {
    serve::TextTask task = {};
    Draws draws;
    std::int64_t slot = -1, capacity = 0;  ///< -1: it waits for room
    bool begun = false;                    ///< whether the slot has a cache
    std::int64_t read = 0;                 ///< tokens of the prompt that the slot has
    std::int64_t fed = 0;                  ///< tokens written that it has
    std::vector<std::int64_t> written = {};
    std::map<std::int64_t, std::int64_t> counts = {};  ///< of the tokens written, where penalties ask for them
    std::vector<serve::ScoredToken> prompt_scores = {};
  };
  /// A slot whose text has ended: its first tokens, whole pieces.
  struct Kept {
    std::int64_t slot = 0, capacity = 0;
    std::vector<std::int64_t> tokens = {};
  };
  struct Shared {
    std::int64_t slot = -1, rows = 0;
  };

  using Place = std::list<Text>::iterator;

  void drop_stale();
  void admit();
  /// Whether as many more positions may be taken; caches that are kept go for them, the one used longest ago first.
  bool make_room(std::int64_t tokens);
  /// A slot, where one is free; its cache begins with the first piece of the prompt that is read.
  bool seat(Text& text);
  void begin(Text& text);
  /// Room for one more token, for which the texts that came last give theirs; false where it has to give its own.
  bool grow(Place text);
  /// Takes its slot: what it has written is read again later, token by token, so that it continues with the same bits.
  void unseat(Text& text);
  void drop_slot(std::int64_t slot, std::int64_t capacity);
  /// Of the caches there are, the one that has most of the first `most` tokens, in whole pieces.
  Shared longest_prefix(const std::vector<std::int64_t>& prompt, std::int64_t most) const;
  bool read_piece();
  bool write_tokens();
  void score_prompt(Text& text, std::span<const std::int64_t> piece, const at::Tensor& logits) const;
  /// Takes tokens in that were drawn for `texts`, and lets go of those that have ended.
  void take(const std::vector<Place>& texts, const at::Tensor& logits);
  void end(Place text);
  void fail(Place text, int status, const std::string& message);
  void report();

  SlotModel& model_;
  serve::TaskQueue& queue_;
  serve::Metrics& metrics_;
  EngineOptions options_;
  Now now_;
  std::list<Text> texts_;  ///< in the order in which they came
  std::list<Kept> kept_;   ///< the one used last is the last
  std::vector<std::int64_t> free_slots_;
  std::int64_t used_tokens_ = 0;  ///< positions of all caches
  double rate_ = 0;
  std::optional<serve::Clock::time_point> stopped_at_;
};

/// The token that follows and what the model finds of it: raw `logits`, changed by the task's biases, penalties and
/// mask before the sampler sees them. `counts`: how often each token was written.
serve::ScoredToken next_token(std::span<const double> logits, const serve::TextTask& task, const Draws& draws,
                              std::int64_t position, const std::map<std::int64_t, std::int64_t>& counts);

/// Log-probability of `token` and the `count` likeliest ones.
serve::ScoredToken scored(std::span<const double> logits, std::int64_t token, std::int64_t count);

}  // namespace megatron::generate
