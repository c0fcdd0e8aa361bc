#include "megatron/generate/serving/engine.h"

#include <gmock/gmock.h>

#include <algorithm>
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
#include "tests/testing/ear.h"

namespace megatron::generate {
namespace {

using serve::Finish;
using serve::TextTask;
using Ids = std::vector<std::int64_t>;
using testing::Ear;
using ::testing::ElementsAre;

/// A "model" of 16 tokens whose logits are a function of all tokens read, which it finds in the blocks of its slots,
/// and which complains of slots that are wrong.
class FakeModel : public SlotModel {
 public:
  static constexpr std::int64_t kVocab = 16, kBlock = 4;

  explicit FakeModel(std::int64_t blocks) : memory(static_cast<std::size_t>(blocks), Ids(kBlock, -1)) {}
  std::int64_t blocks() const override { return std::ssize(memory); }
  std::int64_t block_tokens() const override { return kBlock; }

  static at::Tensor logits_after(const Ids& tokens) {
    std::uint32_t hash = 17;
    for (const std::int64_t token : tokens) hash = hash * 31 + static_cast<std::uint32_t>(token);
    std::mt19937 random(hash);
    auto row = at::empty({1, kVocab}, at::kDouble);
    for (std::int64_t i = 0; i < kVocab; ++i)
      row.mutable_data_ptr<double>()[i] = static_cast<double>(random() % 1000) / 100;
    return row;
  }

  void begin(std::int64_t slot, std::span<const std::int64_t> of_slot, std::int64_t length,
             std::int64_t /*adapter*/) override {
    ASSERT_FALSE(slots.contains(slot));
    shared += length;
    slots[slot] = {{of_slot.begin(), of_slot.end()}, length};
    ++begun;
  }
  void extend(std::int64_t slot, std::span<const std::int64_t> more) override {
    Ids& of_slot = slots.at(slot).blocks;
    of_slot.insert(of_slot.end(), more.begin(), more.end());
    ++extended;
  }
  at::Tensor read(std::int64_t slot, std::span<const std::int64_t> tokens, bool all) override {
    ++reads;
    std::vector<at::Tensor> rows;
    for (const std::int64_t token : tokens) {
      add(slot, token);
      rows.push_back(logits_after(tokens_of(slots.at(slot))));
    }
    if (!all) return rows.back();
    auto logits = at::empty({static_cast<std::int64_t>(rows.size()), kVocab}, at::kDouble);
    for (std::size_t i = 0; i < rows.size(); ++i) logits[static_cast<std::int64_t>(i)].copy_(rows[i][0]);
    return logits;
  }
  at::Tensor write(std::span<const std::int64_t> numbers, std::span<const std::int64_t> tokens) override {
    EXPECT_EQ(std::set(numbers.begin(), numbers.end()).size(), numbers.size());
    widest = std::max(widest, numbers.size());
    auto logits = at::empty({static_cast<std::int64_t>(numbers.size()), kVocab}, at::kDouble);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      add(numbers[i], tokens[i]);
      logits[static_cast<std::int64_t>(i)].copy_(logits_after(tokens_of(slots.at(numbers[i])))[0]);
    }
    return logits;
  }
  void free(std::int64_t slot) override { slots.erase(slot); }

  struct Slot {
    Ids blocks;
    std::int64_t length = 0;
  };
  std::vector<Ids> memory;  ///< tokens by block
  std::map<std::int64_t, Slot> slots;
  std::int64_t shared = 0, reads = 0, begun = 0, extended = 0;
  std::size_t widest = 0;

 private:
  std::int64_t& at(const Slot& slot, std::int64_t row) {
    return memory.at(static_cast<std::size_t>(slot.blocks.at(static_cast<std::size_t>(row / kBlock))))
        .at(static_cast<std::size_t>(row % kBlock));
  }
  Ids tokens_of(const Slot& slot) {
    Ids tokens;
    for (std::int64_t row = 0; row < slot.length; ++row) tokens.push_back(at(slot, row));
    return tokens;
  }
  /// Writes into no block that another slot reads.
  void add(std::int64_t slot, std::int64_t token) {
    Slot& one = slots.at(slot);
    ASSERT_LT(one.length, std::ssize(one.blocks) * kBlock);
    const std::int64_t block = one.blocks[static_cast<std::size_t>(one.length / kBlock)];
    for (const auto& [number, other] : slots) {
      if (number != slot) {
        ASSERT_EQ(std::ranges::count(other.blocks, block), 0) << "slot " << number;
      }
    }
    at(one, one.length++) = token;
  }
};

/// An engine over a model, with a clock that stands still unless it is told.
struct Bench {
  explicit Bench(EngineOptions options, std::int64_t cache_tokens = 10000)
      : options_(options), model(cache_tokens / FakeModel::kBlock) {
    serve::declare_metrics(metrics);
  }

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
  /// The gauge of blocks in a state.
  std::int64_t blocks(const std::string& state) const {
    const std::string text = metrics.text(), line = "megatron_cache_blocks{state=\"" + state + "\"} ";
    const std::size_t at = text.find(line);
    return at == std::string::npos ? -1 : std::stoll(text.substr(at + line.size()));
  }

  EngineOptions options_;
  FakeModel model;
  serve::TaskQueue queue{{.texts = 1000, .texts_of_client = 1000}};
  serve::Metrics metrics;
  serve::Clock::time_point now{};
  Engine engine{model, queue, metrics, options_, [this] { return now; }};
};

/// The text of a prompt, token by token, by nothing but the model and the sampler.
Ids plain(const Ids& prompt, std::int64_t max_tokens, double temperature, bool ends = true) {
  const Draws draws(9, prompt, 0);
  Ids all = prompt, added;
  while (std::ssize(added) < max_tokens) {
    const at::Tensor logits = FakeModel::logits_after(all);
    const std::int64_t token = sample({logits.const_data_ptr<double>(), FakeModel::kVocab},
                                      {.temperature = temperature}, draws.at(std::ssize(all)));
    all.push_back(token);
    added.push_back(token);
    if (ends && token == 3) break;
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
  std::int64_t begun_again = 0;
  // Little cache: texts lose their blocks and read again what they had written.
  for (const std::int64_t cache : {100000, 700, 450, 330}) {
    Bench bench({.slots = 5, .read_tokens = 16}, cache);
    std::vector<std::shared_ptr<Ear>> ears;
    std::vector<Ids> expected;
    for (int i = 0; i < 40; ++i) {
      const Ids prompt = i % 3 == 0 ? Ids(40, 5) : drawn_prompt(random, 60);
      const double temperature = i % 2 == 0 ? 0 : 1;
      const auto count = static_cast<std::int64_t>(1 + random() % 200);
      const bool ends = i % 4 < 2;  // the others come to their whole length
      ears.push_back(bench.ask(prompt, count, temperature, std::to_string(i % 4), ends ? Ids{3} : Ids{}));
      expected.push_back(plain(prompt, count, temperature, ends));
      if (i % 2 == 0) bench.engine.step();
    }
    bench.run();
    for (std::size_t i = 0; i < ears.size(); ++i) {
      EXPECT_EQ(ears[i]->tokens, expected[i]) << i << " with a cache of " << cache;
      EXPECT_EQ(ears[i]->end, i % 4 < 2 && expected[i].back() == 3 ? "stop" : "length");
    }
    EXPECT_EQ(bench.queue.size(), 0);
    EXPECT_TRUE(bench.model.slots.empty());
    EXPECT_EQ(bench.blocks("used"), 0);
    EXPECT_EQ(bench.blocks("kept") + bench.blocks("free"), bench.model.blocks());
    EXPECT_GT(bench.model.extended, 0);
    begun_again += bench.model.begun - std::ssize(ears);
    if (cache > 1000) {
      EXPECT_EQ(bench.model.begun, std::ssize(ears));
      EXPECT_EQ(bench.model.widest, 5);
      EXPECT_GT(bench.model.shared, 0);
      EXPECT_GT(bench.blocks("kept"), 0);
    }
  }
  EXPECT_GT(begun_again, 0) << "texts gave their blocks up";
}

TEST(Engine, ReadsWhatPromptsShareOnce) {
  Bench bench({.slots = 4, .read_tokens = 8});
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

TEST(Engine, TextsUnderWayReadTheSameBlocks) {
  // Room for one text, and of three more for what comes after 56 tokens of the prompt.
  Bench bench({.slots = 4, .read_tokens = 8}, 80 + 3 * 24);
  const Ids prompt(60, 7);
  std::vector<std::shared_ptr<Ear>> ears;
  for (int i = 0; i < 4; ++i) ears.push_back(bench.ask(prompt, 20, 1, "c", {}));
  bench.run();
  for (const auto& ear : ears) EXPECT_EQ(ear->tokens, plain(prompt, 20, 1, false));
  EXPECT_EQ(bench.model.widest, 4);
  EXPECT_EQ(bench.model.shared, 3 * 56);
  EXPECT_EQ(bench.model.reads, 8 + 3);
  EXPECT_EQ(bench.model.begun, 4);
}

TEST(Engine, GivesUpThePrefixesUsedLongestAgo) {
  // Room for the 24 tokens that begin four prompts, and 16 more.
  Bench bench({.slots = 1, .read_tokens = 8}, 4 * 24 + 16);
  const auto cached = [&](std::int64_t token) {
    Ids prompt(24, token);
    prompt.push_back(0);
    const auto ear = bench.ask(prompt, 4);
    bench.run();
    EXPECT_EQ(ear->tokens, plain(prompt, 4, 0));
    return ear->cached;
  };
  for (const std::int64_t token : {1, 2, 4, 5}) EXPECT_EQ(cached(token), 0);
  EXPECT_EQ(cached(1), 24);
  EXPECT_EQ(cached(6), 0);  // takes the place of the last two thirds of 2
  EXPECT_EQ(cached(1), 24);
  EXPECT_EQ(cached(2), 8);
  EXPECT_EQ(cached(1), 24);
}

TEST(Engine, RefusesATextThatNeedsMoreBlocksThanThereAre) {
  Bench bench({.slots = 2, .read_tokens = 8}, 64);
  const auto large = bench.ask(Ids(60, 7), 5), whole = bench.ask(Ids(60, 7), 4);
  bench.run();
  EXPECT_EQ(large->end, "400");
  EXPECT_EQ(whole->tokens, plain(Ids(60, 7), 4, 0));
}

TEST(Engine, LetsGoOfTextsThatNobodyWaitsFor) {
  Bench bench({.slots = 2, .read_tokens = 16, .keep_prefixes = false});
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
  Bench bench({.slots = 2, .read_tokens = 16});
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
  Bench bench({.slots = 2, .read_tokens = 16});
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
  Bench bench({.slots = 2, .read_tokens = 16});
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
  task.sampling.frequency_penalty = task.sampling.presence_penalty = 0;
  task.sampling.repetition_penalty = 1.02;  // 3 / 1.02 is still the largest
  EXPECT_EQ(next({{0, 5}}).id, 0);
  task.sampling.repetition_penalty = 1.04;
  EXPECT_EQ(next().id, 0);
  EXPECT_EQ(next({{0, 1}}).id, 1);
  task.prompt = {0, 0};  // the prompt's count, and once
  EXPECT_EQ(next().id, 1);
  EXPECT_EQ(next({{1, 1}}).id, 0);
  task.prompt = {};
  task.sampling.repetition_penalty = 1;
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

/// A model whose texts fill several blocks of keys and values.
model::TransformerOptions long_model() {
  model::TransformerOptions options = small_model();
  options.shape.max_positions = 200;
  return options;
}

struct Served {
  Ids tokens;
  std::vector<double> logprobs;
  std::int64_t cached = 0;

  bool operator==(const Served& other) const { return tokens == other.tokens && logprobs == other.logprobs; }
};

struct Serving {
  int tp = 1, pp = 1;
  std::int64_t blocks = 40, read_tokens = 256;
  at::ScalarType dtype = at::kFloat;
};

/// Ranks `stride` apart, from each of the first on.
std::vector<std::vector<int>> ranks_of(int world, int count, int stride) {
  std::vector<std::vector<int>> all(static_cast<std::size_t>(world / count));
  for (int rank = 0; rank < world; ++rank)
    all[static_cast<std::size_t>(stride == 1 ? rank / count : rank % stride)].push_back(rank);
  return all;
}

/// What a real model writes for prompts that come one after another.
std::vector<Served> served(const std::vector<Ids>& prompts, const Serving& how) {
  const model::TransformerOptions options = long_model();
  const auto weights = testing::random_weights(options.shape, 4);
  const auto parts =
      plan::parts_of_layers(how.pp == 1 ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>{1, 1});
  std::vector<Served> texts;
  comm::run_ranks(how.tp * how.pp, [&](const comm::Group& world) {
    const comm::Group tp = world.split(ranks_of(world.size(), how.tp, 1)),
                      pp = world.split(ranks_of(world.size(), how.pp, how.tp));
    const auto& part = parts[static_cast<std::size_t>(pp.rank())];
    const auto store = testing::make_store(options.shape, how.tp, tp.rank(), weights, how.dtype);
    const StagedModel model(model::CachedGpt(options, part, store, tp), pp, at::TensorOptions().dtype(how.dtype));
    RankSlots slots(model, world, at::kCPU, how.blocks);
    if (world.rank() > 0) return slots.follow();
    serve::TaskQueue queue({.texts = 100, .texts_of_client = 100});
    serve::Metrics metrics;
    serve::declare_metrics(metrics);
    Engine engine(slots, queue, metrics, {.slots = 3, .read_tokens = how.read_tokens});
    std::vector<std::shared_ptr<Ear>> ears;
    for (const Ids& prompt : prompts) {
      TextTask task{.prompt = prompt, .max_tokens = 200 - std::ssize(prompt)};
      task.logprobs = 0;
      task.seed = 3;
      ears.push_back(testing::submitted(std::move(task), queue));
      engine.step();
    }
    while (engine.step()) continue;
    slots.stop();
    for (const auto& ear : ears) {
      texts.push_back({.tokens = ear->tokens, .logprobs = {}, .cached = ear->cached});
      for (const auto& score : ear->scores) texts.back().logprobs.push_back(*score.logprob);
    }
  });
  return texts;
}

/// Prompts of one to four blocks, those longer than a block alike in their first.
std::vector<Ids> long_prompts() {
  std::mt19937 random(5);
  std::vector<Ids> prompts;
  for (const std::size_t length : {20, 3, 190, 70, 64, 65, 130}) {
    Ids prompt(length, 7);
    for (std::size_t i = length > 64 ? 66 : 0; i < length; ++i) prompt[i] = static_cast<std::int64_t>(random() % 30);
    prompts.push_back(prompt);
  }
  return prompts;
}

// Machines have planned with the memory of their own: a context that follows from one rank's plan may be too long.
TEST(RankSlots, HaveRoomForWhatTheRankWithTheFewestBlocksHas) {
  const model::TransformerOptions options = long_model();
  const auto weights = testing::random_weights(options.shape, 4);
  comm::run_ranks(2, [&](const comm::Group& world) {
    const auto store = testing::make_store(options.shape, 2, world.rank(), weights, at::kFloat);
    const StagedModel model(model::CachedGpt(options, store, world));
    const RankSlots slots(model, world, at::kCPU, world.rank() == 0 ? 40 : 3);
    EXPECT_EQ(slots.blocks(), 3);
    EXPECT_EQ(slots.tokens(), 3 * 64);
  });
}

// generate() has one cache of keys and values side by side.
TEST(Engine, WritesWhatGenerateWritesInAnyCompany) {
  const std::vector<Ids> prompts = long_prompts();
  const model::TransformerOptions options = long_model();
  const auto store = testing::make_store(options.shape, 1, 0, testing::random_weights(options.shape, 4), at::kFloat);
  const StagedModel model(model::CachedGpt(options, store, {}));
  std::vector<Ids> expected;
  for (const Ids& prompt : prompts)
    expected.push_back(megatron::generate::generate(model, {prompt}, {.max_new_tokens = 200, .seed = 3})[0]);
  for (const int tp : {1, 2})
    for (const int pp : {1, 2})
      for (const std::int64_t blocks : {40, 4}) {
        std::vector<Ids> tokens;
        for (const Served& text : served(prompts, {.tp = tp, .pp = pp, .blocks = blocks}))
          tokens.push_back(text.tokens);
        EXPECT_EQ(tokens, expected) << "tp " << tp << ", pp " << pp << ", blocks " << blocks;
      }
}

TEST(Engine, WritesTheSameBitsFromBlocksThatOthersRead) {
  const std::vector<Ids> prompts = long_prompts();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<Served> alone;
    for (const Ids& prompt : prompts) alone.push_back(served({prompt}, {.read_tokens = 32, .dtype = dtype})[0]);
    for (const std::int64_t blocks : {40, 4}) {
      const std::vector<Served> together = served(prompts, {.blocks = blocks, .read_tokens = 32, .dtype = dtype});
      EXPECT_TRUE(together == alone) << dtype << ", blocks " << blocks;
      if (blocks == 40) {
        EXPECT_EQ(together[2].cached, 0);
        EXPECT_EQ(together[3].cached, 64);
        EXPECT_EQ(together[6].cached, 64);
      }
    }
  }
}

}  // namespace
}  // namespace megatron::generate
