#include "megatron/train/console.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <ctime>

namespace megatron::train {
namespace {

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  va_list arguments, again;
  va_start(arguments, pattern);
  va_copy(again, arguments);
  std::string text(static_cast<std::size_t>(std::vsnprintf(nullptr, 0, pattern, arguments)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  va_end(arguments);
  return text;
}

std::string time_stamp(std::int64_t time_us) {
  const std::time_t seconds = time_us / 1'000'000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return std::string(text, length) + format(".%06" PRId64, time_us % 1'000'000);
}

}  // namespace

std::string iteration_line(const IterationLine& line, std::int64_t time_us) {
  std::string text = " [" + time_stamp(time_us) + "]";
  text += format(" iteration %8" PRId64 "/%8" PRId64 " |", line.iteration, line.train_iters);
  text += format(" consumed samples: %12" PRId64 " |", line.consumed_samples);
  text += format(" elapsed time per iteration (ms): %.1f |", line.step_ms);
  text += format(" throughput per GPU (TFLOP/s/GPU): %.1f |", line.tflops_per_rank);
  text += format(" learning rate: %.6E |", line.learning_rate);
  text += format(" global batch size: %5" PRId64 " |", line.global_batch);
  if (line.loss > 0) text += format(" lm loss: %.6E |", line.loss);
  if (line.sentence_loss > 0) text += format(" sop loss: %.6E |", line.sentence_loss);
  text += format(" loss scale: %.1f |", line.loss_scale);
  text += format(" grad norm: %.3f |", line.grad_norm);
  text += format(" number of skipped iterations: %3" PRId64 " |", line.skipped);
  text += format(" number of nan iterations: %3" PRId64 " |", line.nan);
  return text;
}

std::string validation_lines(const std::string& where, double loss, double perplexity,
                             const std::optional<double>& sentence_loss) {
  std::string text = " validation loss at " + where + format(" | lm loss value: %.6E |", loss) +
                     format(" lm loss PPL: %.6E | ", perplexity);
  if (sentence_loss)
    text += format("sop loss value: %.6E |", *sentence_loss) +
            format(" sop loss PPL: %.6E | ", std::exp(std::min(20.0, *sentence_loss)));
  const std::string dashes(text.size() + 1, '-');
  return dashes + "\n" + text + "\n" + dashes;
}

}  // namespace megatron::train
