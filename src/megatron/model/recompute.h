#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/parallel/linear.h"

namespace megatron::model {

/// What the backward pass computes again instead of having it kept (Chen et al. 2016; Korthikanti et al. 2022). The
/// gradients are the same to the last bit: no random number has to be stored, as each is a function of what it is for.
struct Recompute {
  enum class Layers : std::uint8_t { None, Uniform, Block };
  Layers layers = Layers::None;  ///< Uniform: all, in groups of num_layers; Block: a stage's first num_layers, singly
  std::int64_t num_layers = 1;
  /// Some microbatches are partial: with Uniform and of modules they recompute nothing, with Block the first
  /// num_layers, and then the others every layer.
  bool some_partial = false;
  bool distribute_inputs = false;  ///< of the groups: each tensor-parallel rank keeps its part of the sequence
  // Without Layers, of every layer:
  bool attention_core = false;  ///< the attention's output
  bool mlp = false;             ///< what is inside the MLP
  bool gelu = true;             ///< GELU's output
};

/// Layers [first, last) of a stage that go through autograd together.
struct LayerGroup {
  std::int64_t first = 0, last = 0;
  bool again = false;  ///< computed again in the backward pass
};
/// `partial`: of a microbatch that is partial.
std::vector<LayerGroup> layer_groups(const Recompute& recompute, std::int64_t num_layers, bool partial = false);

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
