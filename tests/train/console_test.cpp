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
  EXPECT_EQ(iteration_line(example(), 1'700'000'000'012'345),
            " [2023-11-14 22:13:20.012345] iteration       10/     200 | consumed samples:          640 | elapsed time "
            "per iteration (ms): 1234.6 | throughput per GPU (TFLOP/s/GPU): 0.4 | learning rate: 1.500000E-04 | global "
            "batch size:    64 | lm loss: 9.876543E+00 | loss scale: 1.0 | grad norm: 2.346 | number of skipped "
            "iterations:   1 | number of nan iterations:   0 |");
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

TEST(Console, PrintsTheValidationMessageOfMegatron) {
  const std::string rule(94, '-');
  EXPECT_EQ(
      validation_lines("iteration 20", 3, 20.0855369),
      concat(rule, "\n validation loss at iteration 20 | lm loss value: 3.000000E+00 | lm loss PPL: 2.008554E+01 | \n",
             rule));
}

}  // namespace
}  // namespace megatron::train
