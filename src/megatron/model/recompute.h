#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/parallel/linear.h"
#include "megatron/plan/cost/recomputation.h"

namespace megatron::model {

/// What the backward pass computes again instead of having it kept (Chen et al. 2016; Korthikanti et al. 2022). The
/// gradients are the same to the last bit: no random number has to be stored, as each is a function of what it is for.
struct Recompute {
  using Layers = plan::LayerRecomputation::Method;
  Layers layers = Layers::None;
  std::int64_t num_layers = 1;
  /// Some microbatches are partial: of modules they recompute nothing, of layers what LayerRecomputation says.
  bool some_partial = false;
  std::vector<bool> listed = {};   ///< by layer of the model, where layers is Listed
  bool distribute_inputs = false;  ///< of the groups: each tensor-parallel rank keeps its part of the sequence
  // Without Layers, of every layer:
  bool attention_core = false;  ///< the attention's output
  bool mlp = false;             ///< what is inside the MLP
  bool gelu = true;             ///< GELU's output

  plan::LayerRecomputation whole_layers() const { return {layers, num_layers, some_partial, listed}; }
};

/// What is computed again: x -> y. The second time y is not read. `beside`: what else it depends on, undefined where
/// there is nothing.
using Compute = std::function<at::Tensor(at::Tensor x, const at::Tensor& beside, parallel::Value value)>;

/// compute(x, beside), of which only these are kept: the backward pass computes it again and goes backward through
/// that. Parameters' gradients are written, or put off, as they would be without. `split`: each of its ranks keeps its
/// part of x along the sequence, which must divide by them, and one all-gather makes it whole again; the group of one
/// keeps x. `beside` is kept as it is.
at::Tensor recomputed(const at::Tensor& x, const Compute& compute, const comm::Group& split,
                      const at::Tensor& beside = {});

}  // namespace megatron::model
