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
#include "megatron/generate/serving/block_pool.h"
#include "megatron/generate/serving/slot_model.h"
#include "megatron/serve/metrics.h"
#include "megatron/serve/task.h"

namespace megatron::generate {

struct EngineOptions {
  std::int64_t slots = 16;  ///< texts that are written at once
  /// Tokens of a prompt that are read at once; texts under way get a token each in between. Prompts that begin alike
  /// share what was read of them in units of as many, or the least multiple of it that is whole blocks.
  std::int64_t read_tokens = 256;
  bool keep_prefixes = true;  ///< prompts share what was read of them, while it is used and until its blocks are needed
  double drain_s = 30;        ///< once stopped, texts under way may take as long
};

/// Writes the texts of a queue, many at once (continuous batching): before each step texts that have ended leave, and
/// others come in where slots and blocks of keys and values are free. What is drawn for a text is a function of its
/// task alone. A text that needs more blocks than there are is refused with 400.
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
    std::int64_t slot = -1;                 ///< -1: it waits for room
    std::vector<std::int64_t> blocks = {};  ///< in the order of its tokens
    BlockPool::Prefix* prefix = nullptr;    ///< which has the first of them
    bool begun = false;                     ///< whether the model knows them
    std::int64_t read = 0;                  ///< tokens of the prompt that are in them
    std::int64_t fed = 0;                   ///< tokens written that are
    std::vector<std::int64_t> written = {};
    std::map<std::int64_t, std::int64_t> counts = {};  ///< of the tokens written, where penalties ask for them
    std::vector<serve::ScoredToken> prompt_scores = {};
  };
  using TextIterator = std::list<Text>::iterator;

  void drop_stale();
  void admit();
  /// Blocks that a text begins with.
  std::int64_t first_blocks(const serve::TextTask& task, std::int64_t written) const;
  /// The longest prefix that the prompt may use; null: none. Its last token is always read: its logits are asked for.
  BlockPool::Prefix* prefix_of(const serve::TextTask& task);
  /// Whether the blocks of a text that waits are there.
  bool fits(const serve::TextTask& task);
  /// The longest prefix there is takes the place of the text's first blocks.
  void share(Text& text);
  /// A slot and blocks, where they are free.
  bool seat(Text& text);
  void begin(Text& text);
  /// Room for one more token, for which the texts that came last give theirs; false where it has to give its own.
  bool grow(TextIterator text);
  /// Takes its blocks: what it has written is read again later, token by token, so that it continues with the same
  /// bits.
  void unseat(Text& text);
  /// Slot and blocks are free again; what others may use of them is kept.
  void leave(Text& text);
  /// What was read of the prompt is there for others, in whole units.
  void offer(Text& text);
  bool read_piece();
  bool write_tokens();
  void score_prompt(Text& text, std::span<const std::int64_t> piece, const at::Tensor& logits) const;
  /// Takes tokens in that were drawn for `texts`, and lets go of those that have ended.
  void take(const std::vector<TextIterator>& texts, const at::Tensor& logits);
  void end(TextIterator text);
  void fail(TextIterator text, int status, const std::string& message);
  void report();

  SlotModel& model_;
  serve::TaskQueue& queue_;
  serve::Metrics& metrics_;
  EngineOptions options_;
  Now now_;
  BlockPool pool_;
  std::list<Text> texts_;  ///< in the order in which they came
  std::vector<std::int64_t> free_slots_;
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
