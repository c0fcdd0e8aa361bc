#include "megatron/generate/answer.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::generate {
namespace {

using Texts = std::vector<std::vector<std::int64_t>>;

constexpr std::int64_t kMaxTokens = 1 << 20;  // of a text

/// The texts in their order, in groups that options.group_bytes hold.
std::vector<std::vector<std::size_t>> groups_of(const Texts& texts, const AnswerOptions& options,
                                                const plan::ModelShape& shape) {
  const std::int64_t layers = shape.num_layers - shape.encoder_layers, beams = options.beams.num_beams;
  const std::int64_t token_bytes = 2 * layers * shape.num_heads * shape.head() * std::int64_t{4};
  const std::int64_t logits_bytes = shape.padded_vocab * std::int64_t{4 + 8};
  std::vector<std::vector<std::size_t>> groups;
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    longest = std::max<std::int64_t>(longest, std::ssize(texts[i]));
    const std::int64_t text_bytes =
        (longest + beams * options.beams.max_new_tokens) * token_bytes + beams * logits_bytes;
    if (groups.empty() || std::ssize(groups.back()) >= options.group_bytes / text_bytes) {
      groups.emplace_back();
      longest = std::ssize(texts[i]);
    }
    groups.back().push_back(i);
  }
  return groups;
}

/// The texts of one group whose answers are under way.
class Batch {
 public:
  /// The references must outlive this. `draws`: of each text.
  Batch(const StagedT5& model, const Texts& texts, const std::vector<Draws>& draws, std::vector<std::size_t> group,
        const AnswerOptions& options);

  bool empty() const { return group_.empty(); }
  /// Writes one token of every answer; texts whose search is over put theirs into `found`.
  void step(std::vector<std::vector<Beam>>& found, const OnToken& on_token);

 private:
  bool draws_tokens() const { return options_.sampling.temperature > 0; }
  /// Advances the search of text `t` of the batch by a token. logarithms: [its answers, vocab].
  void choose(std::size_t t, const at::Tensor& logarithms);
  at::Tensor row(const std::vector<std::int64_t>& ids) const {
    return at::tensor(ids, at::kLong).to(model_.tensor().device());
  }

  const StagedT5& model_;
  const Texts& texts_;
  const std::vector<Draws>& draws_;
  const AnswerOptions& options_;
  std::vector<std::size_t> group_;    ///< which texts
  std::vector<BeamSearch> searches_;  ///< of each of them
  model::T5Cache cache_;
  std::vector<std::int64_t> next_;  ///< the token of each answer with which the next step begins
};

Batch::Batch(const StagedT5& model, const Texts& texts, const std::vector<Draws>& draws, std::vector<std::size_t> group,
             const AnswerOptions& options)
    : model_(model),
      texts_(texts),
      draws_(draws),
      options_(options),
      group_(std::move(group)),
      searches_(group_.size(), BeamSearch(options.beams)),
      next_(group_.size(), options.start) {
  std::size_t longest = 0, shortest = std::numeric_limits<std::size_t>::max();
  for (const std::size_t i : group_) {
    longest = std::max(longest, texts[i].size());
    shortest = std::min(shortest, texts[i].size());
  }
  auto tokens = at::zeros({std::ssize(group_), static_cast<std::int64_t>(longest)}, at::kLong);
  auto lengths = at::zeros({std::ssize(group_)}, at::kInt);
  for (std::size_t r = 0; r < group_.size(); ++r) {
    const auto& text = texts[group_[r]];
    std::ranges::copy(text, tokens.mutable_data_ptr<std::int64_t>() + r * longest);
    lengths.mutable_data_ptr<std::int32_t>()[r] = static_cast<std::int32_t>(text.size());
  }
  const at::Device device = model.tensor().device();
  cache_ = model.read(tokens.to(device), shortest < longest ? lengths.to(device) : at::Tensor());
}

void Batch::choose(std::size_t t, const at::Tensor& logarithms) {
  BeamSearch& search = searches_[t];
  const auto count = static_cast<std::size_t>(logarithms.numel());
  if (!draws_tokens()) return search.step({logarithms.const_data_ptr<float>(), count});
  const std::span<const double> row(logarithms.const_data_ptr<double>(), count);
  const std::int64_t position = std::ssize(texts_[group_[t]]) + search.length();
  require_finite(row, position);
  const std::int64_t token = sample(row, options_.sampling, draws_[group_[t]].at(position));
  search.take(token, row[static_cast<std::size_t>(token)]);
}

void Batch::step(std::vector<std::vector<Beam>>& found, const OnToken& on_token) {
  const auto logits = model_.write(row(next_), cache_).to(at::kCPU, draws_tokens() ? at::kDouble : at::kFloat);
  const auto logarithms = at::log_softmax(logits, -1).contiguous();
  std::vector<std::int64_t> rows, kept;
  std::size_t first = 0;  // row of the first answer to a text
  next_.clear();
  for (std::size_t t = 0; t < group_.size(); ++t) {
    BeamSearch& search = searches_[t];
    const std::size_t answers = search.going_on().size();
    choose(t, logarithms.narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(answers)));
    if (on_token && options_.beams.num_beams == 1) on_token(group_[t], search.last_token());
    for (const BeamSearch::Step& next : search.going_on()) {
      rows.push_back(static_cast<std::int64_t>(first + next.from));
      next_.push_back(next.token);
    }
    first += answers;
    if (search.going_on().empty())
      found[group_[t]] = search.ended();
    else
      kept.push_back(static_cast<std::int64_t>(t));
  }
  bool same = rows.size() == first;
  for (std::size_t r = 0; same && r < first; ++r) same = rows[r] == static_cast<std::int64_t>(r);
  if (!same && !rows.empty()) cache_.keep(row(rows), row(kept));
  for (std::size_t t = 0; t < kept.size(); ++t) {
    const auto from = static_cast<std::size_t>(kept[t]);
    if (from == t) continue;
    group_[t] = group_[from];
    searches_[t] = std::move(searches_[from]);
  }
  group_.resize(kept.size());
  searches_.erase(searches_.begin() + std::ssize(kept), searches_.end());
}

}  // namespace

void check(const Texts& texts, std::int64_t vocab, const AnswerOptions& options) {
  check(options.beams, vocab);
  check(options.sampling);
  if (options.sampling.temperature > 0 && options.beams.num_beams > 1)
    throw ConfigError(
        rule_got_fix("num-beams above 1 looks for the likeliest text, where temperature must be 0.",
                     concat("num-beams ", options.beams.num_beams, ", temperature ", options.sampling.temperature),
                     "--temperature 0"));
  for (std::size_t i = 0; i < texts.size(); ++i)
    if (texts[i].empty() || std::ssize(texts[i]) > kMaxTokens)
      throw ConfigError(rule_got_fix(concat("a prompt must have 1 … ", kMaxTokens, " tokens."),
                                     concat(texts[i].size(), " in prompt ", i),
                                     texts[i].empty() ? "write something in it" : "a shorter prompt"));
}

std::vector<std::vector<Beam>> answers(const StagedT5& model, const Texts& texts, const AnswerOptions& options,
                                       const OnToken& on_token) {
  const plan::ModelShape& shape = model.options().shape;
  check(texts, shape.vocab, options);
  std::vector<std::vector<Beam>> found(texts.size());
  const std::vector<Draws> draws = draws_of(texts, options.seed);
  for (auto& group : groups_of(texts, options, shape)) {
    Batch batch(model, texts, draws, std::move(group), options);
    while (!batch.empty()) batch.step(found, on_token);
  }
  return found;
}

}  // namespace megatron::generate
