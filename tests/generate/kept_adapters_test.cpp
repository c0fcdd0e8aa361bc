#include <gmock/gmock.h>

#include <memory>
#include <utility>
#include <vector>

#include "megatron/comm/threads/local_backend.h"
#include "megatron/generate/generate.h"
#include "megatron/generate/serving/engine.h"
#include "tests/generate/small_model.h"
#include "tests/testing/adapters.h"
#include "tests/testing/dense_model.h"
#include "tests/testing/ear.h"

namespace megatron::generate {
namespace {

using Ids = std::vector<std::int64_t>;

/// What is asked for.
struct Asked {
  Ids prompt;
  std::int64_t adapter = 0;
};

struct Written {
  Ids tokens;
  std::int64_t cached = 0;
};

model::TransformerOptions long_model() {
  model::TransformerOptions options = small_model();
  options.shape.max_positions = 200;
  return options;
}

/// What an engine writes on tp x pp ranks that keep `adapters` beside `weights`; texts are asked for at once.
std::vector<Written> written(const std::vector<Asked>& asked, const testing::Tensors& weights,
                             const std::vector<testing::WholeAdapter>& adapters, int tp_size, int pp_size) {
  const model::TransformerOptions options = long_model();
  const auto parts =
      plan::parts_of_layers(pp_size == 1 ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>{1, 1});
  std::vector<Written> texts;
  comm::run_ranks(tp_size * pp_size, [&](const comm::Group& world) {
    std::vector<int> all(static_cast<std::size_t>(world.size()));
    for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = static_cast<int>(rank);
    const comm::Group whole = world.split({all}), tp = tp_size > 1 ? whole : comm::Group(),
                      pp = pp_size > 1 ? whole : comm::Group();
    const auto& part = parts[static_cast<std::size_t>(pp.rank())];
    const auto store = testing::make_store(options.shape, tp_size, tp.rank(), weights, at::kFloat);
    model::TransformerOptions own = options;
    if (!adapters.empty()) own.kept = testing::kept(options.shape, part, tp, adapters, at::kFloat);
    const StagedModel model(model::CachedGpt(own, part, store, tp), pp, at::TensorOptions().dtype(at::kFloat));
    RankSlots slots(model, world, at::kCPU, 40);
    if (world.rank() > 0) return slots.follow();
    serve::TaskQueue queue({.texts = 100, .texts_of_client = 100});
    serve::Metrics metrics;
    serve::declare_metrics(metrics);
    Engine engine(slots, queue, metrics, {.slots = 4, .read_tokens = 64});
    std::vector<std::shared_ptr<testing::Ear>> ears;
    for (const Asked& one : asked) {
      serve::TextTask task{.prompt = one.prompt, .adapter = one.adapter, .max_tokens = 30};
      task.sampling.temperature = 1;
      task.seed = 3;
      ears.push_back(testing::submitted(std::move(task), queue));
      engine.step();
    }
    while (engine.step()) continue;
    slots.stop();
    for (const auto& ear : ears) {
      EXPECT_EQ(ear->end, "length");
      texts.push_back({ear->tokens, ear->cached});
    }
  });
  return texts;
}

std::vector<testing::WholeAdapter> two_adapters(const plan::ModelShape& shape) {
  return {testing::random_adapter(shape, 30, {.rank = 3, .alpha = 6, .targets = {"all-linear"}}),
          testing::random_adapter(shape, 31, {.rank = 2, .alpha = 4, .dora = true, .targets = {"q_proj", "o_proj"}})};
}

// The same prompt of two units for all, asked for in turns, so that a prefix read with another adapter is at hand.
TEST(KeptAdapters, WriteWhatEnginesOfMergedWeightsWriteInEveryLayout) {
  const plan::ModelShape shape = long_model().shape;
  const auto weights = testing::random_weights(shape, 4);
  const auto adapters = two_adapters(shape);
  const Ids prompt(130, 7);
  std::vector<Asked> asked;
  for (const std::int64_t adapter : {0, 1, 2, 1, 0, 2}) asked.push_back({prompt, adapter});
  asked.push_back({{5, 6}, 1});
  asked.push_back({{5, 6}, 2});
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
    const auto got = written(asked, weights, adapters, tp, pp);
    std::vector<Ids> firsts;
    for (std::int64_t which = 0; which < 3; ++which) {
      const auto theirs =
          which == 0 ? weights : testing::merged(shape, weights, adapters[static_cast<std::size_t>(which - 1)]);
      std::vector<Asked> own;
      for (const Asked& one : asked)
        if (one.adapter == which) own.push_back({one.prompt, 0});
      const auto want = written(own, theirs, {}, tp, pp);
      for (std::size_t i = 0, k = 0; i < asked.size(); ++i) {
        if (asked[i].adapter != which) continue;
        EXPECT_EQ(got[i].tokens, want[k++].tokens) << "tp " << tp << ", pp " << pp << ", adapter " << which;
        const bool again = asked[i].prompt.size() > 100 && i > 2;
        EXPECT_EQ(got[i].cached, again ? 128 : 0) << "tp " << tp << ", pp " << pp << ", " << i;
      }
      firsts.push_back(want[0].tokens);
    }
    EXPECT_NE(firsts[0], firsts[1]);
    EXPECT_NE(firsts[0], firsts[2]);
    EXPECT_NE(firsts[1], firsts[2]);
  }
}

TEST(KeptAdapters, TheUsualOneIsThatOfTextsOfWhichNothingIsSaid) {
  const model::TransformerOptions options = long_model();
  const auto weights = testing::random_weights(options.shape, 4);
  const auto adapters = two_adapters(options.shape);
  const plan::StageSpec part = plan::whole_model(options.shape.num_layers);
  const std::vector<Ids> prompts = {Ids(20, 7), {1, 2, 3}};
  for (std::int64_t which = 0; which < 3; ++which) {
    model::TransformerOptions own = options;
    const auto kept = testing::kept(options.shape, part, {}, adapters, at::kFloat);
    kept->choice->set_usual(which);
    own.kept = kept;
    const auto theirs =
        which == 0 ? weights : testing::merged(options.shape, weights, adapters[static_cast<std::size_t>(which - 1)]);
    const auto store = testing::make_store(options.shape, 1, 0, weights, at::kFloat),
               sums = testing::make_store(options.shape, 1, 0, theirs, at::kFloat);
    const GenerateOptions how{.max_new_tokens = 30, .sampling = {.temperature = 0}};
    const StagedModel beside(model::CachedGpt(own, store, {})), merged(model::CachedGpt(options, sums, {}));
    EXPECT_EQ(megatron::generate::generate(beside, prompts, how), megatron::generate::generate(merged, prompts, how));
  }
}

}  // namespace
}  // namespace megatron::generate
