#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/plan/parameters/parameters.h"

// What Megatron-Core's distributed checkpoints call a model's tensors. No torch here.
namespace megatron::interchange {

/// A name, and where in the tensor of that name one of ours lies: its place in each of the leading dimensions, which
/// are the layers of a stack, the experts of a layer, or both.
struct DistName {
  std::string name;
  std::vector<std::int64_t> index = {}, extents = {};  ///< of those dimensions; none: it has a tensor of its own
};

/// The names under which one of our tensors may be found, the likeliest first: layers in one tensor or each in its own,
/// norms of their own or within the linear layers behind them.
std::vector<DistName> dist_names(const plan::ModelShape& shape, const std::string& ours);

/// Those under which some run of Megatron-Core looks for it: of norms there may be two, since its layers call them
/// otherwise with Transformer Engine than without.
std::vector<DistName> written_names(const plan::ModelShape& shape, const std::string& ours);

/// The entry for the state of its own that a part of a layer, "decoder.layers.0.mlp.linear_fc1", may have.
std::string state_entry(const plan::ModelShape& shape, const std::string& part);

/// The name that Megatron-Core's T5 gives one of our tensors besides, since it registers the module twice: of
/// the optimizer's state it may be the only one. Empty where there is none.
std::string second_dist_name(const std::string& ours);

}  // namespace megatron::interchange
