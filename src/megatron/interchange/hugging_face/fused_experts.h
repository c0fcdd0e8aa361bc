#pragma once
#include <memory>

// Experts as GPT-OSS stores them: the matrices of all experts of a layer in one tensor, gates and values in turns.
//
//   NAME.gate_up_proj [E, h, 2f], of whose columns 2i is gate i and 2i + 1 value i; NAME.gate_up_proj_bias [E, 2f]
//   NAME.down_proj [E, f, h], NAME.down_proj_bias [E, h]
//
// or in four bits (MXFP4 of the Open Compute Project, 2023): NAME.gate_up_proj_blocks [E, 2f, h/32, 16] uint8, each of
// two numbers of a sign, two bits of exponent and one of mantissa, the lower first, and NAME.gate_up_proj_scales
// [E, 2f, h/32] uint8, the exponent of two of each block of 32, plus 127; down_proj likewise [E, h, f/32].
namespace megatron::checkpoint {
class WeightSource;
}

namespace megatron::interchange {

/// A folder's tensors, in place of fused ones those of each expert, as linear layers have them:
/// NAME.3.gate_proj.weight [f, h], NAME.3.gate_proj.bias [f], up_proj alike, NAME.3.down_proj.weight [h, f] and bias.
/// Of MXFP4 their values, as BF16, which holds each exactly. Throws ConfigError where shapes or dtypes do not fit each
/// other; its read() where a scale is none (above 252: infinite, or not a number).
std::shared_ptr<const checkpoint::WeightSource> apart_experts(std::shared_ptr<const checkpoint::WeightSource> folder);

/// The inverse, for an export: `weights`, which must outlive the result, with the tensors of experts fused. Whole
/// tensors are read. Throws ConfigError where experts of one tensor differ in shape or dtype.
std::unique_ptr<const checkpoint::WeightSource> fused_experts(const checkpoint::WeightSource& weights);

}  // namespace megatron::interchange
