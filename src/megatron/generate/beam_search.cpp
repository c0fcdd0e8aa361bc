#include "megatron/generate/beam_search.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::generate {
namespace {

constexpr std::int64_t kMaxBeams = 1 << 10, kMaxTokens = 1 << 20;
constexpr double kMaxPenalty = 20;

struct Candidate {
  double score;  ///< sum of logarithms
  std::size_t beam;
  std::int64_t token;
};

bool better(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : std::tie(a.beam, a.token) < std::tie(b.beam, b.token);
}

/// How many continuations are looked at: as many as continue, for each way to end and once more.
std::int64_t looked_at(const BeamOptions& options) {
  return options.num_beams * std::max<std::int64_t>(2, 1 + std::ssize(options.ends));
}

/// The `count` best continuations of the beams, best first.
std::vector<Candidate> best_continuations(const std::vector<Beam>& beams, std::span<const float> logarithms,
                                          std::size_t count) {
  const std::size_t vocab = logarithms.size() / beams.size();
  std::vector<Candidate> best;  // a heap, the worst of them first
  best.reserve(count + 1);
  for (std::size_t beam = 0; beam < beams.size(); ++beam) {
    const std::span<const float> row = logarithms.subspan(beam * vocab, vocab);
    // Softmax spreads what is not finite over the row.
    if (!std::isfinite(row[0])) throw std::runtime_error("the model's logits are not finite");
    for (std::size_t token = 0; token < vocab; ++token) {
      const Candidate next{beams[beam].score + static_cast<double>(row[token]), beam, static_cast<std::int64_t>(token)};
      if (best.size() == count && !better(next, best.front())) continue;
      best.push_back(next);
      std::ranges::push_heap(best, better);
      if (best.size() <= count) continue;
      std::ranges::pop_heap(best, better);
      best.pop_back();
    }
  }
  std::ranges::sort_heap(best, better);
  return best;
}

void keep_best(std::vector<Beam>& beams, std::size_t count) {
  std::ranges::stable_sort(beams, [](const Beam& a, const Beam& b) { return a.score > b.score; });
  if (beams.size() > count) beams.resize(count);
}

}  // namespace

void check(const BeamOptions& options, std::int64_t vocab) {
  std::string wrong;
  const auto rule = [&](bool holds, const std::string& what, const std::string& got, const std::string& fix) {
    if (!holds) wrong += concat(wrong.empty() ? "" : "\n", rule_got_fix(what, got, fix));
  };
  rule(options.num_beams >= 1 && options.num_beams <= kMaxBeams, concat("num-beams must be from 1 to ", kMaxBeams, "."),
       concat(options.num_beams), "--num-beams 1 (the default)");
  rule(options.max_new_tokens >= 1 && options.max_new_tokens <= kMaxTokens,
       concat("max-new-tokens must be from 1 to ", kMaxTokens, "."), concat(options.max_new_tokens),
       "--max-new-tokens 64 (the default)");
  rule(std::abs(options.length_penalty) <= kMaxPenalty,
       concat("length-penalty must be from -", kMaxPenalty, " to ", kMaxPenalty, "."), concat(options.length_penalty),
       "--length-penalty 1 (the default)");
  if (wrong.empty())
    rule(looked_at(options) <= vocab, "the tokens of the model must be as many as the continuations that are compared.",
         concat(vocab, " tokens, and ", looked_at(options), " continuations of ", options.num_beams, " beams"),
         "--num-beams 1 (the default)");
  if (!wrong.empty()) throw ConfigError(wrong);
}

BeamSearch::BeamSearch(const BeamOptions& options) : options_(&options), running_(1) {}

double BeamSearch::divided(double score, std::int64_t tokens) const {
  return score / std::pow(static_cast<double>(tokens), options_->length_penalty);
}

void BeamSearch::step(std::span<const float> logarithms) {
  const auto width = static_cast<std::size_t>(options_->num_beams);
  const auto candidates = best_continuations(running_, logarithms, static_cast<std::size_t>(looked_at(*options_)));
  ++length_;
  std::vector<Beam> going_on;
  steps_.clear();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const auto& [score, beam, token] = candidates[i];
    const bool end = ends(token);
    // Of those that end only the best count: the others are looked at so that enough continue.
    if (end ? i >= width : going_on.size() == width) continue;
    Beam longer{running_[beam].tokens, end ? divided(score, length_) : score};
    longer.tokens.push_back(token);
    if (!end) steps_.push_back({beam, token});
    (end ? ended_ : going_on).push_back(std::move(longer));
  }
  running_ = std::move(going_on);
  keep_best(ended_, width);
  if (over()) steps_.clear();
}

void BeamSearch::take(std::int64_t token, double logarithm) {
  ++length_;
  Beam& text = running_.front();
  text.tokens.push_back(token);
  text.score += logarithm;
  steps_ = {{0, token}};
  if (!ends(token)) return;
  steps_.clear();
  text.score = divided(text.score, length_);
  ended_ = std::exchange(running_, {});
}

bool BeamSearch::ends(std::int64_t token) const {
  return length_ == options_->max_new_tokens || std::ranges::find(options_->ends, token) != options_->ends.end();
}

bool BeamSearch::over() const {
  if (running_.empty()) return true;
  if (std::ssize(ended_) < options_->num_beams) return false;
  // One beam is the likeliest token each time: where that ends the text, no other is looked for.
  if (options_->num_beams == 1 || options_->early_stopping == EarlyStopping::WhenFull) return true;
  const bool longest = options_->early_stopping == EarlyStopping::Never && options_->length_penalty > 0;
  return divided(running_.front().score, longest ? options_->max_new_tokens : length_) <= ended_.back().score;
}

}  // namespace megatron::generate
