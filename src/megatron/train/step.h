#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/numbers.h"
#include "megatron/optim/gradient_norm.h"
#include "megatron/optim/gradient_reducer.h"
#include "megatron/optim/loss_scaler.h"
#include "megatron/optim/model_figures.h"
#include "megatron/optim/optimizer.h"
#include "megatron/optim/parameter_gatherer.h"
#include "megatron/optim/shared_gradients.h"
#include "megatron/parallel/context.h"
#include "megatron/parallel/fp8.h"
#include "megatron/supervise/suspects.h"
#include "megatron/train/log/loss_figure.h"
#include "megatron/train/log/timers.h"
#include "megatron/train/pipeline.h"

namespace megatron::train {

struct StepOptions {
  double clip_grad = 1;  ///< largest gradient norm; 0: no clipping
  optim::NormOrder clip_norm = optim::kL2;
  /// Of a microbatch of every data-parallel rank together; where the loss is scaled.
  std::int64_t microbatch_tokens = 0;
  bool sentence_head = false;  ///< the model has one (a BERT's): the loss is the mean over tokens and that over samples
  bool params_norm = false, num_zeros_in_grad = false;  ///< what else is measured
  std::int64_t mtp_depths = 0;                          ///< of multi-token prediction
  std::int64_t num_experts = 0;                         ///< of a layer that has some
  /// Names of the routers' biases, one for each layer that has experts; empty without biases.
  std::vector<std::string> router_biases = {};
  double bias_update_rate = 0;
  /// Where the next copy of the model is in ParallelContext::samples(); 0: there is none (plan::copy_distance).
  int copy_distance = 0;
};

/// What happens to a gradient of this rank, for tests: one bit of it is flipped.
enum class BitFlip : std::uint8_t {
  None,
  Once,   ///< in the pass that the step needs, as by a transient error
  Always  ///< in each pass of the step: a persistent error
};

/// How the passes of one step are checked (guard.rerun_interval).
struct StepCheck {
  bool due = false;
  /// Where `due`: the microbatches of the rank `places` further on in ParallelContext::samples().
  std::function<MicrobatchSource(int places)> of_share = {};
  BitFlip flip = BitFlip::None;  ///< on this rank; also where no check is due
};

/// Seconds that this rank spent in each part of a step; the rest of it waited for other stages.
struct StepTimes {
  double forward_s = 0, backward_s = 0;
  double reduce_s = 0;     ///< waiting for gradients after the last backward
  double optimizer_s = 0;  ///< norm, clipping, update
};

/// What happened in a step: the same on every rank, but for `times`.
struct StepResult {
  double loss = 0;  ///< mean over the tokens of the global batch that count; with a sentence head its mean added
  std::optional<double> sentence_loss;  ///< the sentence head's part of it: mean over samples
  std::vector<double> depth_losses;     ///< of multi-token prediction: of each depth the mean over its tokens
  std::vector<LossFigure> figures;      ///< of a loss of one's own (ForwardStep::figures)
  double tokens = 0;                    ///< tokens that count
  double grad_norm = 0;                 ///< of the mean loss's gradient, before clipping
  std::optional<double> num_zeros;      ///< elements of the gradient that are exactly zero
  std::optional<double> params_norm;    ///< after the step, L2
  double loss_scale = 1;                ///< after the step, which may have changed it, as Megatron-LM logs it
  bool skipped = false;                 ///< nothing was updated: loss or gradient not finite, a spike, a wrong rank
  bool spike = false;                   ///< skipped for a loss that leaps (TrainStep::judge)
  bool harmless = false;                ///< skipped for a gradient alone, under a loss scale that such steps bring down
  ExpertFigures experts;                ///< of all ranks; empty without experts
  bool checked = false;                 ///< passes were compared (StepCheck)
  std::vector<supervise::Suspect> suspects;  ///< ranks whose passes differ from others'
  bool stop = false;                         ///< some rank was asked to stop
  bool save = false;                         ///< some rank was asked to save
  StepTimes times;

  /// Some rank computes wrongly more than once, or in the pass whose gradients are used: nothing was updated.
  bool has_persistent_error() const;
};

/// One optimizer step: forward and backward of every microbatch through the pipeline, reduction over dp, sums of what
/// ranks of one model copy share, clipping over the model, update. On a GPU all of it is given to the GPU without
/// waiting, and whether the step is skipped and how far it is clipped is decided there: the host learns loss, norm and
/// flags from one copy at the end, and continues while the GPU updates. It waits sooner where it takes part: judge(),
/// routers' biases, checked steps, and routing to experts; and once more for the scales of 8 bits.
class TrainStep {
 public:
  /// What a step goes through; all must outlive it.
  struct Parts {
    Pipeline& pipeline;
    const parallel::ParallelContext& context;
    optim::GradientReducer& reducer;
    const optim::SharedGradients& shared;
    const optim::GradientNorm& norm;
    const optim::ModelFigures& figures;
    optim::Optimizer& optimizer;
    const optim::ParameterGatherer& gatherer;
    /// Of fp16; null: the loss is not scaled. Gradients begin as those of the sum x scale / (tokens of the global
    /// batch, rounded up to a power of two, so that scaling changes no digit): nearly those of scale x mean, whatever
    /// the number of data-parallel ranks.
    optim::LossScaler* scaler;
    parallel::Fp8Scaling* fp8 = nullptr;  ///< of layers that compute in 8 bits; null: none does
    Timers& timers;
  };
  TrainStep(const Parts& parts, StepOptions options) : parts_(parts), options_(options) {}

  /// Collective over the world. `stop`, `save`: this rank was asked to; told to all ranks in the same message as the
  /// loss. `check`: its `due` is the same on every rank. `microbatch` is asked again where passes are run again.
  StepResult operator()(int num_microbatches, const MicrobatchSource& microbatch, const plan::LearningRates& rates,
                        bool stop = false, bool save = false, const StepCheck& check = {});

  /// What ranks have added up, on the device.
  struct Totals {
    at::Tensor numbers;  ///< [n] sums, float64
    at::Tensor norm;     ///< scalar: of the gradients as they are in the buffers
  };
  /// A step that is not over for the host.
  struct Open {
    StepResult result;
    PassResult pass;
    at::Tensor magnitudes;  ///< of what layers have multiplied in 8 bits, the largest over all ranks
    Totals totals;
    double scale = 1;         ///< that the gradients have
    bool is_decided = false;  ///< the device finds out by itself whether it is skipped
    comm::ComingNumbers coming;
  };
  /// operator() in three parts, so that the passes of a step can be given to the device before the host knows what has
  /// become of the one before. All collective over the world, and in this order but for one thing: where
  /// may_stay_open(), and the second step's passes are not to be checked, begin() of a step may come before end() of
  /// the one before, and update() after that. A step that was begun and is not updated changes nothing.
  Open begin(int num_microbatches, const MicrobatchSource& microbatch, bool stop = false, bool save = false,
             const StepCheck& check = {});
  void update(Open& open, const plan::LearningRates& rates);
  StepResult end(Open open);
  /// Whether begin() needs nothing of the step before but its update: no loss scale, no judge, no routers' biases, no
  /// scales of 8 bits.
  bool may_stay_open() const;

  /// From now on called once loss and norm are known and before the update, the same on every rank: may set `skipped`
  /// and `spike`, and for tests change the loss. A GPU then waits for the host before it updates.
  void judge(std::function<void(StepResult& result)> hook) { judge_ = std::move(hook); }

  /// From now on called before each update: the last moment at which weights and state are those of the step before.
  /// What it updates may turn out to be skipped.
  void before_update(std::function<void()> hook) { before_update_ = std::move(hook); }

  /// For tests: in place of comm::copy_to_host(), by which the host learns what has become of a step.
  using Copy = std::function<comm::ComingNumbers(const at::Tensor& numbers)>;
  void copy_by(Copy copy) { copy_ = std::move(copy); }

 private:
  PassResult forward_and_backward(int num_microbatches, const MicrobatchSource& microbatch, double scale);
  PassResult passes(int num_microbatches, const MicrobatchSource& microbatch, double scale, const StepCheck& check,
                    StepResult& result);
  Totals totals_over_world(const Open& open, bool stop, bool save) const;
  std::size_t first_of_host() const;
  at::Tensor update_factor(const Totals& total, double scale) const;
  double learn(Open& open);
  double read_totals(StepResult& result, std::span<const double> numbers, double norm, double scale) const;
  void sum_gradients();
  at::Tensor magnitudes_over_world() const;
  at::Tensor count_zeros(const at::TensorOptions& options) const;
  at::Tensor squares_of_weights() const;
  void update_weights(const plan::LearningRates& rates, const optim::GradScale& grad_scale);
  void move_router_biases(const ExpertFigures& experts);
  double gradient_scale(int num_microbatches) const;
  /// Tokens that count for a sample of the global batch. Collective over dp.
  double tokens_of_a_sentence(const std::vector<model::Batch>& batches) const;

  Parts parts_;
  StepOptions options_;
  std::function<void()> before_update_ = [] {};
  std::function<void(StepResult& result)> judge_ = {};
  Copy copy_ = comm::copy_to_host;
};

struct Evaluation {
  double loss = 0;                           ///< mean over tokens that count; with a sentence head its mean added
  double tokens = 0;                         ///< tokens that count
  bool stop = false;                         ///< some rank was asked to stop
  std::optional<double> sentence_loss = {};  ///< the sentence head's part of the loss
  std::vector<at::Tensor> non_loss = {};     ///< what a ForwardStep has collected on this rank, by microbatch
  std::vector<LossFigure> figures = {};      ///< ForwardStep::figures
  double token_loss() const { return loss - sentence_loss.value_or(0); }
  /// exp of the tokens' loss, with Megatron-LM's bound: it counts as at most 20.
  double perplexity() const;
};

/// Loss without dropout or gradients over `num_microbatches` of every data-parallel rank. Collective over the world.
Evaluation evaluate(Pipeline& pipeline, const parallel::ParallelContext& context, std::size_t num_microbatches,
                    const MicrobatchSource& microbatch, bool stop = false);

}  // namespace megatron::train
