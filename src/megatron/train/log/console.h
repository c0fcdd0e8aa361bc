#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/train/log/metrics.h"

namespace megatron::train {

/// What Megatron-LM's training log says about the iterations since the last line.
struct IterationLine {
  std::int64_t iteration = 0, train_iters = 0, consumed_samples = 0;
  double step_ms = 0;          ///< mean over the interval
  double tflops_per_rank = 0;  ///< model FLOPs (causal attention counted half), 1e12 a second and rank
  double learning_rate = 0;    ///< after the schedule's step: what the next iteration will use
  std::optional<double> decoupled_learning_rate = {};  ///< of word embedding and output layer, where it is their own
  std::int64_t global_batch = 0;                       ///< samples
  double loss = 0;                        ///< of tokens, mean over the interval; a mean <= 0 is not printed, as there
  double sentence_loss = 0;               ///< of a BERT's sentence head, likewise
  std::vector<double> depth_losses = {};  ///< of multi-token prediction, likewise
  std::vector<LossFigure> figures = {};   ///< of a loss of one's own, means over the interval
  double loss_scale = 1;
  double grad_norm = 0;
  std::optional<double> num_zeros = {}, params_norm = {};
  std::int64_t skipped = 0, nan = 0;  ///< iterations in the interval
  bool shows_throughput = true;
  // What Megatron-LM's line has not, and comes last:
  std::optional<double> tokens_per_s = {}, memory_bytes = {}, left_s = {};
};

/// Megatron-LM's line, so that scripts that parse its logs parse ours. `time_us`: microseconds since 1970, shown in
/// local time.
std::string iteration_line(const IterationLine& line, std::int64_t time_us);

/// iteration_line() in half as many columns: what is looked at while a run is under way.
std::string compact_line(const IterationLine& line, std::int64_t time_us);

/// Megatron-LM's line of the memory of a rank.
std::string memory_line(int rank, std::int64_t iteration, double bytes, double peak_bytes);

/// What a line says of the rank that computed longest.
std::string straggler_line(const IterationMetrics::Straggler& straggler);

/// Megatron-LM's validation message: three lines.
std::string validation_lines(const std::string& where, double loss, double perplexity,
                             const std::optional<double>& sentence_loss = {},
                             const std::vector<LossFigure>& figures = {});

}  // namespace megatron::train
