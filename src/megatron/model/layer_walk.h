#pragma once
#include "megatron/model/block.h"

// The one walk over a layer. Who computes layers, for training (block.cpp), a token at a time (token_step.cpp) or as
// the launches of a device's graph (token_graph.cpp), says how each step is computed; which steps there are, and in
// which order, is said here alone. A step that one of them lacks does not compile.
namespace megatron::model {

template <class Steps>
void walk_inside(const plan::SelfAttention& attention, const BranchModules& branch, Steps& steps) {
  if (attention.latents) return steps.attend_latents(attention, branch);
  steps.project(branch.in.front());
  if (attention.gated()) steps.take_gates(branch);
  if (!branch.head_norms.empty()) steps.normalize_heads(branch);
  steps.attend(attention, branch);
  if (attention.gated()) steps.gate();
}

template <class Steps>
void walk_inside(const plan::CrossAttention& attention, const BranchModules& branch, Steps& steps) {
  steps.project(branch.in.front());
  steps.attend_across(attention, branch);
}

template <class Steps>
void walk_inside(const plan::Mlp& mlp, const BranchModules& branch, Steps& steps) {
  steps.expand(mlp, branch);
}

template <class Steps>
void walk_inside(const plan::Experts& experts, const BranchModules& branch, Steps& steps) {
  steps.route(experts, branch);
}

/// Each branch of the block, then what begins the next: steps.leave(branch, norm) ends one and computes the norm that
/// follows it, at last `next`, which may be null.
template <class Steps>
void walk(const Block& block, const Norm* next, Steps& steps) {
  const auto& branches = block.branches();
  for (std::size_t i = 0; i < branches.size(); ++i) {
    std::visit([&](const auto& inner) { walk_inside(inner, branches[i], steps); }, branches[i].spec.inner);
    steps.leave(branches[i], i, i + 1 < branches.size() ? &branches[i + 1].norm : next);
  }
}

}  // namespace megatron::model
