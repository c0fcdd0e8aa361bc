#pragma once
#include "megatron/optim/optimizer.h"
#include "megatron/optim/shared_gradients.h"
#include "megatron/parallel/context.h"
#include "megatron/train/pipeline.h"

namespace megatron::train {

struct StepOptions {
  double clip_grad = 1;  ///< largest gradient norm; 0: no clipping
  optim::NormKind clip_norm = optim::NormKind::L2;
};

/// Seconds that this rank spent in each part of a step; the rest of it waited for other stages.
struct StepTimes {
  double forward_s = 0, backward_s = 0;
  double reduce_s = 0;     ///< waiting for gradients after the last backward
  double optimizer_s = 0;  ///< norm, clipping, update
};

/// What happened in a step: the same on every rank, but for `times`.
struct StepResult {
  double loss = 0;       ///< mean over the tokens of the global batch that count
  double tokens = 0;     ///< tokens that count
  double grad_norm = 0;  ///< of the mean loss's gradient, before clipping
  bool skipped = false;  ///< loss or gradient was NaN or infinite: nothing was updated
  bool stop = false;     ///< some rank was asked to stop
  StepTimes times;
};

/// One optimizer step: forward and backward of every microbatch through the pipeline, reduction over dp, sums of what
/// ranks of one model copy share, clipping over the model, update.
class TrainStep {
 public:
  /// Keeps references to all but `options`; they must outlive it.
  TrainStep(Pipeline& pipeline, const parallel::ParameterStore& parameters, const parallel::ParallelContext& context,
            optim::GradientReducer& reducer, const optim::SharedGradients& shared, optim::AdamW& optimizer,
            StepOptions options);

  /// Collective over the world. `stop`: this rank was asked to stop; told to all ranks in the same message as the loss.
  StepResult operator()(int num_microbatches, const MicrobatchSource& microbatch, double learning_rate,
                        bool stop = false);

 private:
  Pipeline& pipeline_;
  const parallel::ParameterStore& parameters_;
  const parallel::ParallelContext& context_;
  optim::GradientReducer& reducer_;
  const optim::SharedGradients& shared_;
  optim::AdamW& optimizer_;
  StepOptions options_;
};

struct Evaluation {
  double loss = 0;    ///< mean over tokens that count
  double tokens = 0;  ///< tokens that count
  bool stop = false;  ///< some rank was asked to stop
  /// exp(loss), with Megatron-LM's bound: the loss counts as at most 20.
  double perplexity() const;
};

/// Loss without dropout or gradients over `num_microbatches` of every data-parallel rank. Collective over the world.
Evaluation evaluate(Pipeline& pipeline, const parallel::ParallelContext& context, std::size_t num_microbatches,
                    const MicrobatchSource& microbatch, bool stop = false);

}  // namespace megatron::train
