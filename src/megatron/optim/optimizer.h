#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/parallel/parameter.h"

namespace megatron::optim {

/// Sums the gradient buckets over the data-parallel group: one all-reduce a bucket, started as soon as backward has
/// written its last gradient of the step's last microbatch, so that it overlaps the rest of backward. A gradient is
/// complete after spec.gradient_uses contributions a microbatch, whenever a schedule has them computed.
///
/// Every rank of `dp` goes through a step in the same order: the same program, whose operations each write the same
/// parameters' gradients. Then every rank starts the buckets in the same order (gradient_reducer.cpp says why).
class GradientReducer {
 public:
  GradientReducer(const parallel::ParameterStore& parameters, comm::Group dp, bool overlap);
  /// Before the first backward of a step of `num_microbatches`. Marks gradients as empty.
  void begin_step(int num_microbatches);
  /// After the last backward of a pipeline stage: starts those of its buckets that have not started by themselves.
  /// Nothing without `overlap`.
  void start_stage(int stage);
  /// After the last backward: asks no more of it, starts what has not started, waits for all. Gradients that got no
  /// contribution in the step are zero.
  void finish();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;
  ~GradientReducer();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

enum class NormKind { L2, Inf };

/// Norm of `grad_scale` x gradients over the whole model, summed in double; the gradients are whole (SharedGradients
/// has summed those that were not). Every parameter counts once: those held whole by every tensor-parallel rank where
/// `counts_whole` is true, on the first of these ranks alone; of a tied embedding's copies the one without
/// spec.shared_copy. Collective over `model`, the ranks that hold one copy of the model (tp x pp): one number; equal on
/// every rank. Not finite when any gradient is not.
double gradient_norm(const parallel::ParameterStore& parameters, const comm::Group& model, bool counts_whole,
                     double grad_scale, NormKind kind);

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
};

/// AdamW over the contiguous buffers of a ParameterStore. State is views too: exp_avg and exp_avg_sq, laid out as the
/// parameters. Keeps a reference to the store, which must outlive it.
class AdamW {
 public:
  AdamW(const parallel::ParameterStore& parameters, AdamWOptions options);
  /// One pass: gradient x grad_scale, moments, decay (where the spec says so), update.
  void step(double learning_rate, double grad_scale);
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  const at::Tensor& exp_avg() const { return exp_avg_; }        ///< flat [layout.size]
  const at::Tensor& exp_avg_sq() const { return exp_avg_sq_; }  ///< flat [layout.size]

 private:
  struct Range {
    std::int64_t begin, end;  // in the flat buffers
    double weight_decay;
  };

  const parallel::ParameterStore& parameters_;
  AdamWOptions options_;
  std::vector<Range> ranges_;
  at::Tensor exp_avg_, exp_avg_sq_;
  std::int64_t steps_ = 0;
};

}  // namespace megatron::optim
