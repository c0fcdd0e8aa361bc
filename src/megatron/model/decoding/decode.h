#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/stages.h"

// s sequence, b batch, h hidden, n heads, t ranks of tp, d head size.
namespace megatron::model {

/// Keys and values of the tokens seen, per layer of a stage, this rank's heads of them: [capacity, b, g/t, d]. Of a
/// layer with latents these: keys [capacity, b, 1, Latents::cached()] on each rank, and values without features.
/// Sequences of different lengths share a batch by ending together: sequence b begins with padding[b] rows that no
/// token sees, and its positions count from there.
struct KvCache {
  std::vector<at::Tensor> keys, values;
  std::int64_t length = 0;  ///< rows filled, padding included
  std::int64_t capacity = 0;
  at::Tensor padding;  ///< [b] int64 on the model's device; undefined: none

  /// Goes on with the sequences `rows` [k] int64 alone.
  void keep(const at::Tensor& rows);
};

/// Keys and values of many sequences, per layer of a stage, this rank's heads of them: [blocks, r, g/t, d] in blocks of
/// r = plan::kCacheBlockTokens tokens. In memory the tokens of one group of a block lie one after another.
struct KvPool {
  std::vector<at::Tensor> keys, values;
};

/// One sequence in a pool, without padding. Sequences may have blocks in common, as long as none writes into them.
struct PagedCache {
  const KvPool* pool = nullptr;
  std::vector<std::int64_t> blocks;  ///< of the pool, in the order of its tokens
  std::int64_t length = 0;           ///< tokens whose keys and values are there
  std::int64_t adapter = 0;          ///< of TransformerOptions::kept, by its number; 0: none

  std::int64_t capacity() const;
};

class TokenGraph;  // token_graph.h

/// A stage of a GPT, or the whole model as the one stage, decoding from the tokens it has seen: no dropout, no
/// gradients, keys and values kept in a cache that is the caller's. Results do not depend on the stages nor on how the
/// tokens come (all at once, one by one), up to summation order. Of the adapters that TransformerOptions::kept has a
/// sequence in a pool has its own, and what is in a KvCache the usual one of the choice.
class CachedGpt {
 public:
  /// `parameters`: at least those of `part`, a tied output's by the embedding's name. Throws std::logic_error for
  /// sequence_parallel: one token does not divide.
  CachedGpt(TransformerOptions options, const plan::StageSpec& part, const parallel::ParameterStore& parameters,
            comm::Group tp);
  /// The whole model.
  CachedGpt(TransformerOptions options, const parallel::ParameterStore& parameters, comm::Group tp);

  /// Room for `capacity` tokens of each of `batch` sequences, padding included.
  KvCache make_cache(std::int64_t batch, std::int64_t capacity) const;

  /// Tokens that follow the cache's rows, which it fills. in: on the first stage the tokens [b, s] int64, on the others
  /// what the stage before returned -> [s, b, h] for the next stage; on the last the logits [b, vocab] after the last
  /// token alone. Collective over tp: two all-reduces a layer, one for the embedding, an all-gather of the logits.
  /// Throws std::logic_error where the cache's capacity does not hold, ConfigError for a token outside the model's.
  /// `states`, where not null: becomes what the last norm gave [s, b, h], on the last stage.
  at::Tensor forward(const at::Tensor& in, KvCache& cache, at::Tensor* states = nullptr) const;

  /// forward() with the logits [s, vocab] after every token of the one sequence, on the last stage.
  at::Tensor forward_all(const at::Tensor& in, KvCache& cache, at::Tensor* states = nullptr) const;

  /// Blocks for the keys and values of all sequences.
  KvPool make_pool(std::int64_t blocks) const;

  /// forward() of one sequence in a pool: the bits that it would get with a cache of its own.
  at::Tensor forward(const at::Tensor& in, PagedCache& cache) const;
  /// forward() of one sequence in a pool with the logits [s, vocab] after every token, on the last stage.
  at::Tensor forward_all(const at::Tensor& in, PagedCache& cache) const;

  /// One more token of each of b sequences in one pool. in: on the first stage the tokens [b] int64, on the others what
  /// the stage before returned -> [1, b, h]; on the last the logits [b, vocab]. On the CPU, where CachedGpt takes a
  /// token from buffer to buffer (16-bit types and float32, learned or rotary positions), each sequence gets the bits
  /// that it would get alone. Collective and throws as forward().
  at::Tensor step(const at::Tensor& in, std::span<PagedCache* const> caches) const;

  /// What gives `cache`, which must outlive it and stay as it is, one token after the other in a graph; null where this
  /// is not the whole model on one rank, on a device with kernels for that, or has what they do not compute
  /// (token_graph.h), adapters among it.
  std::unique_ptr<TokenGraph> token_graph(KvCache& cache) const;

  const TransformerOptions& options() const;
  at::Device device() const;  ///< of the parameters, and of the tokens that a stage without layers is given too
  ~CachedGpt();
  CachedGpt(CachedGpt&&) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatron::model
