#include "megatron/generate/generate.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/model/decoding/token_graph.h"
#include "megatron/plan/cost/kv_cache.h"

namespace megatron::generate {
namespace {

using Prompts = std::vector<std::vector<std::int64_t>>;

/// Tokens that the text of a prompt may get.
std::int64_t limit_of(const std::vector<std::int64_t>& prompt, const GenerateOptions& options, std::int64_t context) {
  return std::min(options.max_new_tokens, context - static_cast<std::int64_t>(prompt.size()));
}

/// Rows of a cache that some texts need, aligned at the ends of their prompts.
struct Room {
  std::int64_t longest = 0, most_new = 0, texts = 0;

  void add(const std::vector<std::int64_t>& prompt, std::int64_t limit) {
    longest = std::max(longest, static_cast<std::int64_t>(prompt.size()));
    most_new = std::max(most_new, limit);
    ++texts;
  }
  std::int64_t capacity() const { return longest + most_new; }
};

/// The prompts that get any tokens, in their order, in groups that options.group_bytes hold.
std::vector<std::vector<std::size_t>> groups_of(const Prompts& prompts, const GenerateOptions& options,
                                                const plan::ModelShape& shape) {
  const std::int64_t row_bytes = numbers_of_row(shape, 1) * std::int64_t{4}, logits_bytes = logits_bytes_of(shape);
  std::vector<std::vector<std::size_t>> groups;
  Room room;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::int64_t limit = limit_of(prompts[i], options, shape.max_positions);
    if (limit <= 0) continue;
    Room more = room;
    more.add(prompts[i], limit);
    if (groups.empty() || more.texts > options.group_bytes / (more.capacity() * row_bytes + logits_bytes)) {
      groups.emplace_back();
      more = Room();
      more.add(prompts[i], limit);
    }
    groups.back().push_back(i);
    room = more;
  }
  return groups;
}

/// The texts of one group that are under way: row r of the batch is text rows[r].
class Batch {
 public:
  /// `rows`: at least one prompt. The references must outlive this.
  Batch(const StagedModel& model, const Prompts& prompts, const std::vector<Draws>& draws,
        std::vector<std::size_t> rows, const GenerateOptions& options);
  // The graph has a reference to the cache.
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  bool empty() const { return rows_.empty(); }
  /// Draws one token for each row into `texts`, and lets go of the rows that have ended.
  void step(Prompts& texts, const OnToken& on_token);

 private:
  /// Which token each row of the batch gets; of one that has ended any.
  std::vector<std::int64_t> next_tokens(const Prompts& texts);
  std::vector<std::int64_t> drawn(const at::Tensor& logits, const Prompts& texts) const;
  /// What drawn() gives, from what the graph has listed; from its logits where that is not enough.
  std::vector<std::int64_t> drawn_from_lists(const Prompts& texts) const;
  /// Lets go of the rows that have ended, and has the others continue with `tokens`.
  void continue_with(const std::vector<std::int64_t>& tokens);
  /// By what the graph draws.
  kernels::TokenDraws draws_on_device() const;
  std::int64_t position(std::size_t i, const Prompts& texts) const {
    return static_cast<std::int64_t>(prompts_[i].size() + texts[i].size());
  }
  /// Tokens that text `i` may get.
  std::int64_t limit(std::size_t i) const {
    return limit_of(prompts_[i], options_, model_.options().shape.max_positions);
  }
  at::TensorOptions ids() const { return at::TensorOptions().dtype(at::kLong).device(model_.device()); }

  const StagedModel& model_;
  const Prompts& prompts_;
  const GenerateOptions& options_;
  const std::vector<Draws>& draws_;  ///< of each prompt
  std::vector<std::size_t> rows_;
  std::vector<bool> ended_;  ///< of each row
  model::KvCache cache_;
  at::Tensor input_;                          ///< [rows, s]: what the next step feeds where there is no graph
  std::unique_ptr<model::TokenGraph> graph_;  ///< once the prompts are in the cache, where it can be had
  bool chosen_ = false;                       ///< whether the token that the graph chooses is what is asked for
  int listed_ = 0;                            ///< how many of the likeliest it lists, to draw from; 0: all logits
};

Batch::Batch(const StagedModel& model, const Prompts& prompts, const std::vector<Draws>& draws,
             std::vector<std::size_t> rows, const GenerateOptions& options)
    : model_(model),
      prompts_(prompts),
      options_(options),
      draws_(draws),
      rows_(std::move(rows)),
      ended_(rows_.size(), false),
      chosen_(!options.on_logits &&
              (options.sampling.temperature == 0 ||
               (draws_from_all(options.sampling) && model.options().shape.vocab <= kernels::kMostDrawn))),
      listed_(options.on_logits ? 0 : shortlist_of(options.sampling)) {
  Room room;
  for (const std::size_t i : rows_) room.add(prompts[i], limit(i));
  const std::int64_t longest = room.longest;
  const auto b = static_cast<std::int64_t>(rows_.size());
  cache_ = model.make_cache(b, room.capacity());
  // Aligned at their ends: the rows before a shorter prompt are padding, which no token sees.
  auto tokens = at::zeros({b, longest}, at::kLong), padding = at::zeros({b}, at::kLong);
  for (std::int64_t r = 0; r < b; ++r) {
    const auto& prompt = prompts[rows_[static_cast<std::size_t>(r)]];
    const std::int64_t gap = longest - static_cast<std::int64_t>(prompt.size());
    padding[r] = gap;
    tokens[r].slice(0, gap).copy_(at::tensor(prompt, at::kLong));
  }
  cache_.padding = padding.to(model_.device());
  input_ = tokens.to(model_.device());
}

std::vector<std::int64_t> Batch::drawn(const at::Tensor& logits, const Prompts& texts) const {
  const auto on_host = logits.to(at::kCPU, at::kDouble).contiguous();
  const auto vocab = static_cast<std::size_t>(on_host.size(1));
  std::vector<std::int64_t> tokens;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    tokens.push_back(0);
    if (ended_[r]) continue;
    const std::size_t i = rows_[r];
    const std::span<const double> row(on_host.const_data_ptr<double>() + r * vocab, vocab);
    require_finite(row, position(i, texts));
    tokens.back() = sample(row, options_.sampling, draws_[i].at(position(i, texts)));
    if (options_.on_logits) options_.on_logits(i, row, tokens.back());
  }
  return tokens;
}

std::vector<std::int64_t> Batch::drawn_from_lists(const Prompts& texts) const {
  const auto lists = graph_->listed();
  const auto vocab = static_cast<std::size_t>(graph_->logits().size(1));
  std::vector<std::int64_t> tokens(rows_.size(), 0);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (ended_[r]) continue;
    const double uniform = draws_[rows_[r]].at(position(rows_[r], texts));
    const auto token = lists[r] ? sample(*lists[r], vocab, options_.sampling, uniform) : std::nullopt;
    if (!token) return drawn(graph_->logits(), texts);
    tokens[r] = *token;
  }
  return tokens;
}

kernels::TokenDraws Batch::draws_on_device() const {
  std::vector<std::int64_t> keys, copies;
  for (const std::size_t i : rows_) {
    keys.push_back(static_cast<std::int64_t>(draws_[i].key()));
    copies.push_back(static_cast<std::int64_t>(draws_[i].copy()));
  }
  return {.key_b = at::tensor(keys, at::kLong),
          .copy_b = at::tensor(copies, at::kLong),
          .temperature = options_.sampling.temperature,
          .min_p = options_.sampling.min_p};
}

std::vector<std::int64_t> Batch::next_tokens(const Prompts& texts) {
  if (!graph_) return drawn(model_.forward(input_, cache_), texts);
  graph_->step();
  if (!chosen_) return listed_ > 0 ? drawn_from_lists(texts) : drawn(graph_->logits(), texts);
  auto tokens = graph_->chosen();
  for (std::size_t r = 0; r < rows_.size(); ++r)
    if (tokens[r] < 0 && !ended_[r]) return drawn(graph_->logits(), texts);  // which says what is not finite
  return tokens;
}

void Batch::step(Prompts& texts, const OnToken& on_token) {
  const auto tokens = next_tokens(texts);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (ended_[r]) continue;
    const std::size_t i = rows_[r];
    texts[i].push_back(tokens[r]);
    if (on_token) on_token(i, tokens[r]);
    ended_[r] = std::ranges::count(options_.ends, tokens[r]) > 0 || std::ssize(texts[i]) == limit(i);
  }
  continue_with(tokens);
}

void Batch::continue_with(const std::vector<std::int64_t>& tokens) {
  std::vector<std::size_t> rows;
  std::vector<std::int64_t> kept, next;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (ended_[r]) continue;
    rows.push_back(rows_[r]);
    kept.push_back(static_cast<std::int64_t>(r));
    next.push_back(tokens[r]);
  }
  // A graph is of a number of rows: those that have ended stay in it until they are half of them.
  if (graph_ && 2 * rows.size() > rows_.size()) {
    if (!chosen_) graph_->feed(tokens);
    return;
  }
  graph_.reset();
  if (rows.size() < rows_.size() && !rows.empty()) cache_.keep(at::tensor(kept, ids()));
  rows_ = std::move(rows);
  ended_.assign(rows_.size(), false);
  if (rows_.empty()) return;
  graph_ = model_.token_graph(cache_);
  if (!graph_) {
    input_ = at::tensor(next, ids()).unsqueeze(1);
    return;
  }
  graph_->feed(next);
  if (chosen_ && options_.sampling.temperature > 0) graph_->draw_by(draws_on_device());
  if (listed_ > 0)
    graph_->list_likeliest(std::min<std::int64_t>(listed_, model_.options().shape.vocab),
                           weighs_all(options_.sampling) ? options_.sampling.temperature : 0);
}

}  // namespace

void check(const Prompts& prompts, std::int64_t context, const GenerateOptions& options) {
  check(options.sampling);
  if (options.max_new_tokens < 0)
    throw ConfigError(rule_got_fix("max-new-tokens must be 0 or above.", concat(options.max_new_tokens),
                                   "--max-new-tokens 64 (the default)"));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto size = static_cast<std::int64_t>(prompts[i].size());
    if (size == 0)
      throw ConfigError(rule_got_fix("a prompt must have at least one token.", concat("none in prompt ", i),
                                     "write something in it"));
    if (size > context)
      throw ConfigError(rule_got_fix(concat("a prompt must fit into the model's context of ", context, " tokens."),
                                     concat("prompt ", i, " has ", size, " tokens"), "a shorter prompt"));
  }
}

std::int64_t numbers_of_row(const plan::ModelShape& shape, int tp) {
  std::int64_t numbers = 0;
  for (std::int64_t l = 0; l < shape.num_layers; ++l)
    numbers += tp * plan::cache_widths(shape.layer(l).attention(), tp).numbers();
  return numbers;
}

std::int64_t logits_bytes_of(const plan::ModelShape& shape) { return shape.padded_vocab * std::int64_t{4 + 8}; }

std::int64_t largest_group_bytes(const Prompts& prompts, const GenerateOptions& options, const plan::ModelShape& shape,
                                 std::int64_t element_bytes, int tp) {
  std::int64_t most = 0;
  for (const auto& group : groups_of(prompts, options, shape)) {
    Room room;
    for (const std::size_t i : group) room.add(prompts[i], limit_of(prompts[i], options, shape.max_positions));
    const std::int64_t text_bytes =
        room.capacity() * numbers_of_row(shape, tp) * element_bytes + logits_bytes_of(shape);
    most = std::max(most, room.texts * text_bytes);
  }
  return most;
}

Prompts generate(const StagedModel& model, const Prompts& prompts, const GenerateOptions& options,
                 const OnToken& on_token) {
  check(prompts, model.options().shape.max_positions, options);
  Prompts texts(prompts.size());
  const std::vector<Draws> draws = draws_of(prompts, options.seed);
  for (auto& group : groups_of(prompts, options, model.options().shape)) {
    Batch batch(model, prompts, draws, std::move(group), options);
    while (!batch.empty()) batch.step(texts, on_token);
  }
  return texts;
}

}  // namespace megatron::generate
