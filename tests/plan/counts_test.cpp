#include "megatron/plan/cost/counts.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace megatron::plan {
namespace {

ModelShape gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t padded_vocab = 51200) {
  return {.num_layers = layers,
          .hidden = hidden,
          .num_heads = heads,
          .ffn_hidden = 4 * hidden,
          .vocab = 50257,
          .padded_vocab = padded_vocab,
          .max_positions = 1024};
}

TEST(ParameterCount, GivesTheSizesOfThePapersTables) {
  // Layers, width, heads and billions as in tables 1 and 2 of Shoeybi et al. (2019).
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt(24, 1024, 16))) / 1e9, 0.355, 0.001);
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt(40, 1536, 16))) / 1e9, 1.2, 0.05);
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt(54, 1920, 20))) / 1e9, 2.5, 0.05);
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt(64, 2304, 24))) / 1e9, 4.2, 0.05);
  EXPECT_NEAR(static_cast<double>(parameter_count(gpt(72, 3072, 32))) / 1e9, 8.3, 0.05);
}

TEST(ParameterCount, OfGpt2SmallIsItsPublishedSize) {
  EXPECT_EQ(parameter_count(gpt(12, 768, 12, 50257)), 124'439'808);
}

TEST(ParameterCount, CountsAnUntiedOutputLayer) {
  ModelShape shape = gpt(12, 768, 12, 50257);
  const std::int64_t tied = parameter_count(shape);
  shape.tied_output = false;
  EXPECT_EQ(parameter_count(shape) - tied, 50257 * 768);
}

TEST(TrainingFlops, CountsEachMatrixProductOfAStep) {
  // GPT-2 small, one sequence of 1024: 84,934,656 weights in the blocks and 50304 x 768 in the output layer, each used
  // by 6 operations a token; attention scores and sums over 768 wide heads, half of the square.
  const double matrices = 6.0 * 1024 * (84'934'656.0 + 50304.0 * 768.0);
  const double attention = 12 * 3 * 2 * 2 * 1024.0 * 1024.0 * 768.0 / 2;
  EXPECT_DOUBLE_EQ(training_flops(gpt(12, 768, 12, 50304), 1, 1024), matrices + attention);
  EXPECT_DOUBLE_EQ(training_flops(gpt(12, 768, 12, 50304), 7, 1024), 7 * (matrices + attention));
}

TEST(TrainingFlops, CountsWhatGroupsOfQueriesAndGatedUnitsMultiply) {
  // Megatron-LM's formula with q = 576, kv = 192 and three matrices of the MLP, those of SmolLM2-135M.
  ModelShape shape = gpt(30, 576, 9, 49152);
  shape.ffn_hidden = 1536;
  shape.num_groups = 3;
  shape.gated = true;
  const double matrices = 30 * (576.0 * (576 + 2 * 192) + 576 * 576 + 3.0 * 576 * 1536) + 576.0 * 49152;
  EXPECT_DOUBLE_EQ(training_flops(shape, 2, 512), 6 * 1024 * matrices + 6.0 * 2 * 512 * 512 * 576 * 30);
  shape.head_size = 32;  // q = 288, kv = 96
  const double narrow = 30 * (576.0 * (288 + 2 * 96) + 288 * 576 + 3.0 * 576 * 1536) + 576.0 * 49152;
  EXPECT_DOUBLE_EQ(training_flops(shape, 2, 512), 6 * 1024 * narrow + 6.0 * 2 * 512 * 512 * 288 * 30);
}

TEST(TrainingFlops, CountDepthsOfPredictionWithTheirProjectionsAndLogits) {
  ModelShape shape = gpt(12, 768, 12, 50304);
  shape.learned_positions = false;
  const double without = training_flops(shape, 3, 512);
  const std::int64_t parameters = parameter_count(shape), layer = 12 * 768 * 768 + 13 * 768;
  shape.mtp_depths = 2;
  const double weights = 12.0 * 768 * 768 + 2.0 * 768 * 768 + 50304.0 * 768;
  const double attention = 6 * 2.0 * 3 * 512 * 512 * 768 / 2 * 2;
  EXPECT_DOUBLE_EQ(training_flops(shape, 3, 512) - without, 2 * (6 * 3 * 512 * weights) + attention);
  EXPECT_EQ(parameter_count(shape) - parameters, 2 * (layer + 2 * 768 * 768 + 3 * 2 * 768));
}

TEST(TrainingFlops, OfAT5CountWhatItsDecoderSeesOfTheEncoder) {
  ModelShape shape{.num_layers = 5, .hidden = 8, .num_heads = 2, .ffn_hidden = 16, .vocab = 10, .padded_vocab = 12};
  shape.head_size = 3;
  shape.encoder_layers = 2;
  const double s = 20, d = 12, h = 8, rows = 6, f = 16, b = 3;  // lengths; rows of the heads together
  const double encoder = s * h * (3 * rows + rows + 2 * f) + 2 * s * s * rows;
  const double decoder = d * h * (3 * rows + rows + 2 * f) + d * d * rows           // half of the square is hidden
                         + d * h * 2 * rows + s * h * 2 * rows + 2 * d * s * rows;  // cross attention
  EXPECT_DOUBLE_EQ(training_flops(shape, 3, 20, 12), 3 * 2 * b * (2 * encoder + 3 * decoder + d * h * 12));
}

TEST(SeenShare, IsThatOfThePairsThatAWindowShows) {
  for (const bool causal : {true, false})
    for (const std::int64_t window : {0, 1, 7, 100, 1000}) {
      constexpr std::int64_t kLength = 400;
      const std::int64_t reach = window == 0 ? kLength : window;
      std::int64_t pairs = 0;
      for (std::int64_t i = 0; i < kLength; ++i)
        for (std::int64_t j = 0; j < kLength; ++j) pairs += std::abs(i - j) < reach && (!causal || j <= i) ? 1 : 0;
      const SelfAttention attention{.causal = causal, .variant = {.sliding_window = window}};
      EXPECT_NEAR(seen_share(attention, kLength), static_cast<double>(pairs) / (kLength * kLength), 1.0 / kLength)
          << causal << ", " << window;
    }
}

TEST(PaperActivationBytes, AreThoseOfTheTable) {
  constexpr auto kNone = Recomputation::None, kSelective = Recomputation::Selective, kFull = Recomputation::Full;
  // GPT-3: a = 96, s = 2048, h = 12288, so 5as/h = 80; MT-NLG 530B: a = 128, h = 20480, 64 (section 5).
  constexpr double kS = 2048, kGpt3 = 12288, kMtNlg = 20480;
  const double sbh = kS * kGpt3;
  EXPECT_DOUBLE_EQ(paper_activation_bytes(kS, 1, kGpt3, 96, 1, false, kNone), sbh * 114);
  EXPECT_DOUBLE_EQ(paper_activation_bytes(kS, 1, kGpt3, 96, 8, false, kNone), sbh * (10 + 24 / 8.0 + 80 / 8.0));
  EXPECT_DOUBLE_EQ(paper_activation_bytes(kS, 1, kGpt3, 96, 8, true, kNone), sbh * 114 / 8);
  EXPECT_DOUBLE_EQ(paper_activation_bytes(kS, 1, kGpt3, 96, 8, false, kSelective), sbh * 13);
  EXPECT_DOUBLE_EQ(paper_activation_bytes(kS, 1, kGpt3, 96, 8, true, kSelective), sbh * 34 / 8);
  EXPECT_DOUBLE_EQ(paper_activation_bytes(kS, 1, kGpt3, 96, 8, true, kFull), sbh * 2);
  // "Selective recomputation saves 70 % for GPT-3 and 65 % for MT-NLG."
  const auto saved = [&](double h, double a) {
    return 1 - paper_activation_bytes(kS, 1, h, a, 8, true, kSelective) /
                   paper_activation_bytes(kS, 1, h, a, 8, true, kNone);
  };
  EXPECT_NEAR(saved(kGpt3, 96), 0.70, 0.005);
  EXPECT_NEAR(saved(kMtNlg, 128), 0.65, 0.005);
}

}  // namespace
}  // namespace megatron::plan
