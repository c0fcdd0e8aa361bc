#include "megatron/train/log/console.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "megatron/base/error.h"

namespace megatron::train {
namespace {

IterationLine example() {
  return {.iteration = 10,
          .train_iters = 200,
          .consumed_samples = 640,
          .step_ms = 1234.56,
          .tflops_per_rank = 0.42,
          .learning_rate = 1.5e-4,
          .global_batch = 64,
          .loss = 9.87654321,
          .loss_scale = 1,
          .grad_norm = 2.34567,
          .skipped = 1,
          .nan = 0};
}

// The format strings of Megatron-LM's training_log, filled in by hand.
TEST(Console, PrintsTheIterationLineOfMegatron) {
  setenv("TZ", "UTC", 1);
  tzset();
  EXPECT_EQ(
      iteration_line(example(), 1'700'000'000'012'345),
      " [2023-11-14 22:13:20.012345] iteration       10/     200 | consumed samples:          640 | elapsed time "
      "per iteration (ms): 1234.6 | throughput per GPU (TFLOP/s/GPU): 0.420 | learning rate: 1.500000E-04 | global "
      "batch size:    64 | lm loss: 9.876543E+00 | loss scale: 1.0 | grad norm: 2.346 | number of skipped "
      "iterations:   1 | number of nan iterations:   0 |");
}

std::string throughput_of(double tflops) {
  IterationLine line = example();
  line.tflops_per_rank = tflops;
  const std::string text = iteration_line(line, 0), name = "(TFLOP/s/GPU): ";
  const std::size_t begin = text.find(name) + name.size();
  return text.substr(begin, text.find(" |", begin) - begin);
}

TEST(Console, PrintsThreeDigitsOfAThroughputHoweverSmall) {
  EXPECT_EQ(throughput_of(412.345), "412.3");
  EXPECT_EQ(throughput_of(10), "10.0");
  EXPECT_EQ(throughput_of(9.4321), "9.43");
  EXPECT_EQ(throughput_of(0.4321), "0.432");
  EXPECT_EQ(throughput_of(0.000012345), "0.0000123");
  EXPECT_EQ(throughput_of(0), "0.0");
}

TEST(Console, PrintsWhatIsAskedForInMegatronsPlacesAndItsOwnFieldsLast) {
  IterationLine line = example();
  line.num_zeros = 1234;
  line.params_norm = 56.78901;
  line.shows_throughput = false;
  line.tokens_per_s = 1234.56;
  line.memory_bytes = 1.5 * 1024 * 1024;
  line.left_s = 3729;
  const std::string text = iteration_line(line, 0);
  EXPECT_NE(text.find("| elapsed time per iteration (ms): 1234.6 | learning rate:"), std::string::npos) << text;
  EXPECT_NE(text.find(" grad norm: 2.346 | num zeros: 1234 | params norm: 56.789 | number of skipped"),
            std::string::npos)
      << text;
  EXPECT_TRUE(
      text.ends_with(" number of nan iterations:   0 | tokens per second: 1234.6 | memory (MB): 1.5 | ETA: "
                     "1:02:09 |"))
      << text;
}

TEST(Console, HasACompactForm) {
  setenv("TZ", "UTC", 1);
  tzset();
  IterationLine line = example();
  line.tokens_per_s = 12345;
  line.left_s = 42;
  EXPECT_EQ(compact_line(line, 1'700'000'000'012'345),
            " 22:13:20 step 10/200 | loss 9.8765 | lr 1.500e-04 | grad norm 2.35 | 1235 ms | 12.3 k tokens/s | 0.420 "
            "TFLOP/s per rank | 1 skipped | ETA 42 s |");
}

TEST(Console, PrintsMemoryAsMegatronDoesAndTheSlowestRank) {
  EXPECT_EQ(memory_line(3, 10, 1024.0 * 1024, 2.5 * 1024 * 1024),
            "[Rank 3] (after 10 iterations) memory (MB) | allocated: 1.00 | max allocated: 2.50");
  EXPECT_EQ(straggler_line({.rank = 3, .compute_ms = 12.345, .median_ms = 10}),
            " slowest rank: 3 | computing per step (ms): 12.35 | median of the ranks (ms): 10.00 |");
}

TEST(Console, PrintsNumbersOfAnySize) {
  IterationLine line = example();
  line.grad_norm = 1e300;  // some 300 digits
  const std::string text = iteration_line(line, 0);
  const std::size_t begin = text.find("grad norm: ") + 11, end = text.find(" |", begin);
  EXPECT_EQ(text.substr(end), " | number of skipped iterations:   1 | number of nan iterations:   0 |");
  EXPECT_EQ(end - begin, 301u + 4u);
  EXPECT_EQ(std::strtod(text.c_str() + begin, nullptr), 1e300);
}

TEST(Console, LeavesOutALossWithoutValueAsMegatronDoes) {
  IterationLine line = example();
  line.loss = 0;
  EXPECT_EQ(iteration_line(line, 0).find("lm loss"), std::string::npos);
}

TEST(Console, PrintsADecoupledLearningRateAsMegatronDoes) {
  IterationLine line = example();
  line.decoupled_learning_rate = 3e-5;
  EXPECT_NE(iteration_line(line, 0).find(
                " learning rate: 1.500000E-04 | decoupled learning rate: 3.000000E-05 | global batch size:"),
            std::string::npos);
}

TEST(Console, PrintsBothLossesOfABertAsMegatronDoes) {
  IterationLine line = example();
  line.sentence_loss = 0.6931472;
  EXPECT_NE(iteration_line(line, 0).find(" lm loss: 9.876543E+00 | sop loss: 6.931472E-01 | loss scale: 1.0 |"),
            std::string::npos);
  EXPECT_NE(validation_lines("iteration 20", 3, 20.0855369, 0.0)
                .find(" lm loss PPL: 2.008554E+01 | sop loss value: 0.000000E+00 | sop loss PPL: 1.000000E+00 | \n"),
            std::string::npos);
}

TEST(Console, PrintsLossesOfTokensAheadAsMegatronDoes) {
  IterationLine line = example();
  line.depth_losses = {10.5, 11.25};
  EXPECT_NE(iteration_line(line, 0).find(
                " lm loss: 9.876543E+00 | mtp_1 loss: 1.050000E+01 | mtp_2 loss: 1.125000E+01 | loss scale: 1.0 |"),
            std::string::npos);
}

TEST(Console, PrintsWhatALossOfOnesOwnReports) {
  IterationLine line = example();
  line.figures = {{"rewards/margins", -0.25}, {"logps/chosen", -31.5}};
  EXPECT_NE(iteration_line(line, 0).find(" lm loss: 9.876543E+00 | rewards/margins: -2.500000E-01 | logps/chosen: "
                                         "-3.150000E+01 | loss scale: 1.0 |"),
            std::string::npos);
  EXPECT_NE(compact_line(line, 0).find(" | rewards/margins -0.25 | logps/chosen -31.5 | lr "), std::string::npos);
  EXPECT_NE(validation_lines("iteration 20", 3, 20.0855369, {}, line.figures)
                .find(" lm loss PPL: 2.008554E+01 | rewards/margins: -2.500000E-01 | logps/chosen: -3.150000E+01 | \n"),
            std::string::npos);
}

TEST(Console, PrintsTheValidationMessageOfMegatron) {
  const std::string rule(94, '-');
  EXPECT_EQ(
      validation_lines("iteration 20", 3, 20.0855369),
      concat(rule, "\n validation loss at iteration 20 | lm loss value: 3.000000E+00 | lm loss PPL: 2.008554E+01 | \n",
             rule));
}

}  // namespace
}  // namespace megatron::train
