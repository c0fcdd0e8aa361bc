#include "megatron/train/log/console.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "megatron/base/progress.h"
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

constexpr double kMegabyte = 1024.0 * 1024.0;  // as in Megatron-LM's reports

// With one decimal, as Megatron-LM has it, where that shows three digits; else with as many as show three.
std::string three_digits(double value) {
  int decimals = 1;
  for (double shown = std::abs(value); shown < 9.95 && shown > 0 && decimals < 12; shown *= 10) ++decimals;
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

std::string iteration_line(const IterationLine& line, std::int64_t time_us) {
  std::string text = " [" + time_stamp(time_us) + "]";
  text += fmt::format(" iteration {:8}/{:8} |", line.iteration, line.train_iters);
  text += fmt::format(" consumed samples: {:12} |", line.consumed_samples);
  text += fmt::format(" elapsed time per iteration (ms): {:.1f} |", line.step_ms);
  if (line.shows_throughput) text += " throughput per GPU (TFLOP/s/GPU): " + three_digits(line.tflops_per_rank) + " |";
  text += fmt::format(" learning rate: {:.6E} |", line.learning_rate);
  if (line.decoupled_learning_rate)
    text += fmt::format(" decoupled learning rate: {:.6E} |", *line.decoupled_learning_rate);
  text += fmt::format(" global batch size: {:5} |", line.global_batch);
  if (line.loss > 0) text += fmt::format(" lm loss: {:.6E} |", line.loss);
  if (line.sentence_loss > 0) text += fmt::format(" sop loss: {:.6E} |", line.sentence_loss);
  for (std::size_t k = 0; k < line.depth_losses.size(); ++k)
    if (line.depth_losses[k] > 0) text += fmt::format(" mtp_{} loss: {:.6E} |", k + 1, line.depth_losses[k]);
  for (const LossFigure& figure : line.figures) text += fmt::format(" {}: {:.6E} |", figure.name, figure.value);
  text += fmt::format(" loss scale: {:.1f} |", line.loss_scale);
  if (std::isfinite(line.grad_norm)) text += fmt::format(" grad norm: {:.3f} |", line.grad_norm);
  if (line.num_zeros) text += fmt::format(" num zeros: {:.0f} |", *line.num_zeros);
  if (line.params_norm) text += fmt::format(" params norm: {:.3f} |", *line.params_norm);
  text += fmt::format(" number of skipped iterations: {:3} |", line.skipped);
  text += fmt::format(" number of nan iterations: {:3} |", line.nan);
  if (line.tokens_per_s) text += fmt::format(" tokens per second: {:.1f} |", *line.tokens_per_s);
  if (line.memory_bytes) text += fmt::format(" memory (MB): {:.1f} |", *line.memory_bytes / kMegabyte);
  if (line.left_s) text += " ETA: " + human_duration(*line.left_s) + " |";
  return text;
}

std::string compact_line(const IterationLine& line, std::int64_t time_us) {
  std::string text =
      " " + time_stamp(time_us).substr(11, 8) + fmt::format(" step {}/{} |", line.iteration, line.train_iters);
  if (line.loss > 0) text += fmt::format(" loss {:.4f} |", line.loss);
  if (line.sentence_loss > 0) text += fmt::format(" sop loss {:.4f} |", line.sentence_loss);
  for (std::size_t k = 0; k < line.depth_losses.size(); ++k)
    if (line.depth_losses[k] > 0) text += fmt::format(" mtp_{} loss {:.4f} |", k + 1, line.depth_losses[k]);
  for (const LossFigure& figure : line.figures) text += fmt::format(" {} {:.4g} |", figure.name, figure.value);
  text += fmt::format(" lr {:.3e} |", line.learning_rate);
  if (std::isfinite(line.grad_norm)) text += fmt::format(" grad norm {:.3g} |", line.grad_norm);
  if (line.num_zeros) text += fmt::format(" zeros {:.0f} |", *line.num_zeros);
  if (line.params_norm) text += fmt::format(" params norm {:.5g} |", *line.params_norm);
  if (line.loss_scale != 1) text += fmt::format(" loss scale {:g} |", line.loss_scale);
  text += fmt::format(" {:.4g} ms |", line.step_ms);
  if (line.tokens_per_s) text += " " + human_count(*line.tokens_per_s) + " tokens/s |";
  if (line.shows_throughput) text += " " + three_digits(line.tflops_per_rank) + " TFLOP/s per rank |";
  if (line.memory_bytes) text += " " + human_bytes(*line.memory_bytes) + " |";
  if (line.skipped > 0) text += fmt::format(" {} skipped |", line.skipped);
  if (line.nan > 0) text += fmt::format(" {} nan |", line.nan);
  if (line.left_s) text += " ETA " + human_duration(*line.left_s) + " |";
  return text;
}

std::string memory_line(int rank, std::int64_t iteration, double bytes, double peak_bytes) {
  return fmt::format("[Rank {}] (after {} iterations) memory (MB) | allocated: {:.2f} | max allocated: {:.2f}", rank,
                     iteration, bytes / kMegabyte, peak_bytes / kMegabyte);
}

std::string straggler_line(const IterationMetrics::Straggler& straggler) {
  return fmt::format(" slowest rank: {} | computing per step (ms): {:.2f} | median of the ranks (ms): {:.2f} |",
                     straggler.rank, straggler.compute_ms, straggler.median_ms);
}

std::string validation_lines(const std::string& where, double loss, double perplexity,
                             const std::optional<double>& sentence_loss, const std::vector<LossFigure>& figures) {
  std::string text = " validation loss at " + where + fmt::format(" | lm loss value: {:.6E} |", loss) +
                     fmt::format(" lm loss PPL: {:.6E} | ", perplexity);
  if (sentence_loss)
    text += fmt::format("sop loss value: {:.6E} |", *sentence_loss) +
            fmt::format(" sop loss PPL: {:.6E} | ", std::exp(std::min(20.0, *sentence_loss)));
  for (const LossFigure& figure : figures) text += fmt::format("{}: {:.6E} | ", figure.name, figure.value);
  const std::string dashes(text.size() + 1, '-');
  return dashes + "\n" + text + "\n" + dashes;
}

}  // namespace megatron::train
