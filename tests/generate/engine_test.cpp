#include "megatron/generate/serving/engine.h"

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/generate/generate.h"
#include "megatron/serve/api/api_error.h"
#include "tests/generate/small_model.h"
#include "tests/testing/dense_model.h"

namespace megatron::generate {
namespace {

using serve::Finish;
using serve::TextTask;
using Ids = std::vector<std::int64_t>;
using ::testing::ElementsAre;

/// Hears a text, and may go away or have enough of it.
struct Ear : serve::TextListener {
  Ids tokens;
  std::vector<serve::ScoredToken> prompt, scores;
  std::string end;
  std::size_t enough = 1000;
  std::int64_t cached = -1;
  bool away = false;

  void on_cached(std::int64_t tokens) override { cached = tokens; }
  void on_prompt(std::vector<serve::ScoredToken> scored) override { prompt = std::move(scored); }
  bool on_token(const serve::ScoredToken& token) override {
    EXPECT_EQ(end, "");
    tokens.push_back(token.id);
    scores.push_back(token);
    return tokens.size() < enough;
  }
  void on_end(Finish finish) override { end += finish == Finish::Stop ? "stop" : "length"; }
  void on_error(int status, const std::string&) override { end += std::to_string(status); }
  bool gone() const override { return away; }
};

/// A "model" of 16 tokens whose logits are a function of all tokens read, and which complains of slots that are wrong.
class FakeModel : public SlotModel {
 public:
  static constexpr std::int64_t kVocab = 16;

  static at::Tensor logits_after(const Ids& tokens) {
    std::uint32_t hash = 17;
    for (const std::int64_t token : tokens) hash = hash * 31 + static_cast<std::uint32_t>(token);
    std::mt19937 random(hash);
    auto row = at::empty({1, kVocab}, at::kDouble);
    for (std::int64_t i = 0; i < kVocab; ++i)
      row.mutable_data_ptr<double>()[i] = static_cast<double>(random() % 1000) / 100;
    return row;
  }

  void begin(std::int64_t slot, std::int64_t capacity, std::int64_t from, std::int64_t rows) override {
    ASSERT_FALSE(slots.contains(slot));
    Ids tokens;
    if (rows > 0) tokens.assign(slots.at(from).tokens.begin(), slots.at(from).tokens.begin() + rows);
    shared += rows;
    slots[slot] = {capacity, tokens};
    measure(most_while_growing);
  }
  at::Tensor read(std::int64_t slot, std::span<const std::int64_t> tokens, bool all) override {
    ++reads;
    std::vector<at::Tensor> rows;
    for (const std::int64_t token : tokens) {
      add(slot, token);
      rows.push_back(logits_after(slots.at(slot).tokens));
    }
    if (!all) return rows.back();
    auto logits = at::empty({static_cast<std::int64_t>(rows.size()), kVocab}, at::kDouble);
    for (std::size_t i = 0; i < rows.size(); ++i) logits[static_cast<std::int64_t>(i)].copy_(rows[i][0]);
    return logits;
  }
  at::Tensor write(std::span<const std::int64_t> numbers, std::span<const std::int64_t> tokens) override {
    EXPECT_EQ(std::set(numbers.begin(), numbers.end()).size(), numbers.size());
    widest = std::max(widest, numbers.size());
    measure(largest);
    auto logits = at::empty({static_cast<std::int64_t>(numbers.size()), kVocab}, at::kDouble);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      add(numbers[i], tokens[i]);
      logits[static_cast<std::int64_t>(i)].copy_(logits_after(slots.at(numbers[i]).tokens)[0]);
    }
    return logits;
  }
  void free(std::int64_t slot) override { slots.erase(slot); }

  struct Slot {
    std::int64_t capacity = 0;
    Ids tokens;
  };
  std::map<std::int64_t, Slot> slots;
  std::int64_t shared = 0, largest = 0, most_while_growing = 0, reads = 0;
  std::size_t widest = 0;

 private:
  void measure(std::int64_t& most) const {
    std::int64_t all = 0;
    for (const auto& [number, one] : slots) all += one.capacity;
    most = std::max(most, all);
  }
  void add(std::int64_t slot, std::int64_t token) {
    Slot& one = slots.at(slot);
    one.tokens.push_back(token);
    ASSERT_LE(std::ssize(one.tokens), one.capacity);
  }
};

/// An engine over a model, with a clock that stands still unless it is told.
struct Bench {
  explicit Bench(EngineOptions options) : options_(options) { serve::declare_metrics(metrics); }

  std::shared_ptr<Ear> ask(const Ids& prompt, std::int64_t max_tokens, double temperature = 0,
                           const std::string& client = "c", const Ids& ends = {3}) {
    auto ear = std::make_shared<Ear>();
    TextTask task{.prompt = prompt, .max_tokens = max_tokens, .ends = ends};
    task.sampling.temperature = temperature;
    task.seed = 9;
    task.client = client;
    task.listener = ear;
    task.arrived = now;
    task.deadline = now + std::chrono::seconds(60);
    queue.submit({task});
    return ear;
  }
  void run() {
    while (engine.step()) continue;
  }

  EngineOptions options_;
  FakeModel model;
  serve::TaskQueue queue{{.texts = 1000, .texts_of_client = 1000}};
  serve::Metrics metrics;
  serve::Clock::time_point now{};
  Engine engine{model, queue, metrics, options_, [this] { return now; }};
};

/// The text of a prompt, token by token, by nothing but the model and the sampler.
Ids plain(const Ids& prompt, std::int64_t max_tokens, double temperature) {
  const Draws draws(9, prompt, 0);
  Ids all = prompt, added;
  while (std::ssize(added) < max_tokens) {
    const at::Tensor logits = FakeModel::logits_after(all);
    const std::int64_t token = sample({logits.const_data_ptr<double>(), FakeModel::kVocab},
                                      {.temperature = temperature}, draws.at(std::ssize(all)));
    all.push_back(token);
    added.push_back(token);
    if (token == 3) break;
  }
  return added;
}

Ids drawn_prompt(std::mt19937& random, std::size_t most) {
  Ids prompt(1 + random() % most);
  for (std::int64_t& token : prompt) token = random() % FakeModel::kVocab;
  return prompt;
}

TEST(Engine, WritesEachTextAsIfItWereAlone) {
  std::mt19937 random(1);
  // Little cache: texts lose their slots and read again what they had written.
  for (const std::int64_t cache : {100000, 700, 330}) {
    Bench bench({.slots = 5, .cache_tokens = cache, .read_tokens = 16});
    std::vector<std::shared_ptr<Ear>> ears;
    std::vector<Ids> expected;
    for (int i = 0; i < 40; ++i) {
      const Ids prompt = i % 3 == 0 ? Ids(40, 5) : drawn_prompt(random, 60);
      const double temperature = i % 2 == 0 ? 0 : 1;
      const auto count = static_cast<std::int64_t>(1 + random() % 200);
      ears.push_back(bench.ask(prompt, count, temperature, std::to_string(i % 4)));
      expected.push_back(plain(prompt, count, temperature));
      if (i % 2 == 0) bench.engine.step();
    }
    bench.run();
    for (std::size_t i = 0; i < ears.size(); ++i) {
      EXPECT_EQ(ears[i]->tokens, expected[i]) << i << " with a cache of " << cache;
      EXPECT_EQ(ears[i]->end, expected[i].back() == 3 ? "stop" : "length");
    }
    EXPECT_LE(bench.model.largest, cache);
    EXPECT_LE(bench.model.most_while_growing, cache + 60 + 200);  // and the longest text's
    EXPECT_EQ(bench.queue.size(), 0);
    if (cache > 1000) {
      EXPECT_EQ(bench.model.widest, 5);
      EXPECT_GT(bench.model.shared, 0);
    }
  }
}

TEST(Engine, ReadsWhatPromptsShareOnce) {
  Bench bench({.slots = 4, .cache_tokens = 10000, .read_tokens = 8});
  Ids prompt(20, 7);
  const auto first = bench.ask(prompt, 4);
  bench.run();
  EXPECT_EQ(bench.model.reads, 3);
  const auto same = bench.ask(prompt, 4);
  prompt[17] = 1;
  const auto other = bench.ask(prompt, 4);
  bench.run();
  EXPECT_EQ(bench.model.reads, 5);  // the rest of each alone
  EXPECT_EQ(bench.model.shared, 32);
  EXPECT_EQ(first->cached, 0);
  EXPECT_EQ(same->cached, 16);
  EXPECT_EQ(same->tokens, first->tokens);
  EXPECT_EQ(other->tokens, plain(prompt, 4, 0));
  bench.ask(Ids(16, 7), 4);  // its last piece is needed for its logits
  bench.run();
  EXPECT_EQ(bench.model.shared, 40);
}

TEST(Engine, LetsGoOfTextsThatNobodyWaitsFor) {
  Bench bench({.slots = 2, .cache_tokens = 10000, .read_tokens = 16, .keep_prefixes = false});
  const auto ask = [&](std::int64_t token) { return bench.ask({token}, 1000, 0, "c", {}); };  // nothing ends it
  const auto gone = ask(1), late = ask(2), queued = ask(4), forgotten = ask(5), waiting = ask(6);
  for (int i = 0; i < 4; ++i) bench.engine.step();
  EXPECT_FALSE(gone->tokens.empty());
  gone->tokens.clear();
  gone->away = forgotten->away = true;
  bench.engine.step();
  EXPECT_EQ(gone->end, "499");
  EXPECT_THAT(gone->tokens, ElementsAre());
  EXPECT_EQ(forgotten->end, "503");
  EXPECT_EQ(forgotten->tokens.size(), 0);
  bench.engine.step();
  EXPECT_FALSE(queued->tokens.empty());  // in the slot of the one that has gone
  EXPECT_EQ(late->end + queued->end + waiting->end, "");
  bench.now += std::chrono::seconds(61);
  bench.engine.step();
  EXPECT_EQ(late->end, "504");
  EXPECT_EQ(queued->end, "504");
  EXPECT_EQ(waiting->end, "503");
  EXPECT_EQ(waiting->tokens.size(), 0);
  EXPECT_FALSE(bench.engine.step());
  EXPECT_TRUE(bench.model.slots.empty());
}

TEST(Engine, FailsOneTextWhoseMaskGivesUp) {
  struct Mask : serve::TokenMask {
    const std::vector<bool>& allowed() override { throw serve::ApiError(400, "too much"); }
    void take(std::int64_t) override {}
  };
  Bench bench({.slots = 2, .cache_tokens = 1000, .read_tokens = 16});
  const auto other = bench.ask({1}, 5);
  const auto ear = std::make_shared<Ear>();
  bench.queue.submit({{.prompt = {2},
                       .max_tokens = 5,
                       .mask = std::make_shared<Mask>(),
                       .listener = ear,
                       .deadline = bench.now + std::chrono::seconds(60)}});
  bench.run();
  EXPECT_EQ(ear->end, "400");
  EXPECT_EQ(other->tokens, plain({1}, 5, 0));
}

TEST(Engine, StopsWhenItsListenerHasEnough) {
  Bench bench({.slots = 2, .cache_tokens = 1000, .read_tokens = 16});
  const Ids prompt = {6, 6};
  const Ids whole = plain(prompt, 8, 0);
  ASSERT_GT(whole.size(), 2);
  const auto ear = bench.ask(prompt, 8);
  ear->enough = 2;
  bench.run();
  EXPECT_EQ(ear->tokens, Ids(whole.begin(), whole.begin() + 2));
  EXPECT_EQ(ear->end, "stop");
}

TEST(Engine, ScoresPromptsAndTokens) {
  Bench bench({.slots = 2, .cache_tokens = 1000, .read_tokens = 16});
  auto ear = std::make_shared<Ear>();
  Ids prompt(70, 2);
  prompt[69] = 4;
  TextTask task{.prompt = prompt, .max_tokens = 0, .logprobs = 2, .prompt_logprobs = true};
  task.listener = ear;
  task.deadline = bench.now + std::chrono::seconds(1);
  bench.queue.submit({task});
  bench.run();
  EXPECT_EQ(ear->end, "length");
  ASSERT_EQ(ear->prompt.size(), prompt.size());
  EXPECT_FALSE(ear->prompt[0].logprob);
  for (std::size_t i = 1; i < prompt.size(); ++i) {
    const auto logits = FakeModel::logits_after({prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(i)});
    const auto logprobs = logits[0].log_softmax(0);
    EXPECT_EQ(ear->prompt[i].id, prompt[i]);
    EXPECT_NEAR(*ear->prompt[i].logprob, logprobs[prompt[i]].item<double>(), 1e-12) << i;
    ASSERT_EQ(ear->prompt[i].likeliest.size(), 2);
    EXPECT_EQ(ear->prompt[i].likeliest[0].id, logits.argmax().item<std::int64_t>());
  }
}

TEST(NextToken, MindsBiasesPenaltiesAndMasks) {
  const std::vector<double> logits = {3, 2.9, 1, 0};
  const Draws draws(1, Ids{1}, 0);
  TextTask task;
  task.sampling.temperature = 0;
  task.logprobs = 1;
  const auto next = [&](const std::map<std::int64_t, std::int64_t>& counts = {}) {
    return next_token(logits, task, draws, 1, counts);
  };
  EXPECT_EQ(next().id, 0);
  task.sampling.logit_bias = {{0, -100}, {99, 100}};
  EXPECT_EQ(next().id, 1);
  EXPECT_GT(*next().logprob, -1);  // of the model, whatever was asked
  EXPECT_EQ(next().likeliest[0].id, 0);
  task.sampling.logit_bias = {};
  task.sampling.frequency_penalty = 0.04;
  EXPECT_EQ(next({{0, 2}}).id, 0);
  EXPECT_EQ(next({{0, 3}}).id, 1);
  task.sampling.presence_penalty = 1;
  EXPECT_EQ(next({{0, 1}}).id, 1);
  struct Mask : serve::TokenMask {
    const std::vector<bool>& allowed() override { return only; }
    void take(std::int64_t) override {}
    std::vector<bool> only = {false, false, true};  // ids beyond it may not come either
  };
  task.mask = std::make_shared<Mask>();
  EXPECT_EQ(next().id, 2);
  task.sampling.temperature = 2;
  EXPECT_EQ(next().id, 2);
}

TEST(Engine, RefusesTextsBeyondTheQueueAndOnceItStops) {
  serve::TaskQueue queue({.texts = 3, .texts_of_client = 2});
  const auto task = [&](const std::string& client) {
    TextTask one{.prompt = {1}, .max_tokens = 99};
    one.client = client;
    one.listener = std::make_shared<Ear>();
    return one;
  };
  const auto status = [&](std::vector<TextTask> tasks) {
    try {
      queue.submit(std::move(tasks));
    } catch (const serve::ApiError& error) {
      EXPECT_GT(error.retry_after_s, 0);
      return error.status;
    }
    return 200;
  };
  EXPECT_EQ(status({task("a"), task("a"), task("a")}), 429);
  EXPECT_EQ(queue.size(), 0);  // all or none
  EXPECT_EQ(status({task("a"), task("a")}), 200);
  EXPECT_EQ(status({task("a")}), 429);
  EXPECT_EQ(status({task("b")}), 200);
  EXPECT_EQ(status({task("c")}), 429);
  queue.stop();
  EXPECT_EQ(status({task("d")}), 503);
  EXPECT_EQ(serve::retry_after_s(1000, 100), 10);
  EXPECT_EQ(serve::retry_after_s(1e9, 1), 60);
  EXPECT_EQ(serve::retry_after_s(1, 1000), 1);
}

/// What a real model of `t` ranks writes for prompts that come one after another.
std::vector<Ids> served(const std::vector<Ids>& prompts, int t, EngineOptions options) {
  const model::TransformerOptions small = small_model();
  const auto weights = testing::random_weights(small.shape, 4);
  std::vector<Ids> texts;
  comm::run_ranks(t, [&](comm::Group tp) {
    const auto store = testing::make_store(small.shape, t, tp.rank(), weights, at::kFloat);
    const StagedModel model(model::CachedGpt(small, store, tp));
    RankSlots slots(model, tp, at::kCPU);
    if (tp.rank() > 0) return slots.follow();
    serve::TaskQueue queue({.texts = 100, .texts_of_client = 100});
    serve::Metrics metrics;
    serve::declare_metrics(metrics);
    Engine engine(slots, queue, metrics, options);
    std::vector<std::shared_ptr<Ear>> ears;
    for (const Ids& prompt : prompts) {
      TextTask task{.prompt = prompt, .max_tokens = 12 - std::ssize(prompt)};
      task.seed = 3;
      task.listener = ears.emplace_back(std::make_shared<Ear>());
      task.arrived = serve::Clock::now();
      task.deadline = task.arrived + std::chrono::hours(1);
      queue.submit({task});
      engine.step();
    }
    while (engine.step()) continue;
    slots.stop();
    for (const auto& ear : ears) texts.push_back(ear->tokens);
  });
  return texts;
}

TEST(Engine, WritesWhatGenerateWritesInAnyCompany) {
  const std::vector<Ids> prompts = {
      {3, 14, 15, 9, 2}, {6}, {5, 3, 5}, {8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2}, {3, 14, 15, 1}};
  const model::TransformerOptions small = small_model();
  const auto store = testing::make_store(small.shape, 1, 0, testing::random_weights(small.shape, 4), at::kFloat);
  const StagedModel model(model::CachedGpt(small, store, {}));
  std::vector<Ids> expected;
  for (const Ids& prompt : prompts)
    expected.push_back(megatron::generate::generate(model, {prompt}, {.max_new_tokens = 12, .seed = 3})[0]);
  for (const int t : {1, 2})
    for (const std::int64_t cache : {1000, 24})
      EXPECT_EQ(served(prompts, t, {.slots = 3, .cache_tokens = cache, .read_tokens = 16}), expected)
          << "tp " << t << ", cache " << cache;
}

}  // namespace
}  // namespace megatron::generate
