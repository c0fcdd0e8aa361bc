#include "megatron/generate/speculate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <span>

#include "megatron/comm/group.h"
#include "megatron/plan/cost/kv_cache.h"

namespace megatron::generate {
namespace {

using Tokens = std::vector<std::int64_t>;

/// The text of one prompt, under way.
class DraftedText {
 public:
  DraftedText(const StagedModel& model, model::Drafter* drafter, const Tokens& prompt, std::int64_t limit)
      : model_(model),
        drafter_(drafter),
        all_(prompt),
        cache_(model.make_cache(1, static_cast<std::int64_t>(prompt.size()) + limit)) {
    if (drafter_ != nullptr) drafter_->begin(cache_.capacity);
  }

  /// Logits [1, vocab] after the prompt.
  at::Tensor read_prompt() { return read(all_, /*all=*/false); }
  /// Logits [1 + drafts, vocab] after the last token, and after each of its drafts.
  at::Tensor read_drafts(const Tokens& drafts) {
    Tokens next{all_.back()};
    next.insert(next.end(), drafts.begin(), drafts.end());
    return read(next, /*all=*/true);
  }
  /// `count` tokens that are likely to come next, the same on every rank.
  Tokens draft(std::int64_t count) {
    if (count == 0) return {};
    const comm::Group& stages = model_.stages();
    at::Tensor drafts = at::empty({count}, at::TensorOptions().dtype(at::kLong).device(model_.device()));
    if (drafter_ != nullptr) drafts.copy_(at::tensor(drafter_->draft(all_, count), at::kLong));
    stages.broadcast(drafts, stages.size() - 1);
    drafts = drafts.to(at::kCPU);
    return {drafts.const_data_ptr<std::int64_t>(), drafts.const_data_ptr<std::int64_t>() + count};
  }
  void add(std::int64_t token) { all_.push_back(token); }
  /// Drops rejected drafts from the cache, which then ends before the text's last token.
  void forget_the_rest() { cache_.length = std::min(cache_.length, static_cast<std::int64_t>(all_.size()) - 1); }

 private:
  at::Tensor read(const Tokens& tokens, bool all) {
    const auto input = at::tensor(tokens, at::TensorOptions().dtype(at::kLong).device(model_.device())).unsqueeze(0);
    const std::int64_t first = cache_.length;
    at::Tensor states;
    const at::Tensor logits = all ? model_.forward_all(input, cache_, &states) : model_.forward(input, cache_, &states);
    if (drafter_ != nullptr) drafter_->see(states, first);
    return logits.to(at::kCPU, at::kDouble).contiguous();
  }

  const StagedModel& model_;
  model::Drafter* drafter_;
  Tokens all_;
  model::KvCache cache_;
};

}  // namespace

std::int64_t largest_text_bytes(const std::vector<Tokens>& prompts, const GenerateOptions& options,
                                const plan::ModelShape& shape, std::int64_t element_bytes, int tp) {
  std::int64_t row = numbers_of_row(shape, tp);
  for (std::int64_t k = 0; k < shape.mtp_depths; ++k)  // on each rank of the last stage, states too
    row += tp * (plan::cache_widths(shape.prediction_depth(k).layer.attention(), tp).numbers() + shape.hidden);
  std::int64_t most = 0;
  for (const Tokens& prompt : prompts) {
    const auto before = static_cast<std::int64_t>(prompt.size());
    const std::int64_t limit = std::min(options.max_new_tokens, shape.max_positions - before);
    if (limit > 0) most = std::max(most, (before + limit) * row * element_bytes);
  }
  return most > 0 ? most + (1 + shape.mtp_depths) * logits_bytes_of(shape) : 0;
}

std::vector<Tokens> speculate(const StagedModel& model, model::Drafter* drafter, std::int64_t tokens,
                              const std::vector<Tokens>& prompts, const GenerateOptions& options, Speculation& counts,
                              const OnToken& on_token) {
  const std::int64_t context = model.options().shape.max_positions;
  check(prompts, context, options);
  const std::vector<Draws> draws = draws_of(prompts, options.seed);
  std::vector<Tokens> texts(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto before = static_cast<std::int64_t>(prompts[i].size());
    const std::int64_t limit = std::min(options.max_new_tokens, context - before);
    if (limit <= 0) continue;
    DraftedText text(model, drafter, prompts[i], limit);
    at::Tensor logits = text.read_prompt();
    Tokens drafts;
    for (bool ended = false; !ended;) {
      const auto vocab = static_cast<std::size_t>(logits.size(1));
      counts.draft_tokens += std::ssize(drafts);
      bool follows = true;  // the logits are those of the text
      for (std::size_t j = 0; follows && !ended; ++j) {
        const std::int64_t position = before + static_cast<std::int64_t>(texts[i].size());
        const std::span<const double> row(logits.const_data_ptr<double>() + j * vocab, vocab);
        require_finite(row, position);
        const std::int64_t token = sample(row, options.sampling, draws[i].at(position));
        if (options.on_logits) options.on_logits(i, row, token);
        texts[i].push_back(token);
        text.add(token);
        if (on_token) on_token(i, token);
        follows = j < drafts.size() && drafts[j] == token;
        if (follows) ++counts.accepted_tokens;
        ended = std::ranges::count(options.ends, token) > 0 || std::ssize(texts[i]) == limit;
      }
      if (ended) break;
      text.forget_the_rest();
      const std::int64_t left = limit - static_cast<std::int64_t>(std::ssize(texts[i]));
      drafts = text.draft(std::min(tokens, left - 1));  // one more is drawn behind them
      logits = text.read_drafts(drafts);
      ++counts.passes;
    }
  }
  return texts;
}

}  // namespace megatron::generate
