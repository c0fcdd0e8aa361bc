#include "megatron/plan/parameters/matrices.h"

#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron::plan {
namespace {

/// The rows of maps that take turns, `heights[i]` rows of each, `turns` times.
std::vector<MatrixRows> taking_turns(const std::vector<std::int64_t>& heights, std::int64_t turns) {
  std::vector<MatrixRows> matrices(heights.size());
  std::int64_t row = 0;
  for (std::int64_t turn = 0; turn < turns; ++turn)
    for (std::size_t i = 0; i < heights.size(); ++i) {
      matrices[i].push_back({row, row + heights[i]});
      row += heights[i];
    }
  return matrices;
}

}  // namespace

std::vector<MatrixRows> matrices_of(const ParameterSpec& spec, const ModelShape& shape, const MatrixSplits& splits) {
  if (!spec.is_layer_matrix()) throw std::logic_error(spec.name + " is no matrix of a layer");
  const bool ahead = spec.name.starts_with("mtp.");  // of a depth of prediction, whose number its place says
  const LayerSpec layer =
      shape.layer(ahead ? shape.num_layers + spec.depth - depth_of_prediction(shape, 0) : spec.depth - 1);
  if (ahead && spec.name.ends_with(concat(".", PredictionDepth::kProjection, ".weight"))) return {{{0, spec.shape[0]}}};
  for (const Branch& branch : layer.branches)
    for (const Linear& linear : branch.linears(layer.hidden)) {
      if (spec.name != concat(layer.prefix, linear.name, ".weight")) continue;
      const std::int64_t head = linear.head_size;
      const bool whole = linear.split == Linear::Split::Halves ? !splits.gated : !splits.qkv;
      if (whole) return {{{0, spec.shape[0]}}};
      switch (linear.split) {
        case Linear::Split::Groups: {
          const SelfAttention& attention = layer.attention();
          const std::int64_t queries = attention.heads / attention.groups * head;
          return attention.gated() ? taking_turns({queries, queries, head, head}, attention.groups)
                                   : taking_turns({queries, head, head}, attention.groups);
        }
        case Linear::Split::Pairs:
          return taking_turns({head, head}, linear.outputs / (2 * head));
        case Linear::Split::Halves:
          return taking_turns({linear.outputs / 2, linear.outputs / 2}, 1);
        case Linear::Split::Outputs:
        case Linear::Split::Inputs:
        case Linear::Split::Whole:
          return {{{0, spec.shape[0]}}};
      }
    }
  throw std::logic_error(spec.name + " is no matrix of its layer");
}

}  // namespace megatron::plan
