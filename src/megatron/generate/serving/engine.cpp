#include "megatron/generate/serving/engine.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/kernels/cpu/parallel.h"
#include "megatron/serve/api/api_error.h"

namespace megatron::generate {
namespace {

using serve::ScoredToken;
using serve::TextTask;

constexpr std::int64_t kScoredTokens = 64;  // of a prompt whose logits are held at once
constexpr std::int64_t kFirstTokens = 128;  // of an answer that a text has blocks for at first

double seconds_between(serve::Clock::time_point from, serve::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::span<const double> row_of(const at::Tensor& logits, std::int64_t row) {
  const std::int64_t vocab = logits.size(1);
  return {logits.const_data_ptr<double>() + row * vocab, static_cast<std::size_t>(vocab)};
}

bool penalized(const serve::Sampling& sampling) {
  return sampling.presence_penalty != 0 || sampling.frequency_penalty != 0 || sampling.repetition_penalty != 1;
}

/// Whether the sampler is to see other numbers than the model's.
bool changes_logits(const TextTask& task) {
  return task.mask != nullptr || !task.sampling.logit_bias.empty() || penalized(task.sampling);
}

/// Makes tokens of the prompt and of what was written less likely (Keskar et al. 2019, equation 2).
void penalize_repetition(std::vector<double>& logits, const TextTask& task,
                         const std::map<std::int64_t, std::int64_t>& counts) {
  std::vector<bool> done(logits.size());
  const auto once = [&](std::int64_t id) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= logits.size() || done[at]) return;
    done[at] = true;
    const double penalty = task.sampling.repetition_penalty;
    logits[at] = logits[at] > 0 ? logits[at] / penalty : logits[at] * penalty;
  };
  for (const std::int64_t id : task.prompt) once(id);
  for (const auto& [id, count] : counts) once(id);
}

void change(std::vector<double>& logits, const TextTask& task, const std::map<std::int64_t, std::int64_t>& counts) {
  const auto at = [&](std::int64_t id) -> double& { return logits[static_cast<std::size_t>(id)]; };
  const auto size = static_cast<std::int64_t>(logits.size());
  for (const auto& [id, bias] : task.sampling.logit_bias)
    if (id < size) at(id) += bias;
  if (task.sampling.repetition_penalty != 1) penalize_repetition(logits, task, counts);
  for (const auto& [id, count] : counts)
    if (id < size)
      at(id) -= task.sampling.presence_penalty + task.sampling.frequency_penalty * static_cast<double>(count);
  if (task.mask == nullptr) return;
  const std::vector<bool>& allowed = task.mask->allowed();
  for (std::int64_t id = 0; id < size; ++id)
    if (id >= static_cast<std::int64_t>(allowed.size()) || !allowed[static_cast<std::size_t>(id)])
      at(id) = -std::numeric_limits<double>::infinity();
}

}  // namespace

ScoredToken scored(std::span<const double> logits, std::int64_t token, std::int64_t count) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  const double logsumexp = largest + std::log(sum);
  ScoredToken result{.id = token, .logprob = logits[static_cast<std::size_t>(token)] - logsumexp, .likeliest = {}};
  for (const std::int64_t id : likeliest(logits, std::min(static_cast<std::size_t>(count), logits.size())))
    result.likeliest.push_back({id, logits[static_cast<std::size_t>(id)] - logsumexp});
  return result;
}

ScoredToken next_token(std::span<const double> logits, const TextTask& task, const Draws& draws, std::int64_t position,
                       const std::map<std::int64_t, std::int64_t>& counts) {
  require_finite(logits, position);
  const SamplingOptions options{.temperature = task.sampling.temperature,
                                .top_k = task.sampling.top_k,
                                .top_p = task.sampling.top_p,
                                .min_p = task.sampling.min_p};
  std::vector<double> changed;
  std::span<const double> seen = logits;
  if (changes_logits(task)) {
    changed.assign(logits.begin(), logits.end());
    change(changed, task, counts);
    seen = changed;
    if (std::ranges::none_of(changed, [](double logit) { return std::isfinite(logit); }))
      throw std::runtime_error("no token of the model may come next");
  }
  const std::int64_t token = sample(seen, options, draws.at(position));
  return task.logprobs ? scored(logits, token, *task.logprobs)
                       : ScoredToken{.id = token, .logprob = {}, .likeliest = {}};
}

Engine::Engine(SlotModel& model, serve::TaskQueue& queue, serve::Metrics& metrics, EngineOptions options, Now now)
    : model_(model),
      queue_(queue),
      metrics_(metrics),
      options_(options),
      now_(std::move(now)),
      pool_(model.blocks(), model.block_tokens(), std::lcm(options.read_tokens, model.block_tokens())) {
  for (std::int64_t slot = options_.slots; slot-- > 0;) free_slots_.push_back(slot);
}

void Engine::leave(Text& text) {
  if (text.slot < 0) return;
  if (text.begun) model_.free(text.slot);
  free_slots_.push_back(std::exchange(text.slot, -1));
  const std::int64_t shared = text.prefix == nullptr ? 0 : text.prefix->units() * pool_.unit_blocks();
  pool_.give_back(std::span(text.blocks).subspan(static_cast<std::size_t>(shared)));
  pool_.release(std::exchange(text.prefix, nullptr));
  text.blocks.clear();
  text.begun = false;
}

void Engine::end(TextIterator text) {
  metrics_.observe("megatron_text_seconds", seconds_between(text->task.arrived, now_()));
  leave(*text);
  texts_.erase(text);
}

void Engine::fail(TextIterator text, int status, const std::string& message) {
  metrics_.add("megatron_texts_total", 1, {{"end", status == 499 ? "cancelled" : status == 504 ? "late" : "failed"}});
  text->task.listener->on_error(status, message);
  end(text);
}

void Engine::drop_stale() {
  const auto now = now_();
  end_stale(queue_, metrics_, now);
  for (auto text = texts_.begin(); text != texts_.end();) {
    const auto next = std::next(text);
    if (text->task.listener->gone())
      fail(text, 499, "the client has gone");
    else if (text->task.deadline <= now)
      fail(text, 504, "the request took longer than this server allows");
    text = next;
  }
}

std::int64_t Engine::first_blocks(const TextTask& task, std::int64_t written) const {
  return pool_.blocks_of(std::ssize(task.prompt) + std::min(task.max_tokens, written + kFirstTokens));
}

BlockPool::Prefix* Engine::prefix_of(const TextTask& task) {
  if (!options_.keep_prefixes || task.prompt_logprobs || task.prompt.empty()) return nullptr;
  return pool_.find(std::span(task.prompt).first(task.prompt.size() - 1), task.adapter);
}

bool Engine::fits(const TextTask& task) {
  BlockPool::Prefix* const prefix = prefix_of(task);
  pool_.hold(prefix);  // what is kept of it does not go for the rest
  const std::int64_t shared = prefix == nullptr ? 0 : prefix->units() * pool_.unit_blocks();
  const bool holds = pool_.has(first_blocks(task, 0) - shared);
  pool_.release(prefix);
  return holds;
}

void Engine::share(Text& text) {
  BlockPool::Prefix* const found = prefix_of(text.task);
  const auto blocks_in = [&](const BlockPool::Prefix* prefix) {
    return prefix == nullptr ? 0 : static_cast<std::ptrdiff_t>(prefix->units() * pool_.unit_blocks());
  };
  const std::ptrdiff_t old = blocks_in(text.prefix), shared = blocks_in(found);
  if (shared <= old) return;
  pool_.hold(found);
  const auto first = text.blocks.begin();
  if (!text.blocks.empty()) {
    pool_.give_back({first + old, first + shared});
    text.blocks.erase(first, first + shared);
  }
  const std::vector<std::int64_t> blocks = found->blocks();
  text.blocks.insert(text.blocks.begin(), blocks.begin(), blocks.end());
  pool_.release(std::exchange(text.prefix, found));
}

bool Engine::seat(Text& text) {
  share(text);
  const std::int64_t more = first_blocks(text.task, std::ssize(text.written)) - std::ssize(text.blocks);
  if (!pool_.has(more)) {
    text.blocks.clear();
    pool_.release(std::exchange(text.prefix, nullptr));
    return false;
  }
  const std::vector<std::int64_t> blocks = pool_.take(more);
  text.blocks.insert(text.blocks.end(), blocks.begin(), blocks.end());
  text.slot = free_slots_.back();
  free_slots_.pop_back();
  return true;
}

void Engine::begin(Text& text) {
  share(text);  // more than when it was seated, where a text before it was read in between
  text.begun = true;
  text.read = text.prefix == nullptr ? 0 : text.prefix->units() * pool_.unit_tokens();
  model_.begin(text.slot, text.blocks, text.read, text.task.adapter);
  metrics_.add("megatron_cached_tokens_total", static_cast<double>(text.read));
  if (text.written.empty()) text.task.listener->on_cached(text.read);
}

void Engine::offer(Text& text) {
  if (!options_.keep_prefixes || text.task.prompt_logprobs) return;
  const std::span<const std::int64_t> prompt = text.task.prompt, blocks = text.blocks;
  while (true) {
    const std::int64_t units = text.prefix == nullptr ? 0 : text.prefix->units();
    const std::int64_t first = units * pool_.unit_tokens(), first_block = units * pool_.unit_blocks();
    if (first + pool_.unit_tokens() > text.read) return;
    BlockPool::Prefix* const longer = pool_.add(
        text.prefix, prompt.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(pool_.unit_tokens())),
        blocks.subspan(static_cast<std::size_t>(first_block), static_cast<std::size_t>(pool_.unit_blocks())),
        text.task.adapter);
    if (longer == nullptr) return;  // another text has read the same meanwhile
    text.prefix = longer;
  }
}

void Engine::unseat(Text& text) {
  leave(text);
  text.read = text.fed = 0;
  text.prompt_scores.clear();
}

bool Engine::grow(TextIterator text) {
  if (text->read + text->fed < std::ssize(text->blocks) * model_.block_tokens()) return true;
  while (!pool_.has(1)) {
    const auto last = std::find_if(texts_.rbegin(), texts_.rend(), [](const Text& one) { return one.slot >= 0; });
    const bool itself = &*last == &*text;
    unseat(*last);
    if (itself) return false;
  }
  const std::vector<std::int64_t> more = pool_.take(1);
  text->blocks.push_back(more.front());
  model_.extend(text->slot, more);
  return true;
}

void Engine::admit() {
  for (Text& text : texts_)
    if (text.slot < 0 && !seat(text)) return;
  while (std::ssize(texts_) < options_.slots) {
    const auto most_blocks = [&](const TextTask& task) {
      return pool_.blocks_of(std::ssize(task.prompt) + task.max_tokens);
    };
    auto task = queue_.take_if([&](const TextTask& next) { return most_blocks(next) > pool_.size() || fits(next); });
    if (!task) return;
    Draws draws(task->seed, task->prompt, task->copy);
    texts_.push_back({.task = std::move(*task), .draws = draws});
    if (const std::int64_t most = most_blocks(texts_.back().task); most > pool_.size()) {
      fail(std::prev(texts_.end()), 400,
           concat("the text may take ", most * model_.block_tokens(),
                  " tokens, and this server has keys and values of ", pool_.size() * model_.block_tokens()));
      continue;
    }
    if (!seat(texts_.back())) return;
  }
}

void Engine::score_prompt(Text& text, std::span<const std::int64_t> piece, const at::Tensor& logits) const {
  if (text.prompt_scores.empty()) text.prompt_scores.push_back({.id = piece[0], .logprob = {}, .likeliest = {}});
  const std::int64_t first = std::ssize(text.prompt_scores);
  // Row i is what follows token read + i.
  const std::int64_t count = std::min(std::ssize(piece), std::ssize(text.task.prompt) - first);
  text.prompt_scores.resize(static_cast<std::size_t>(first + count));
  kernels::cpu::for_each_block(count, [&](std::int64_t i, int) {
    const auto at = static_cast<std::size_t>(first + i);
    text.prompt_scores[at] = scored(row_of(logits, i), text.task.prompt[at], text.task.logprobs.value_or(0));
  });
}

bool Engine::read_piece() {
  const auto text = std::ranges::find_if(
      texts_, [](const Text& one) { return one.slot >= 0 && one.read < std::ssize(one.task.prompt); });
  if (text == texts_.end()) return false;
  if (!text->begun) begin(*text);
  const bool scores = text->task.prompt_logprobs, all = scores && text->written.empty();
  const std::int64_t most = scores ? std::min(kScoredTokens, options_.read_tokens) : options_.read_tokens;
  const std::span<const std::int64_t> prompt = text->task.prompt;
  const auto piece = prompt.subspan(static_cast<std::size_t>(text->read),
                                    static_cast<std::size_t>(std::min(most, std::ssize(prompt) - text->read)));
  const at::Tensor logits = model_.read(text->slot, piece, all);
  metrics_.add("megatron_prompt_tokens_total", static_cast<double>(piece.size()));
  if (all) score_prompt(*text, piece, logits);
  text->read += std::ssize(piece);
  offer(*text);
  if (text->read < std::ssize(prompt) || !text->written.empty()) return true;
  if (all) text->task.listener->on_prompt(std::move(text->prompt_scores));
  if (text->task.max_tokens == 0) {
    metrics_.add("megatron_texts_total", 1, {{"end", "length"}});
    text->task.listener->on_end(serve::Finish::Length);
    end(text);
    return true;
  }
  metrics_.observe("megatron_time_to_first_token_seconds", seconds_between(text->task.arrived, now_()));
  take({text}, logits.narrow(0, logits.size(0) - 1, 1));
  return true;
}

void Engine::take(const std::vector<TextIterator>& texts, const at::Tensor& logits) {
  std::vector<ScoredToken> tokens(texts.size());
  struct Failure {
    int status = 0;
    std::string message = {};
  };
  std::vector<Failure> failures(texts.size());
  kernels::cpu::for_each_block(std::ssize(texts), [&](std::int64_t i, int) {
    const auto at = static_cast<std::size_t>(i);
    const Text& text = *texts[at];
    try {
      const std::int64_t position = std::ssize(text.task.prompt) + std::ssize(text.written);
      tokens[at] = next_token(row_of(logits, i), text.task, text.draws, position, text.counts);
      if (text.task.mask) text.task.mask->take(tokens[at].id);
    } catch (const serve::ApiError& error) {
      failures[at] = {error.status, error.what()};
    } catch (const std::exception& error) {
      failures[at] = {500, error.what()};
    }
  });
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i];
    if (failures[i].status != 0) {
      fail(text, failures[i].status, failures[i].message);
      continue;
    }
    TextTask& task = text->task;
    const std::int64_t token = tokens[i].id;
    text->written.push_back(token);
    if (penalized(task.sampling)) ++text->counts[token];
    const bool goes_on = task.listener->on_token(tokens[i]), ended = std::ranges::count(task.ends, token) > 0;
    if (goes_on && !ended && std::ssize(text->written) < task.max_tokens) continue;
    const auto how = goes_on && !ended ? serve::Finish::Length : serve::Finish::Stop;
    metrics_.add("megatron_texts_total", 1, {{"end", how == serve::Finish::Length ? "length" : "stop"}});
    task.listener->on_end(how);
    end(text);
  }
  metrics_.add("megatron_generated_tokens_total", static_cast<double>(texts.size()));
}

bool Engine::write_tokens() {
  for (auto text = texts_.begin(); text != texts_.end(); ++text)
    if (text->slot >= 0 && text->read == std::ssize(text->task.prompt)) grow(text);
  std::vector<TextIterator> texts;
  std::vector<std::int64_t> slots, tokens;
  for (auto text = texts_.begin(); text != texts_.end(); ++text) {
    if (text->slot < 0 || text->written.empty() || text->read < std::ssize(text->task.prompt)) continue;
    texts.push_back(text);
    slots.push_back(text->slot);
    tokens.push_back(text->written[static_cast<std::size_t>(text->fed++)]);
  }
  if (texts.empty()) return false;
  const auto begin = now_();
  const at::Tensor logits = model_.write(slots, tokens);
  std::vector<TextIterator> fresh;  // whose last token was read: the others read again what they had written
  std::vector<std::int64_t> rows;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i]->fed < std::ssize(texts[i]->written)) continue;
    fresh.push_back(texts[i]);
    rows.push_back(static_cast<std::int64_t>(i));
  }
  if (fresh.size() == texts.size())
    take(fresh, logits);
  else if (!fresh.empty())
    take(fresh, logits.index_select(0, at::tensor(rows, at::kLong)));
  const double seconds = seconds_between(begin, now_());
  metrics_.observe("megatron_step_seconds", seconds);
  if (seconds > 0) {
    constexpr double kShareOfNew = 0.1;
    const double rate = static_cast<double>(texts.size()) / seconds;
    rate_ = rate_ == 0 ? rate : rate_ + kShareOfNew * (rate - rate_);
    queue_.set_rate(rate_);
  }
  return true;
}

void Engine::report() {
  metrics_.set("megatron_queued_texts", static_cast<double>(queue_.size()));
  metrics_.set("megatron_active_texts", static_cast<double>(texts_.size()));
  const auto blocks = [&](const char* state, std::int64_t count) {
    metrics_.set("megatron_cache_blocks", static_cast<double>(count), {{"state", state}});
  };
  blocks("used", pool_.size() - pool_.free() - pool_.kept());
  blocks("kept", pool_.kept());
  blocks("free", pool_.free());
}

bool Engine::step() {
  drop_stale();
  admit();
  const bool read = read_piece(), wrote = write_tokens();
  report();
  return read || wrote;
}

void Engine::run() {
  constexpr std::chrono::milliseconds kWait(250);
  int waits = 0;
  while (true) {
    if (queue_.stopped()) {
      if (!stopped_at_) stopped_at_ = now_();
      end_waiting(queue_);
      if (texts_.empty() || seconds_between(*stopped_at_, now_()) > options_.drain_s) break;
    }
    if (step()) continue;
    if (++waits % 4 == 0) model_.idle();
    queue_.wait(kWait);
  }
  while (!texts_.empty()) fail(texts_.begin(), 503, "the server is stopping");
}

}  // namespace megatron::generate
