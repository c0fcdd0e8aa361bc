#include "megatron/generate/serving/engine.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
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
constexpr std::int64_t kFirstTokens = 128;  // of an answer that a cache has room for at first

double seconds_between(serve::Clock::time_point from, serve::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::span<const double> row_of(const at::Tensor& logits, std::int64_t row) {
  const std::int64_t vocab = logits.size(1);
  return {logits.const_data_ptr<double>() + row * vocab, static_cast<std::size_t>(vocab)};
}

bool penalized(const serve::Sampling& sampling) {
  return sampling.presence_penalty != 0 || sampling.frequency_penalty != 0;
}

/// Whether the sampler is to see other numbers than the model's.
bool changes_logits(const TextTask& task) {
  return task.mask != nullptr || !task.sampling.logit_bias.empty() || penalized(task.sampling);
}

void change(std::vector<double>& logits, const TextTask& task, const std::map<std::int64_t, std::int64_t>& counts) {
  const auto at = [&](std::int64_t id) -> double& { return logits[static_cast<std::size_t>(id)]; };
  const auto size = static_cast<std::int64_t>(logits.size());
  for (const auto& [id, bias] : task.sampling.logit_bias)
    if (id < size) at(id) += bias;
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
  const SamplingOptions options{
      .temperature = task.sampling.temperature, .top_k = task.sampling.top_k, .top_p = task.sampling.top_p};
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
    : model_(model), queue_(queue), metrics_(metrics), options_(options), now_(std::move(now)) {
  // Caches that are kept have slots too.
  for (std::int64_t slot = 4 * options_.slots; slot-- > 0;) free_slots_.push_back(slot);
}

void Engine::drop_slot(std::int64_t slot, std::int64_t capacity) {
  model_.free(slot);
  free_slots_.push_back(slot);
  used_tokens_ -= capacity;
}

void Engine::end(Place text) {
  metrics_.observe("megatron_text_seconds", seconds_between(text->task.arrived, now_()));
  const std::int64_t piece = options_.read_tokens, whole = text->read / piece * piece;
  text->begun = false;  // it is not a prefix of itself
  if (text->slot >= 0 && options_.keep_prefixes && whole > 0 && !text->task.prompt_logprobs &&
      longest_prefix(text->task.prompt, whole).rows < whole) {
    text->task.prompt.resize(static_cast<std::size_t>(whole));
    kept_.push_back({text->slot, text->capacity, std::move(text->task.prompt)});
  } else if (text->slot >= 0) {
    drop_slot(text->slot, text->capacity);
  }
  texts_.erase(text);
}

void Engine::fail(Place text, int status, const std::string& message) {
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

Engine::Shared Engine::longest_prefix(const std::vector<std::int64_t>& prompt, std::int64_t most) const {
  Shared best;
  if (!options_.keep_prefixes) return best;
  const std::int64_t piece = options_.read_tokens;
  const auto look = [&](const std::vector<std::int64_t>& tokens, std::int64_t count, std::int64_t slot) {
    const std::int64_t whole = std::min(most, count) / piece * piece;
    if (whole <= best.rows) return;
    const auto differ = std::mismatch(prompt.begin(), prompt.begin() + whole, tokens.begin()).first;
    const std::int64_t rows = (differ - prompt.begin()) / piece * piece;
    if (rows > best.rows) best = {slot, rows};
  };
  for (const Text& text : texts_)
    if (text.begun && !text.task.prompt_logprobs) look(text.task.prompt, text.read, text.slot);
  for (const Kept& kept : kept_) look(kept.tokens, std::ssize(kept.tokens), kept.slot);
  return best;
}

bool Engine::make_room(std::int64_t tokens) {
  std::int64_t in_use = 0;
  for (const Text& text : texts_) in_use += text.slot >= 0 ? text.capacity : 0;
  if (in_use + tokens > options_.cache_tokens) return false;
  while (!kept_.empty() && (used_tokens_ + tokens > options_.cache_tokens || free_slots_.empty())) {
    drop_slot(kept_.front().slot, kept_.front().capacity);
    kept_.pop_front();
  }
  return true;
}

bool Engine::seat(Text& text) {
  const TextTask& task = text.task;
  const std::int64_t prompt = std::ssize(task.prompt), written = std::ssize(text.written);
  const std::int64_t capacity = prompt + std::min(task.max_tokens, written + kFirstTokens);
  if (!make_room(capacity)) return false;
  text.slot = free_slots_.back();
  free_slots_.pop_back();
  text.capacity = capacity;
  used_tokens_ += capacity;
  return true;
}

void Engine::begin(Text& text) {
  // The last token is always read: its logits are asked for.
  const auto& prompt = text.task.prompt;
  const Shared shared = text.task.prompt_logprobs ? Shared() : longest_prefix(prompt, std::ssize(prompt) - 1);
  if (const auto used = std::ranges::find(kept_, shared.slot, &Kept::slot); used != kept_.end())
    kept_.splice(kept_.end(), kept_, used);  // the last to go
  model_.begin(text.slot, text.capacity, shared.slot, shared.rows);
  text.begun = true;
  text.read = shared.rows;
  metrics_.add("megatron_cached_tokens_total", static_cast<double>(shared.rows));
  if (text.written.empty()) text.task.listener->on_cached(shared.rows);
}

void Engine::unseat(Text& text) {
  drop_slot(text.slot, text.capacity);
  text.slot = -1;
  text.begun = false;
  text.read = text.fed = text.capacity = 0;
  text.prompt_scores.clear();
}

bool Engine::grow(Place text) {
  const std::int64_t rows = text->read + text->fed;
  if (rows < text->capacity) return true;
  const std::int64_t capacity = std::min(std::ssize(text->task.prompt) + text->task.max_tokens, rows + rows / 2 + 1);
  while (!make_room(capacity - text->capacity)) {
    const auto last = std::find_if(texts_.rbegin(), texts_.rend(), [](const Text& one) { return one.slot >= 0; });
    const bool itself = &*last == &*text;
    unseat(*last);
    if (itself) return false;
  }
  const std::int64_t slot = free_slots_.back();
  free_slots_.pop_back();
  model_.begin(slot, capacity, text->slot, rows);
  used_tokens_ += capacity;
  drop_slot(std::exchange(text->slot, slot), std::exchange(text->capacity, capacity));
  return true;
}

void Engine::admit() {
  for (Text& text : texts_)
    if (text.slot < 0 && !seat(text)) return;
  while (std::ssize(texts_) < options_.slots) {
    std::int64_t in_use = 0;
    for (const Text& text : texts_) in_use += text.capacity;
    auto task = queue_.take_if([&](const TextTask& next) {
      return in_use + std::ssize(next.prompt) + std::min(next.max_tokens, kFirstTokens) <= options_.cache_tokens;
    });
    if (!task) return;
    Draws draws(task->seed, task->prompt, task->copy);
    texts_.push_back({.task = std::move(*task), .draws = draws});
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

void Engine::take(const std::vector<Place>& texts, const at::Tensor& logits) {
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
  std::vector<Place> texts;
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
  std::vector<Place> fresh;  // whose last token was read: the others read again what they had written
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
  metrics_.set("megatron_cache_tokens", static_cast<double>(used_tokens_));
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
