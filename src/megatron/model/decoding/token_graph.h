#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "megatron/kernels/token/token.h"
#include "megatron/model/decoding/decode.h"
#include "megatron/model/stage_modules.h"

namespace megatron::model {

/// The parameters at both ends of a model that is whole on one rank; `words` is null where it is not.
struct ModelEnds {
  parallel::ParameterPtr words, positions, output, output_bias;  ///< those that there are
};
ModelEnds ends_of(const plan::ModelShape& shape, const parallel::ParameterStore& parameters);

/// One token after the other of each of a cache's b sequences on a GPU: in 5 launches a layer, 6 where the cache is
/// long, and 3 around them, which are captured once as a graph and given to the device whole (kernels/token/token.h).
/// The likeliest token of each sequence, or one drawn from all, is what it is fed next, without a wait; whoever draws
/// otherwise reads the likeliest, or all logits, and feeds others. Results are those of CachedGpt::forward() up to
/// summation order.
class TokenGraph {
 public:
  /// Sequences that are served at most: with more, products by tiles read the weights less often.
  static constexpr std::int64_t kMostSequences = 16;

  /// Null where CachedGpt::token_graph() gives null: `ends.words` is null, there are more sequences or wider heads than
  /// the kernels take, or the model has norms over all heads, a norm in the residual stream, latents, experts,
  /// adapters, weights in blocks or rows of a matrix of more than 90 KB.
  static std::unique_ptr<TokenGraph> of(const TransformerOptions& options, const StageModules& modules,
                                        const ModelEnds& ends, KvCache& cache);

  /// Whatever step() has chosen, the sequences continue with these [b], behind the rows that the cache has now. Ids of
  /// the model's vocabulary.
  void feed(const std::vector<std::int64_t>& tokens);
  /// Takes the token that each sequence is fed into the cache, computes the logits after it and chooses the likeliest
  /// as the next, or draws it. Does not wait. Throws std::logic_error where the cache is full.
  void step();
  /// What step() has chosen: -1 where not all logits are finite. Waits.
  std::vector<std::int64_t> chosen() const;
  /// Has each step() draw the next token of each sequence by these, whose tensors may be on the host; of a vocabulary
  /// of at most kernels::kMostDrawn. Before the first step().
  void draw_by(const kernels::TokenDraws& draws);
  /// Has each step() write the `count` likeliest tokens of each sequence too, and with a temperature above 0 what all
  /// weigh (kernels/phases/likelihood.h). Before the first step().
  void list_likeliest(std::int64_t count, double temperature);
  /// What step() has listed of each sequence (kernels::shortlists_of()). Waits.
  std::vector<std::optional<kernels::Shortlist>> listed() const { return kernels::shortlists_of(list_); }
  /// [b, vocab] after the last step(), which the next overwrites.
  const at::Tensor& logits() const { return logits_; }

 private:
  using Launch = std::variant<kernels::TokenProduct, kernels::TokenAttention, kernels::TokenNorm>;
  /// The steps of layer_walk.h: each adds its launches.
  class Recorder;

  TokenGraph(const TransformerOptions& options, const StageModules& modules, const ModelEnds& ends, KvCache& cache,
             const kernels::TokenKernels& kernels);
  /// Every launch of a token.
  void launch() const;
  at::Tensor rows(std::int64_t features) const;

  KvCache& cache_;
  const kernels::TokenKernels& kernels_;
  at::TensorOptions tensor_;
  std::int64_t batch_;
  kernels::TokenState state_;
  kernels::TokenEmbedding embedding_;
  std::deque<Launch> launches_;  ///< of all layers; a product may name an attention before it
  kernels::TokenProduct output_;
  at::Tensor logits_, scratch_, list_;
  double list_temperature_ = 0;
  std::optional<kernels::TokenDraws> draws_;  ///< none: the likeliest is chosen
  bool warm_ = false;                         ///< whether every kernel has been launched
  std::unique_ptr<kernels::Replay> graph_;
};

}  // namespace megatron::model
