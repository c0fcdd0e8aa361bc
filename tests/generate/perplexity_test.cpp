#include "megatron/generate/perplexity.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

#include "megatron/base/error.h"
#include "megatron/comm/local_backend.h"
#include "tests/generate/small_gpt.h"
#include "tests/testing/dense_gpt.h"

namespace megatron::generate {
namespace {

using megatron::testing::make_store;
using megatron::testing::random_weights;
using ::testing::ElementsAre;

std::vector<std::int64_t> random_ids(std::size_t count) {
  std::mt19937 random(3);
  std::vector<std::int64_t> ids(count);
  for (auto& id : ids) id = static_cast<std::int64_t>(random() % 30);
  return ids;
}

TEST(Windows, FollowOneAnotherOrOverlapAndScoreEachTokenOnce) {
  EXPECT_THAT(windows(10, 4, 4), ElementsAre(Window{0, 4, 1}, Window{4, 4, 5}, Window{8, 2, 9}));
  EXPECT_THAT(windows(9, 4, 4), ElementsAre(Window{0, 4, 1}, Window{4, 4, 5}));  // the last token has nothing before it
  EXPECT_THAT(windows(9, 4, 2), ElementsAre(Window{0, 4, 1}, Window{2, 4, 4}, Window{4, 4, 6}, Window{6, 3, 8}));
  EXPECT_THAT(windows(3, 8, 2), ElementsAre(Window{0, 3, 1}));
  for (const std::int64_t stride : {1, 3, 5}) {
    std::int64_t scored = 0;
    for (const Window& window : windows(57, 6, stride)) scored += window.scored();
    EXPECT_EQ(scored, 56) << stride;
  }
}

TEST(Windows, RefuseWhatScoresNothing) {
  EXPECT_THROW(windows(10, 1, 1), ConfigError);
  EXPECT_THROW(windows(10, 4, 5), ConfigError);
  EXPECT_THROW(windows(10, 4, 0), ConfigError);
  EXPECT_THROW(windows(1, 4, 4), ConfigError);
}

TEST(TextLoss, IsTheSumOverTheScoredTokensOfEachWindowsLogits) {
  const auto options = small_gpt();
  const auto weights = random_weights(options.shape, 4);
  const auto ids = random_ids(29);
  const auto cut = windows(29, 8, 3);
  const auto store = make_store(options.shape, 1, 0, weights);
  const model::Gpt gpt(options, store, {});
  double expected = 0;
  for (const Window& window : cut) {
    model::Batch batch;
    const std::vector<std::int64_t> seen(ids.begin() + window.begin, ids.begin() + window.begin + window.size);
    batch.tokens_bs = at::tensor(seen, at::kLong).unsqueeze(0);
    const auto log_p = gpt.logits(batch)[0].log_softmax(-1);
    for (std::int64_t t = window.first_scored; t < window.begin + window.size; ++t)
      expected -= log_p[t - 1 - window.begin][ids[static_cast<std::size_t>(t)]].item<double>();
  }
  const auto tensor = at::TensorOptions(at::kDouble);
  for (const std::int64_t batch : {1, 3, 100}) {
    const auto loss = text_loss(gpt, {}, tensor, ids, cut, batch);
    EXPECT_NEAR(loss.nll, expected, 1e-10) << batch;
    EXPECT_EQ(loss.scored_tokens, 28);
  }
  for (const bool pipeline : {false, true})
    comm::run_ranks(2, [&](comm::Group group) {
      const auto part = pipeline ? plan::parts_of_layers({1, 1})[static_cast<std::size_t>(group.rank())]
                                 : plan::whole_model(options.shape.num_layers);
      const model::Gpt stage(options, part, store, {});
      const LossRanks ranks{.pp = pipeline ? group : comm::Group(), .dp = pipeline ? comm::Group() : group};
      const auto loss = text_loss(stage, ranks, tensor, ids, cut, 2);
      EXPECT_NEAR(loss.nll, expected, 1e-10) << (pipeline ? "pp" : "dp");
      EXPECT_EQ(loss.scored_tokens, 28);
    });
}

}  // namespace
}  // namespace megatron::generate
