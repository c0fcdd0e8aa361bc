#include "megatron/generate/score.h"

#include <gmock/gmock.h>

#include <random>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_backend.h"
#include "megatron/parallel/context.h"
#include "tests/generate/small_model.h"
#include "tests/testing/dense_model.h"

namespace megatron::generate {
namespace {

using megatron::testing::DenseModel;
using megatron::testing::make_store;
using megatron::testing::random_weights;
using tasks::Window;
using tasks::WindowScore;

std::vector<std::int64_t> random_ids(std::size_t count) {
  std::mt19937 random(3);
  std::vector<std::int64_t> ids(count);
  for (auto& id : ids) id = static_cast<std::int64_t>(random() % 22);
  return ids;
}

/// Two layers as GPT-2 has them, or as Llama has, of whose vocabulary the last of four ranks has nothing.
std::vector<model::TransformerOptions> models() {
  auto llama = small_model();
  llama.shape.rms_norm = llama.shape.gated = true;
  llama.shape.learned_positions = llama.shape.linear_bias = llama.shape.tied_output = false;
  llama.rope.rotary_dim = 4;
  llama.activation = kernels::Activation::Silu;
  llama.shape.vocab = 22;
  return {small_model(), llama};
}

/// Each window alone, every position's logits, in plain float64.
std::vector<WindowScore> brute_force(const DenseModel& model, const std::vector<std::int64_t>& ids,
                                     const std::vector<Window>& windows) {
  std::vector<WindowScore> scores;
  for (const Window& window : windows) {
    model::Batch batch;
    const std::vector<std::int64_t> seen(ids.begin() + window.begin, ids.begin() + window.begin + window.size);
    batch.tokens_bs = at::tensor(seen, at::kLong).unsqueeze(0);
    const auto log_p = model.logits(batch, false)[0].log_softmax(-1);
    WindowScore score{.nll = 0, .right = true};
    for (std::int64_t t = window.first_scored; t < window.begin + window.size; ++t) {
      const auto row = log_p[t - 1 - window.begin];
      const std::int64_t token = ids[static_cast<std::size_t>(t)];
      score.nll -= row[token].item<double>();
      score.right = score.right && row.argmax().item<std::int64_t>() == token;
    }
    scores.push_back(score);
  }
  return scores;
}

/// Moved by a stride, and then some of other sizes, among which the model foresees what is scored.
std::vector<Window> some_windows(const DenseModel& model, std::vector<std::int64_t>& ids) {
  auto cut = tasks::windows(29, 8, 3);
  for (const Window& window : {Window{0, 12, 11}, Window{3, 2, 4}, Window{5, 7, 9}}) cut.push_back(window);
  model::Batch batch;
  batch.tokens_bs = at::tensor(std::vector<std::int64_t>(ids.begin(), ids.begin() + 11), at::kLong).unsqueeze(0);
  ids[11] = model.logits(batch, false)[0][10].argmax().item<std::int64_t>();
  return cut;
}

void expect_near(const std::vector<WindowScore>& got, const std::vector<WindowScore>& want, const std::string& where,
                 double bound = 1e-11) {
  ASSERT_EQ(got.size(), want.size()) << where;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i].nll, want[i].nll, bound) << where << ", window " << i;
    EXPECT_EQ(got[i].right, want[i].right) << where << ", window " << i;
  }
}

struct Layout {
  int tp, pp, dp;
};

/// What the first rank gets; all ranks must get the same.
std::vector<WindowScore> scores_in(const Layout& layout, const model::TransformerOptions& options,
                                   const megatron::testing::Tensors& weights, const std::vector<std::int64_t>& ids,
                                   const std::vector<Window>& cut, std::int64_t batch) {
  std::vector<std::vector<WindowScore>> got(static_cast<std::size_t>(layout.tp * layout.pp * layout.dp));
  comm::run_ranks(static_cast<int>(got.size()), [&](comm::Group world) {
    using plan::Axis;
    const plan::RankGrid grid(layout.tp, 1, layout.dp, layout.pp, world.size());
    const parallel::ParallelContext context(grid, world, at::kCPU);
    const auto part = layout.pp > 1 ? plan::parts_of_layers({1, 1})[static_cast<std::size_t>(context.pipeline().rank())]
                                    : plan::whole_model(2);
    const auto store = make_store(options.shape, layout.tp, context.tensor().rank(), weights);
    const model::ScoringGpt gpt(options, part, store, context.tensor());
    std::int64_t told = 0;
    got[static_cast<std::size_t>(world.rank())] = score_windows(
        gpt, {.pp = context.pipeline(), .dp = context.samples()}, at::TensorOptions(at::kDouble), ids, cut,
        {.batch = batch, .batch_tokens = 30, .likeliest = true}, [&](std::int64_t done) { told = done; });
    if (layout.dp == 1) {
      EXPECT_EQ(told, static_cast<std::int64_t>(cut.size()));
    }
  });
  for (const auto& scores : got) EXPECT_EQ(scores, got[0]);
  return got[0];
}

TEST(ScoreWindows, GivesWhatEachWindowAloneHasInEveryLayoutAndBatch) {
  for (const auto& options : models()) {
    const auto weights = random_weights(options.shape, 4);
    const DenseModel dense(options, weights);
    auto ids = random_ids(29);
    const auto cut = some_windows(dense, ids);
    const auto expected = brute_force(dense, ids, cut);
    ASSERT_TRUE(expected[cut.size() - 3].right);
    ASSERT_GT(std::ranges::count(expected, false, &WindowScore::right), 3);
    for (const std::int64_t batch : {0, 1, 3}) {
      const auto one = scores_in({1, 1, 1}, options, weights, ids, cut, batch);
      for (const Layout& layout : {Layout{1, 1, 3}, {1, 2, 1}, {2, 1, 1}, {4, 1, 1}, {2, 2, 2}}) {
        const auto where = concat("tp ", layout.tp, " pp ", layout.pp, " dp ", layout.dp, " batch ", batch);
        const auto got = scores_in(layout, options, weights, ids, cut, batch);
        expect_near(got, expected, where);
        // A library whose products depend on where operands lie may round another way, no more.
        if (layout.tp == 1) expect_near(got, one, where + " against one rank", 1e-13);
      }
    }
  }
}

TEST(ScoreWindows, DoNotDependOnHowStagesDivideTheLayers) {
  const auto options = models()[1];
  const auto store = make_store(options.shape, 1, 0, random_weights(options.shape, 4));
  const auto ids = random_ids(29);
  const auto cut = tasks::windows(29, 8, 3);
  const auto scores = [&](const std::vector<std::int64_t>& layers) {
    std::vector<WindowScore> result;
    comm::run_ranks(static_cast<int>(layers.size()), [&](comm::Group pp) {
      const model::ScoringGpt stage(options, plan::parts_of_layers(layers)[static_cast<std::size_t>(pp.rank())], store,
                                    {});
      const auto got = score_windows(stage, {.pp = pp, .dp = {}}, at::TensorOptions(at::kDouble), ids, cut, {});
      if (pp.rank() == 0) result = got;
    });
    return result;
  };
  const auto whole = scores({2});
  for (const std::vector<std::int64_t>& layers : {std::vector<std::int64_t>{0, 2}, {2, 0}, {1, 1}, {0, 2, 0}})
    EXPECT_EQ(scores(layers), whole) << layers.size();
}

TEST(ScoreWindows, RefuseTokensAndPositionsThatTheModelHasNot) {
  const auto options = small_model();
  const auto store = make_store(options.shape, 1, 0);
  const model::ScoringGpt gpt(options, plan::whole_model(2), store, {});
  const auto score = [&](const std::vector<std::int64_t>& ids) {
    const auto size = static_cast<std::int64_t>(ids.size());
    return score_windows(gpt, {}, at::TensorOptions(at::kDouble), ids, {{0, size, size - 1}}, {});
  };
  EXPECT_NO_THROW(score(std::vector<std::int64_t>(13, 29)));
  EXPECT_THROW(score(std::vector<std::int64_t>(14, 29)), ConfigError);
  EXPECT_THROW(score({1, 2, 30}), ConfigError);  // to foresee
  EXPECT_THROW(score({1, 30, 2}), ConfigError);  // to read
  EXPECT_THROW(score({1, 2, -1}), ConfigError);
}

}  // namespace
}  // namespace megatron::generate
