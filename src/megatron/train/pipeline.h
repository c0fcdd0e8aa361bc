#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/activity.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/optim/gradient_reducer.h"
#include "megatron/optim/parameter_gatherer.h"
#include "megatron/parallel/context.h"
#include "megatron/pipeline/link.h"
#include "megatron/pipeline/run.h"
#include "megatron/pipeline/timeline.h"
#include "megatron/plan/rules.h"
#include "megatron/train/expert_figures.h"
#include "megatron/train/log/timers.h"

namespace megatron::train {

/// Microbatch `m` of the step on this rank. Asked once for each in every pass over them, on
/// every rank, whatever its stages.
using MicrobatchSource = std::function<model::Batch(std::size_t m)>;

/// A loss of one's own in place of the model's: Megatron-LM's forward_step_func with its loss_func.
struct ForwardStep {
  /// Called on ranks that hold the last stage, for each microbatch in training and validation, in place of
  /// `stage`.loss(): begins with `stage`.logits() or states() of `x`, and returns a scalar sum, differentiable where
  /// `training`, and what it is a sum over (the step divides by it once, over the whole global batch).
  /// The batch has a mask; of ranks that share sequences it is each one's own tokens, whose sums add up.
  /// LossSum::non_loss may hold what is to be collected. Must give the same on every rank of tp, and depend on its
  /// arguments alone: a checked step (guard.rerun_interval) asks for it again, with another rank's samples too. Empty:
  /// the model's own loss.
  std::function<model::LossSum(const model::TransformerStage& stage, at::Tensor x, const model::Batch& batch,
                               bool training)>
      loss;
  /// Called on every rank before each pass of training, with its microbatches: what it returns of each is
  /// Batch::prepared for `loss`; empty where this rank does not hold the last stage. May be collective over the model.
  /// Empty: nothing is prepared.
  std::function<std::vector<at::Tensor>(int num_microbatches, const MicrobatchSource& microbatch)> prepare = {};
  /// Called after each validation where this rank holds the last stage and is the first of tp (of ranks that share
  /// sequences each is), with the non_loss of its microbatches, in order: Megatron-LM's process_non_loss_data_func.
  std::function<void(std::int64_t iteration, const std::vector<at::Tensor>& non_loss)> collected;
  /// Names of what LossSum::figures has, in its order: logged as means over what the loss is a mean over. None may be
  /// empty, repeated or a field of metrics.jsonl's own.
  std::vector<std::string> figures = {};
};

/// Throws ConfigError where names of `step`.figures are not as they must be, or its loss is not for the model of `run`:
/// what Pipeline::use() asks too, when files of the run are there.
void check_forward_step(const ForwardStep& step, const plan::ResolvedRun& run);

/// What an execution has left on this rank and, where the rank holds the last stage, the sum of a BERT's sentence
/// head's loss over so many samples. Sums are float64 on the rank's device, undefined where there is none.
struct PassResult : pipeline::Result {
  at::Tensor loss_sum = {};  ///< scalar: of all microbatches
  at::Tensor sentence_sum = {};
  double sentences = 0;
  /// Of multi-token prediction in training, by depth: the sum of its loss, and the tokens that it is a sum over.
  at::Tensor depth_sums = {};
  std::vector<double> depth_counts = {};
  /// Of an evaluation with the head of a task, by microbatch, where the rank holds the last stage; else empty.
  std::vector<at::Tensor> task_logits = {};
  /// Of an evaluation: LossSum::non_loss by microbatch, where there is one.
  std::vector<at::Tensor> non_loss = {};
  at::Tensor figure_sums = {};  ///< of LossSum::figures
};

/// sum += more, in float64 and where `more` is; what is undefined is 0.
void add_number(at::Tensor& sum, const at::Tensor& more);

/// What the losses of an execution are multiplied by.
struct LossScale {
  double gradients = 1;  ///< where they begin
  double sentences =
      0;  ///< the sentence head's loss, in the loss sum and in the gradients (model::TransformerStage::loss)
};

/// Takes the microbatches of a step, or of an evaluation, through the stages of the model: executes the plan's programs
/// on this rank. With one pipeline rank the program is accumulation; there is no other path.
class Pipeline {
 public:
  /// `stages`: of this rank, in the order of run.placement. `reducer`: null where it only evaluates. Keeps references
  /// to all; they must outlive it. Collective over the pipeline.
  Pipeline(const plan::ResolvedRun& run, const parallel::ParallelContext& context,
           const parallel::ParameterStore& parameters, const std::vector<model::TransformerStage>& stages,
           optim::GradientReducer* reducer, const optim::ParameterGatherer& gatherer, Timers& timers);
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// From now on the losses are those of `step`. The same on every rank. Throws ConfigError for a loss of one's own of
  /// a model with depths of multi-token prediction, which it does not train, and for names of figures that may not be.
  void use(ForwardStep step);
  const ForwardStep& forward_step() const { return forward_step_; }
  /// From now on each operation is told to `activity`, which must outlive the pipeline's use; null: nobody is told.
  void report_to(comm::Activity* activity) { activity_ = activity; }

  /// Forward and backward of every microbatch; the reducer's step has begun. The gradients are those of the loss sum
  /// times `scale.gradients`. Collective over the model.
  PassResult train(int num_microbatches, const MicrobatchSource& microbatch, const LossScale& scale = {});
  /// Forward without dropout and without gradients; the loss sums are those of the tokens. Collective over the model.
  PassResult evaluate(int num_microbatches, const MicrobatchSource& microbatch);

  /// What the routers of this rank's stages counted in the steps since they were asked last: of each layer of
  /// ModelShape::expert_layers() those numbers of ExpertFigures, zeros for layers of other ranks. Empty where no layer
  /// has experts.
  std::vector<double> take_router_counts() const;

  /// Whether this rank measures the timeline of every step (log.trace): those of the first pipeline do.
  bool measures() const { return measures_; }
  /// Whether log.profile_ranks names a rank of this pipeline. With profile(true) it measures the steps that follow too.
  bool is_profiled() const { return is_profiled_; }
  void profile(bool on) { profiling_ = on && is_profiled_; }
  /// Of the last step; nothing before the first. Collective over the pipeline of a rank that measures.
  std::optional<schedule::Timeline> timeline() const;

 private:
  PassResult execute(const schedule::Program& program, bool training, const MicrobatchSource& microbatch,
                     const LossScale& scale, std::vector<at::Tensor> prepared = {});

  /// What this rank does of a program: those of large pipelines are kept for each size of a growing batch.
  schedule::Program own_part(schedule::Program program) const;

  const plan::ResolvedRun& run_;
  const parallel::ParallelContext& context_;
  const parallel::ParameterStore& parameters_;
  const std::vector<model::TransformerStage>& stages_;
  optim::GradientReducer* const reducer_;
  const optim::ParameterGatherer& gatherer_;
  Timers& timers_;
  const bool measures_, is_profiled_;
  bool profiling_ = false;
  ForwardStep forward_step_;
  comm::Activity* activity_ = nullptr;
  pipeline::Link link_;
  pipeline::Recorder recorder_;
  const schedule::Program* measured_ = nullptr;  // the program of the last step
  const std::vector<std::int64_t> expert_layers_;
  std::map<int, schedule::Program> training_, evaluation_;  // by number of microbatches: the batch may grow
};

/// Writes the timeline of iteration `iteration` as Chrome trace to `path`, and a drawing of it with the simulation
/// with the measured times of its operations to the same name with .svg. Both show the bytes of activations that
/// plan::stage_costs() counts, at the measured times. Returns one line that says what they show.
std::string write_timeline(const schedule::Timeline& measured, const plan::ResolvedRun& run, std::int64_t iteration,
                           const std::filesystem::path& path);

}  // namespace megatron::train
