#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "megatron/kernels/activation.h"
#include "megatron/kernels/rope.h"
#include "megatron/kernels/token/shortlist.h"

// One more token of each of few sequences on a GPU, in few launches that can be given to it again and again as they
// are: whatever changes from token to token is read from tensors that stay where they are. Not even memory is asked for
// (decision 133). b sequences, n query heads in g groups, d head size. Every tensor is contiguous but keys and values.
namespace megatron::kernels {

/// Where the sequences stand: int64, on the device of the model.
struct TokenState {
  at::Tensor token_b;    ///< what each is fed next
  at::Tensor length_b;   ///< rows of its cache that are filled
  at::Tensor padding_b;  ///< the first rows of it, which nobody sees; positions count from there
  at::Tensor chosen_b;   ///< what TokenKernels::choose has chosen
};

/// y [b, h] = (words[token] + places[position + offset]) scale.
struct TokenEmbedding {
  at::Tensor words, places;  ///< [v, h], [positions, h]; undefined: no learned positions
  std::int64_t offset = 0;
  double scale = 1;
  at::Tensor y;
};

/// Attention of the new tokens, whose keys and values become row length_b of the cache, over its rows and themselves.
struct TokenAttention {
  at::Tensor qkv;           ///< [b, g (n/g + 2) d], rows per group: its queries, key, value; not yet rotated
  at::Tensor keys, values;  ///< [capacity, b, g, d] of equal strides, d side by side
  at::Tensor y;             ///< [b, n d]; undefined: left in parts, for TokenProduct::attention
  std::int64_t heads = 0, groups = 0, head_size = 0;
  double scale = 0, soft_cap = 0;  ///< as of AttentionOptions
  std::int64_t window = 0;         ///< keys that each token sees; 0: all
  RopeTable rope = {};             ///< undefined tensors: no rotary positions
  at::Tensor sinks = {};           ///< [n] float32, of float64 float64; undefined: none
  at::Tensor scratch = {};         ///< token_scratch() numbers of float32, of float64 float64
};
/// y = f(norm(x) weight^T + bias) + add.
struct TokenProduct {
  at::Tensor x, weight, y;  ///< [b, k], [n, k], [b, n]; gated: weight [2 n, k], [gate; value]
  /// Where x is undefined, it is what this, which has no y, has given of `state`. With heads of a multiple of 8.
  const TokenAttention* attention = nullptr;
  const TokenState* state = nullptr;
  at::Tensor bias = {};   ///< [n], gated [2 n]; undefined: none
  at::Tensor add = {};    ///< [b, n]; undefined: nothing
  at::Tensor gain = {};   ///< [k] of the norm; undefined: x as it is
  at::Tensor shift = {};  ///< [k] of a layer norm; undefined: RMSNorm
  double epsilon = 1e-5;  ///< of the norm
  double factor = 1;      ///< of norm(x)
  double soft_cap = 0;    ///< products p become c tanh(p / c); 0: p
  std::optional<Activation> form = {};
  bool gated = false;
};

/// y = norm(x) + add, of rows [b, size]. Or of the queries and keys of a fused projection, where they lie.
struct TokenNorm {
  at::Tensor x, y;                           ///< may be one
  at::Tensor gain, shift = {};               ///< [size], of heads those of queries; undefined shift: RMSNorm
  at::Tensor add = {};                       ///< [b, size]; undefined: nothing
  at::Tensor key_gain = {}, key_shift = {};  ///< of heads
  std::int64_t sharing = 0;                  ///< of heads: queries of a group; 0: rows
  double epsilon = 1e-5;
};

/// By what the next token of each sequence is drawn from all logits: softmax(logits / temperature) without those whose
/// share is below `min_p` of the largest, and the number in [0, 1) that uniform_of(philox(key, position, copy)) is
/// (base/philox.h), where the position of the token counts from 0 on.
struct TokenDraws {
  at::Tensor key_b, copy_b;  ///< int64, on the device of the model
  double temperature = 1, min_p = 0;
};
constexpr std::int64_t kMostDrawn = 1 << 20;  ///< tokens of a vocabulary

constexpr std::int64_t kTokenPartKeys = 128;  ///< keys that a part of an attention has
std::int64_t token_scratch(std::int64_t batch, std::int64_t heads, std::int64_t head_size, std::int64_t capacity);
constexpr std::int64_t kMostTokenHeadSize = 256;

/// Work that a device is given whole. run() begins it on the current stream, and does not wait.
class Replay {
 public:
  Replay() = default;
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  virtual ~Replay();
  virtual void run() = 0;
};

/// A device's kernels of a token, as a table.
struct TokenKernels {
  void (*embed)(const TokenEmbedding&, const TokenState&) = nullptr;
  void (*multiply)(const TokenProduct&) = nullptr;
  void (*normalize)(const TokenNorm&) = nullptr;
  void (*attend)(const TokenAttention&, const TokenState&) = nullptr;
  /// Each sequence is fed the token with the largest logit [b, v] next, of equals the first, and has a row more.
  /// chosen_b: these tokens, or -1 where logits are not all finite.
  void (*choose)(const at::Tensor& logits, const TokenState&) = nullptr;
  /// choose() with a token that is drawn, of at most kMostDrawn.
  void (*draw)(const at::Tensor& logits, const TokenDraws&, const TokenState&) = nullptr;
  /// list [b, 2 + 2 count] float64: the `count` likeliest tokens of each sequence (shortlists_of()), at most
  /// kMostShortlisted, and the sum of all (phases/likelihood.h) by `temperature`; 0: no sum.
  void (*shortlist)(const at::Tensor& logits, const at::Tensor& list, double temperature) = nullptr;
  /// What `launches` does, which these kernels alone do; it has been called before. On CUDA it is called now and
  /// nothing is computed: run() has a graph do what it asked for (cudaGraphLaunch). On a CPU run() calls it.
  std::unique_ptr<Replay> (*capture)(std::function<void()> launches) = nullptr;
};

/// What TokenKernels::shortlist has written, of each sequence: on the host, for which it waits. None where logits are
/// not all finite, or the kernel could not tell (phases/token_shortlist.h).
std::vector<std::optional<Shortlist>> shortlists_of(const at::Tensor& list);

/// Of `device`, or null: CUDA's, once the plugin has been loaded; on a CPU those of its host drivers, where CUDA is
/// emulated.
const TokenKernels* token_kernels(at::Device device);
/// The plugin's table, which must last. `size`: sizeof(TokenKernels) where the plugin was compiled. Throws ConfigError
/// where that is another.
void set_cuda_token_kernels(const TokenKernels& plugin, std::size_t size);
/// What cuda-emulated computes with.
const TokenKernels& emulated_token_kernels();

}  // namespace megatron::kernels
