#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/tasks/scores/metrics.h"
#include "megatron/train/log/loss_figure.h"

namespace megatron::train {

/// How evenly a step used the experts of a model.
struct ExpertMetrics {
  struct Layer {
    std::int64_t number = 0;    ///< among the model's layers
    std::vector<double> loads;  ///< copies of tokens that chose each expert
    double imbalance = 0;       ///< the most of these, as a multiple of their mean
    double dropped = 0;         ///< share of them all
    double balance = 0, z = 0;  ///< auxiliary losses, means over the tokens that count
  };
  std::vector<Layer> layers;                        ///< those that have experts
  bool drops = false, balances = false, z = false;  ///< which of the figures there are
  bool by_layer = false;                            ///< log.moe_per_layer

  /// imbalance(): the largest of the layers. mean(): a figure's mean over the layers.
  double imbalance() const;
  double mean(double Layer::*figure) const;
};

struct IterationMetrics {
  std::int64_t iteration = 0, consumed_samples = 0;
  double loss = 0, grad_norm = 0;                      ///< loss: NaN where no token counts
  std::optional<double> sentence_loss = {};            ///< part of the loss: fields lm_loss, sop_loss
  std::vector<double> depth_losses = {};               ///< of multi-token prediction: fields mtp_1_loss, …
  std::vector<LossFigure> figures = {};                ///< of a loss of one's own: fields of their names
  double learning_rate = 0;                            ///< that the iteration used
  std::optional<double> decoupled_learning_rate = {};  ///< of word embedding and output layer, where it is their own
  std::optional<double> weight_decay = {};             ///< that the iteration used, where it grows over the run
  double loss_scale = 1;
  std::int64_t batch_size = 0;  ///< samples
  std::int64_t world_size = 1;  ///< ranks
  double tokens_per_s = 0;
  double tflops_per_rank = 0;  ///< model FLOPs (causal attention counted half), 1e12 a second and rank
  double step_ms = 0;
  double data_wait_ms = 0;  ///< of the step, in which the first rank waited for its samples
  std::int64_t memory_bytes = 0, peak_memory_bytes = 0;  ///< of the first rank, on its device: now, and at most so far
  std::optional<double> num_zeros = {}, params_norm = {};
  std::optional<ExpertMetrics> experts = {};
  /// A timer, over ranks and a step.
  struct Time {
    std::string name;
    double min_ms = 0, max_ms = 0;
  };
  std::vector<Time> times = {};  ///< means over the steps since the last console line
  struct Straggler {
    int rank = 0;
    double compute_ms = 0, median_ms = 0;  ///< a step
  };
  std::optional<Straggler> straggler = {};  ///< the rank that computed longest
  /// The slowest rank of a timer, and the median of the ranks that have a time of it.
  struct SlowestRank {
    std::string timer;
    int rank = 0;
    double ms = 0, median_ms = 0;  ///< per step
  };
  std::vector<SlowestRank> slowest_by_timer = {};  ///< with log.straggler
  bool skipped = false;
  std::optional<std::vector<int>> wrong_ranks = {};  ///< of a step whose passes were compared: those that may be wrong
  bool high_matmul_precision = false;                ///< float32 products were three of bf16
};

struct ValidationMetrics {
  std::int64_t iteration = 0, consumed_samples = 0;
  double loss = 0, perplexity = 0;
  std::optional<double> sentence_loss = {};  ///< part of the loss: fields valid_lm_loss, valid_sop_loss
  std::vector<LossFigure> figures = {};      ///< of a loss of one's own: fields valid_NAME
  std::string set = {};                      ///< of several validation sets, which; empty: there is one
  bool test = false;                         ///< of the test set: fields test_loss, test_ppl and test_NAME
};

/// A validation on a task.
struct TaskMetrics {
  std::int64_t iteration = 0, consumed_samples = 0;
  double loss = 0;                    ///< field valid_loss
  std::vector<tasks::Metric> scores;  ///< fields valid_accuracy, …
};

/// A run's metrics.jsonl: one JSON object per line, written whole as it happens. NaN and infinity become null. Removed
/// or renamed by somebody while the run is under way, it is there again with the next line, whole, and a warning is
/// printed; where another file was put in its place lines are added to that.
class MetricsFile {
 public:
  /// Asked before a file is opened or made: throws where the folder is no longer the run's.
  using RequireFolder = std::function<void()>;

  /// Opens `path` to append. What the resumed run does again is taken out first: iterations after `resume_iteration`,
  /// validations after `validated_iteration`. Throws std::runtime_error naming the path.
  MetricsFile(std::filesystem::path path, std::int64_t resume_iteration, std::int64_t validated_iteration,
              RequireFolder require_folder = {});
  /// How many whole lines that was.
  std::int64_t lines_taken_out() const { return lines_taken_out_; }
  void write(const IterationMetrics& metrics);
  /// An iteration whose batch was not computed.
  void write_skipped_batch(std::int64_t iteration, std::int64_t consumed_samples, std::int64_t batch_size);
  void write(const ValidationMetrics& metrics);
  void write(const TaskMetrics& metrics);

 private:
  void open();
  void keep_named();
  std::string whole_text() const;
  void write_line(const std::string& line);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  RequireFolder require_folder_;
  std::int64_t lines_taken_out_ = 0;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace megatron::train
