#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/train_config.h"
#include "megatron/plan/parameters/parameters.h"

// Training in 8 bits (Micikevicius et al. 2022): which numbers linear layers multiply, and by what they are scaled. An
// operand x is multiplied as the 8-bit number nearest to scale * x. The scale follows from largest magnitudes ("amax"):
// delayed, from those of the steps before, over all microbatches and ranks (decision 135); from the tensor's own, over
// all ranks that hold parts of it (decision 153); from that of 128 numbers, or of 128 x 128 of a weight (decision 164);
// or from that of 32 numbers (decision 166). All are the same in every layout; the second follows the microbatch.
namespace megatron::plan {

enum class Fp8Type : std::uint8_t {
  E4M3,  ///< 4 bits of exponent, 3 of mantissa: to 448, in steps of 2^-9 around 0
  E5M2   ///< 5 and 2: to 57344, in steps of 2^-16
};

/// The largest finite number.
constexpr double largest_of(Fp8Type type) { return type == Fp8Type::E4M3 ? 448 : 57344; }

/// What the three products of a linear layer read: y = x w^T, dx = dy w, dw = dy^T x.
enum class Fp8Operand : std::uint8_t { Input, Weight, OutputGradient };
inline constexpr std::int64_t kFp8Operands = 3;

/// Which numbers share a scale, and when it is found.
enum class Fp8Scales : std::uint8_t {
  Delayed,  ///< an operand of a layer, by the magnitudes of the steps before
  Tensor,   ///< a tensor of a microbatch, by its own
  /// Blocks of kFp8Block: of inputs and output gradients 1 x 128 numbers along the dimension over which a product sums,
  /// features or the tokens of one sequence, in which the last may be shorter; of weights 128 x 128.
  Block,
  /// Blocks of kMxBlock (Open Compute Project 2023, Microscaling Formats: MXFP8): of each operand 1 x 32 numbers along
  /// the dimension over which a product sums; else as Block.
  Mx
};
inline constexpr std::int64_t kFp8Block = 128, kMxBlock = 32;

struct Fp8Recipe {
  Fp8Type gradients = Fp8Type::E5M2;  ///< of output gradients; inputs and weights are E4M3
  Fp8Scales scales = Fp8Scales::Delayed;
  std::int64_t margin = 0;          ///< delayed scales are 2^margin smaller than what fits
  std::int64_t history = 1;         ///< steps of which magnitudes are kept; 0 where scales are not delayed
  bool largest_of_history = false;  ///< a delayed scale follows from the largest of them; else from the last one
  bool weight_gradients = true;     ///< dw is a product of 8-bit numbers too

  bool delayed() const { return scales == Fp8Scales::Delayed; }
  bool in_blocks() const { return scales == Fp8Scales::Block || scales == Fp8Scales::Mx; }
  /// How many numbers along a product's sum have a scale, in_blocks().
  std::int64_t block() const { return scales == Fp8Scales::Mx ? kMxBlock : kFp8Block; }
  /// Whether blocks of an operand are square.
  bool in_squares(Fp8Operand operand) const { return scales == Fp8Scales::Block && operand == Fp8Operand::Weight; }
  Fp8Type type(Fp8Operand operand) const { return operand == Fp8Operand::OutputGradient ? gradients : Fp8Type::E4M3; }
};

/// What the options ask for; nothing: no layer computes in 8 bits.
std::optional<Fp8Recipe> fp8_recipe(const config::Fp8Config& fp8);

/// The scale of numbers whose largest magnitude is `amax`: 2^(floor(log2(largest_of(type) / amax)) - margin), as
/// Transformer Engine's first recipe has it, within 2^-126 … 2^126. `previous` where amax is 0 or not finite. A power
/// of two, so that scaling rounds nothing, and what is multiplied are numbers of the model's type.
double fp8_scale(double amax, Fp8Type type, std::int64_t margin, double previous);

/// Names of the linear layers that compute in 8 bits, of the whole model in the order of its layers, those of depths of
/// multi-token prediction behind: "decoder.layers.0.self_attention.linear_qkv". All of each transformer layer that is
/// not LayerSpec::wide; no embedding, output layer, head or norm.
std::vector<std::string> fp8_layers(const ModelShape& shape);

/// Bytes of the scales and magnitudes of `layers` linear layers that every rank keeps where it computes: on a GPU the
/// inverse scales and the magnitudes of the step under way; the others stay in the host's memory (parallel/fp8.h). Of
/// tensors' own scales the magnitudes, and of weights the scale and its inverse; of blocks' nothing.
std::int64_t fp8_state_bytes(const Fp8Recipe& recipe, std::int64_t layers, bool on_gpu);

/// Throws ConfigError where a GPU of this compute capability does not multiply what `recipe` asks for: below 8.9 no
/// 8-bit numbers; those of Fp8Scales::Block on 9.0 alone, by libtorch for CUDA 12.9 or later; those of Fp8Scales::Mx
/// from 10.0 on, by libtorch for CUDA 12.8 or later. `cuda`: libtorch's, 13000 for 13.0; nothing: not known, and not
/// looked at. `gpu`: what the message calls it.
void require_fp8_units(const Fp8Recipe& recipe, int major, int minor, std::optional<std::int64_t> cuda,
                       const std::string& gpu = "");

}  // namespace megatron::plan
