#include "megatron/plan/matrices.h"

#include <stdexcept>

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

std::vector<MatrixRows> matrices_of(const ParameterSpec& spec, const GptShape& shape) {
  if (!spec.is_layer_matrix()) throw std::logic_error(spec.name + " is no matrix of a layer");
  const std::int64_t head = shape.head();
  if (spec.name.ends_with(".linear_qkv.weight"))
    return taking_turns({shape.num_heads / shape.groups() * head, head, head}, shape.groups());
  if (spec.name.ends_with(".linear_kv.weight")) return taking_turns({head, head}, shape.num_heads);
  if (spec.name.ends_with(".linear_fc1.weight") && shape.gated)
    return taking_turns({shape.ffn_hidden, shape.ffn_hidden}, 1);
  return {{{0, spec.shape[0]}}};
}

}  // namespace megatron::plan
