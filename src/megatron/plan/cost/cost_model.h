#pragma once
#include <string>
#include <utility>
#include <vector>

#include "megatron/plan/cost/hardware.h"
#include "megatron/plan/ranks/rank_grid.h"
#include "megatron/plan/rules.h"

// The time of a training step on hardware that need not be there: the plan's counts at the rates of a Hardware. Times
// are seconds.
namespace megatron::plan {

/// `count` matrix products [m, k] x [k, n].
struct Product {
  double count = 1, m = 0, n = 0, k = 0;
  double flops() const { return 2 * count * m * n * k; }
};

/// The longer of two times: its arithmetic at peak x product_efficiency x the product of d / (d + product_half_size)
/// over its three dimensions d; its operands and its result moved once through memory. `dtype`: train.dtype or kFp8.
/// `result_bytes`: of a number of the result; 0: as of an operand's.
double product_s(const Hardware& hardware, const std::string& dtype, const Product& product, double result_bytes = 0);

/// Bytes through one rank's memory.
double memory_s(const Hardware& hardware, double bytes);

/// Where the ranks of a group are.
struct Span {
  int ranks = 1;
  int nodes = 1;
  int sharing = 1;  ///< groups of the same kind whose rings leave a node, all at once: they share its adapters

  bool operator==(const Span&) const = default;
};

/// Of the group `first` of rank 0, in a grid whose ranks fill nodes in order.
Span span_of(const RankGrid& grid, const std::vector<int>& first, std::int64_t ranks_per_node);

/// One pass around a ring, `bytes` being the whole tensor: (n - 1) steps of bytes / n. Reduce-scatter and all-gather.
double ring_pass_s(const Hardware& hardware, const Span& span, double bytes);

/// Reduce-scatter and all-gather: 2 (n - 1) / n of the bytes, 2 (n - 1) steps.
double all_reduce_s(const Hardware& hardware, const Span& span, double bytes);

/// Mean of the largest of n independent normal deviates, in standard deviations: 0 for one, 1 / sqrt(pi) for two.
double mean_of_largest(int n);

/// A step, or one pass of a layer or stage, by what the time goes to.
struct StepParts {
  double matrices = 0;     ///< products of layers with weights
  double attention = 0;    ///< products of activations, and passes over the scores
  double elementwise = 0;  ///< norms, dropout, residuals, activations, embedding
  double launches = 0;     ///< what operations cost whatever their size
  double output = 0;       ///< output layer and loss
  double tensor = 0;       ///< collectives within layers: tensor-parallel ones, exchanges with other experts or tokens
  double pipeline = 0;     ///< what the busiest pipeline rank waits for: bubble and messages
  double data = 0;       ///< reduction of gradients and gathering of parameters, as far as computation does not hide it
  double optimizer = 0;  ///< update
  double waiting = 0;    ///< for the slowest rank

  double sum() const;
  StepParts& add(const StepParts& other, double times = 1);
  /// Each part with its name, in the order above.
  std::vector<std::pair<const char*, double>> named() const;
};

/// One microbatch's passes through all stages on a rank, with embedding and output, by what the time goes to.
struct MicrobatchCost {
  StepParts forward, backward;
};

struct StepCost {
  double step_s = 0;  ///< the sum of the parts
  StepParts parts;    ///< of the pipeline rank that computes longest
  /// Operations of products that the step computes, recomputation of layers and, with whole_square, masked scores
  /// included; scores that only attention's backward pass computes again are not.
  double computed_flops = 0;
  double model_flops = 0;  ///< training_flops() of the batch
  double rank_tflops = 0;  ///< computed_flops a second and rank, 10^12
  double utilization = 0;  ///< model_flops a second and rank, as a share of the peak: LinearProducts::peak()
};

/// The passes of all stages of `run`, of a microbatch that recomputes all that train.recompute says; what its pipeline
/// and other data-parallel ranks make it wait for is not in them. Throws as step_cost().
MicrobatchCost microbatch_cost(const ResolvedRun& run, const Hardware& hardware);

/// Predicts a step of `run` at its full batch. Layers as model/ computes them; of full recomputation the whole forward
/// pass counts again. The pipeline is the run's own program, simulated. Throws ConfigError where the hardware does not
/// compute in train.dtype, or the run is for CUDA in 8 bits that it does not multiply.
StepCost step_cost(const ResolvedRun& run, const Hardware& hardware);

}  // namespace megatron::plan
