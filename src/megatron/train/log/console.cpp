#include "megatron/train/log/console.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "megatron/base/text/format.h"

namespace megatron::train {
namespace {

std::string time_stamp(std::int64_t time_us) {
  const std::time_t seconds = time_us / 1'000'000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return std::string(text, length) + fmt::format(".{:06}", time_us % 1'000'000);
}

}  // namespace

std::string iteration_line(const IterationLine& line, std::int64_t time_us) {
  std::string text = " [" + time_stamp(time_us) + "]";
  text += fmt::format(" iteration {:8}/{:8} |", line.iteration, line.train_iters);
  text += fmt::format(" consumed samples: {:12} |", line.consumed_samples);
  text += fmt::format(" elapsed time per iteration (ms): {:.1f} |", line.step_ms);
  text += fmt::format(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", line.tflops_per_rank);
  text += fmt::format(" learning rate: {:.6E} |", line.learning_rate);
  if (line.decoupled_learning_rate)
    text += fmt::format(" decoupled learning rate: {:.6E} |", *line.decoupled_learning_rate);
  text += fmt::format(" global batch size: {:5} |", line.global_batch);
  if (line.loss > 0) text += fmt::format(" lm loss: {:.6E} |", line.loss);
  if (line.sentence_loss > 0) text += fmt::format(" sop loss: {:.6E} |", line.sentence_loss);
  text += fmt::format(" loss scale: {:.1f} |", line.loss_scale);
  text += fmt::format(" grad norm: {:.3f} |", line.grad_norm);
  text += fmt::format(" number of skipped iterations: {:3} |", line.skipped);
  text += fmt::format(" number of nan iterations: {:3} |", line.nan);
  return text;
}

std::string validation_lines(const std::string& where, double loss, double perplexity,
                             const std::optional<double>& sentence_loss) {
  std::string text = " validation loss at " + where + fmt::format(" | lm loss value: {:.6E} |", loss) +
                     fmt::format(" lm loss PPL: {:.6E} | ", perplexity);
  if (sentence_loss)
    text += fmt::format("sop loss value: {:.6E} |", *sentence_loss) +
            fmt::format(" sop loss PPL: {:.6E} | ", std::exp(std::min(20.0, *sentence_loss)));
  const std::string dashes(text.size() + 1, '-');
  return dashes + "\n" + text + "\n" + dashes;
}

}  // namespace megatron::train
