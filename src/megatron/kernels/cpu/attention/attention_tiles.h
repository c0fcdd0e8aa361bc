#pragma once
#include "megatron/kernels/cpu/attention/attention.h"
#include "megatron/kernels/cpu/attention/backward_pieces.h"
#include "megatron/kernels/cpu/products/tiles.h"

// Attention in bf16 on the matrix unit (tiles.h): like attention.h, but the operands of all products are bf16, the
// probabilities and their gradients among them; sums, softmax and dropout stay float32. Any sequence length, head size,
// groups and masks; blocks of 32 are filled with zeros.
namespace megatron::kernels::cpu {

/// 16-bit words that hold the keys and values of one group.
std::size_t tile_packed_words(const AttentionProblem& problem);
/// Scratch of one thread, in floats.
std::size_t tile_forward_scratch_floats(const AttentionProblem& problem);
std::size_t tile_backward_scratch_floats(const AttentionProblem& problem, const BackwardPieces& pieces);

void tile_pack_keys_and_values(const AttentionProblem& problem, const Head& head, std::uint16_t* packed);
/// Queries [block * kQueryBlock, …) of one head, `packed` of its group. Buffers are aligned to 64 bytes.
void tile_attention_forward(const AttentionProblem& problem, TileUnit unit, const Head& head, std::size_t block,
                            const std::uint16_t* packed, const MutableHeads& out, float* logsumexp_bns, float* scratch);
/// Queries, and keys, of a square that tile_attention_backward takes at a time.
inline constexpr std::size_t kTileBatch = 256;
BackwardPieces tile_attention_backward_pieces(const AttentionProblem& problem);
QueryGradients tile_query_gradients(const AttentionProblem& problem);
/// As attention_backward.
void tile_attention_backward(const AttentionGradient& asked, TileUnit unit, const BackwardPiece& piece,
                             const QueryGradients& dq, float* shared, float* scratch);

}  // namespace megatron::kernels::cpu
