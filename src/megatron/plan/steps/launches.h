#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/plan/rules.h"

// What a GPU is given for a layer, as data: kernels, products and messages on their streams, what each reads and
// writes, and which launch of another stream each waits for.
namespace megatron::plan {

struct Launch {
  std::string name;
  int stream = 0;
  std::vector<std::string> reads, writes;  ///< names of buffers
  double bytes = 0;                        ///< of memory that it reads and writes at least
  std::vector<int> after;                  ///< launches of other streams whose event it waits for, by their number
  std::string call = {};  ///< the operator that begins with it (kernels/operators.def); "": that of before, a message
};

struct LaunchPlan {
  std::vector<std::string> streams;
  std::vector<std::string> inputs;  ///< buffers that are there before the first launch
  std::vector<Launch> launches;     ///< in the order in which the host gives them
};

/// Throws std::logic_error that names two launches and a buffer where one reads or overwrites what the other writes
/// without an order between them: that of a stream, or events; where a launch reads what nobody wrote; or where it
/// waits for one that comes later.
void validate(const LaunchPlan& plan);

/// One layer of a decoder forward and backward, by the operators that the CUDA plugin has (kernels/phases/operators/,
/// kernels/cuda/), on one rank, as of compute capability 8.0 or more, and nothing computed again that train.recompute
/// asks for. Sums over tensor-parallel ranks, sums of gradients and exchanges between experts are on streams of their
/// own. What an operator computes by several kernels one after the other is one launch. Of a model with experts a layer
/// that has some, each of which gets as many rows.
LaunchPlan layer_launches(const ResolvedRun& run);

/// Whether cuBLASLt computes the MLP's activation with its products: GELU by tanh of 16 bits, not gated, in units of 16
/// bytes (kernels/cuda/epilogue_choice.h).
bool activates_in_products(const ResolvedRun& run);

/// Whether a GPU's units multiply 8-bit numbers of these sizes, which fp8.format asks for: the layer's launches are
/// those of a layer that does, and of no other sizes with fp8.format. False without.
bool multiplies_in_8_bits(const ResolvedRun& run);

/// A line for each launch, and the sums over the layer.
std::string launch_text(const LaunchPlan& plan);

}  // namespace megatron::plan
