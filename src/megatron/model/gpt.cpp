#include "megatron/model/gpt.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/model/block.h"
#include "megatron/model/operators.h"
#include "megatron/parallel/backward.h"
#include "megatron/parallel/embedding.h"
#include "megatron/parallel/output_layer.h"

// s sequence, b microbatch, h hidden, n heads of this rank, d head size.
namespace megatron::model {
namespace {

constexpr const char* kWordEmbedding = "embedding.word_embeddings.weight";
constexpr const char* kPositionEmbedding = "embedding.position_embeddings.weight";

/// The dropout of one site in one pass over a microbatch.
kernels::Dropout site(double p, std::uint64_t seed, const std::string& name, const at::Tensor& sample_ids) {
  if (p == 0) return {};
  kernels::Dropout dropout;
  dropout.p = p;
  dropout.key = stream_key(seed, "dropout/" + name);
  dropout.sample_ids = sample_ids;
  return dropout;
}

/// [s, b]: 0, 1, 2, … in each sequence.
at::Tensor counted_positions(std::int64_t s, std::int64_t b, at::Device device) {
  return at::arange(s, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(1).expand({s, b}).contiguous();
}

}  // namespace

struct Gpt::Impl {
  GptOptions options;
  comm::Group tp;
  at::TensorOptions tensor;  ///< dtype and device of the parameters
  parallel::VocabParallelEmbedding words, positions;
  std::vector<Block> blocks;
  Norm final_norm;
  parallel::VocabParallelOutput output;

  Impl(GptOptions o, const parallel::ParameterStore& parameters, comm::Group group);

  std::int64_t head_size() const { return options.shape.hidden / options.shape.num_heads; }
  std::int64_t local_heads() const { return options.shape.num_heads / tp.size(); }

  at::Tensor embed(const at::Tensor& tokens_sb, const at::Tensor& positions_sb) const {
    return words.forward(tokens_sb).add(positions.forward(positions_sb));
  }

  /// Last hidden state [s, b, h], after the final norm, over the sequences of `batch` themselves.
  at::Tensor hidden(const Batch& batch, bool training) const;
  Attend attention(const Batch& batch, std::size_t layer, double p) const;

  /// The blocks and the final norm; `attend(layer)` and `dropout(layer)` say how each block goes.
  template <class AttendOf, class SitesOf>
  at::Tensor run_blocks(const at::Tensor& x_sbh, const AttendOf& attend, const SitesOf& dropout) const {
    auto stream = layer_norm(x_sbh, blocks.empty() ? final_norm : blocks.front().input_norm());
    for (std::size_t l = 0; l < blocks.size(); ++l) {
      const Norm& next = l + 1 < blocks.size() ? blocks[l + 1].input_norm() : final_norm;
      stream = blocks[l].forward(std::move(stream), attend(l), dropout(l), next);
    }
    return stream.y;
  }

  Attend cached_attention(KvCache& cache, std::size_t layer, const at::Tensor& first_key_bs) const;
};

Gpt::Impl::Impl(GptOptions o, const parallel::ParameterStore& parameters, comm::Group group)
    : options(std::move(o)),
      tp(std::move(group)),
      tensor(parameters.values().options()),
      words(parameters.get(kWordEmbedding), options.shape.vocab, "token id", tp),
      positions(parameters.get(kPositionEmbedding), options.shape.max_positions, "position id", {}),
      final_norm(norm_of(parameters, "decoder.final_layernorm.", options.layernorm_epsilon)),
      output(parameters.get(options.shape.tied_output ? kWordEmbedding : "output_layer.weight"), tp,
             {.vocab = options.shape.vocab,
              .label_smoothing = options.label_smoothing,
              .chunk_tokens = options.loss_chunk_tokens}) {
  for (std::int64_t l = 0; l < options.shape.num_layers; ++l)
    blocks.emplace_back(parameters, concat("decoder.layers.", l, "."), options.layernorm_epsilon, options.gelu,
                        options.recompute_gelu, tp);
}

Attend Gpt::Impl::attention(const Batch& batch, std::size_t layer, double p) const {
  kernels::AttentionOptions attention;
  attention.first_key = batch.first_key_bs;
  attention.dropout = site(p, options.seed, concat("layer ", layer, "/attention"), batch.sample_ids);
  attention.head_offset = tp.rank() * local_heads();
  return [attention, d = head_size()](const at::Tensor& qkv) { return self_attention(qkv, d, attention); };
}

at::Tensor Gpt::Impl::hidden(const Batch& batch, bool training) const {
  const double hidden_p = training ? options.hidden_dropout : 0, attention_p = training ? options.attention_dropout : 0;
  const auto site_of = [&](const std::string& name) { return site(hidden_p, options.seed, name, batch.sample_ids); };
  const auto tokens_sb = batch.tokens_bs.t().contiguous();
  const auto positions_sb = batch.position_ids_bs.defined()
                                ? batch.position_ids_bs.t().contiguous()
                                : counted_positions(tokens_sb.size(0), tokens_sb.size(1), tokens_sb.device());
  return run_blocks(
      dropout(embed(tokens_sb, positions_sb), site_of("embedding")),
      [&](std::size_t l) { return attention(batch, l, attention_p); },
      [&](std::size_t l) {
        return Block::Sites{.attention_output = site_of(concat("layer ", l, "/attention output")),
                            .mlp_output = site_of(concat("layer ", l, "/mlp output"))};
      });
}

Attend Gpt::Impl::cached_attention(KvCache& cache, std::size_t layer, const at::Tensor& first_key_bs) const {
  kernels::AttentionOptions attention;
  attention.first_key = first_key_bs;
  return [&cache, layer, attention, d = head_size()](const at::Tensor& qkv) {
    const std::int64_t s = qkv.size(0), b = qkv.size(1), seen = cache.length + s;
    const auto heads = qkv.view({s, b, -1, 3, d});
    cache.keys[layer].narrow(0, cache.length, s).copy_(heads.select(3, 1));
    cache.values[layer].narrow(0, cache.length, s).copy_(heads.select(3, 2));
    const auto k = cache.keys[layer].narrow(0, 0, seen), v = cache.values[layer].narrow(0, 0, seen);
    return kernels::attention(heads.select(3, 0), k, v, attention).out.view({s, b, -1});
  };
}

void KvCache::keep(const at::Tensor& rows) {
  for (auto* tensors : {&keys, &values})
    for (at::Tensor& tensor : *tensors) tensor = tensor.index_select(1, rows);
  if (padding.defined()) padding = padding.index_select(0, rows);
}

Gpt::Gpt(GptOptions options, const parallel::ParameterStore& parameters, comm::Group tp)
    : impl_(std::make_unique<Impl>(std::move(options), parameters, std::move(tp))) {}
Gpt::~Gpt() = default;
Gpt::Gpt(Gpt&&) noexcept = default;

const GptOptions& Gpt::options() const { return impl_->options; }

LossSum Gpt::loss(const Batch& batch, bool training) const {
  const auto compute = [&] {
    const auto hidden = impl_->hidden(batch, training);
    const auto labels_sb = batch.labels_bs.t().contiguous();
    const auto mask_sb =
        batch.loss_mask_bs.defined() ? batch.loss_mask_bs.t().contiguous() : at::ones_like(labels_sb, impl_->tensor);
    return LossSum{impl_->output.loss_sum(hidden, labels_sb, mask_sb), mask_sb.sum(at::kDouble).item<double>()};
  };
  return training ? compute() : parallel::without_autograd(compute);
}

at::Tensor Gpt::logits(const Batch& batch) const {
  return parallel::without_autograd(
      [&] { return impl_->output.logits(impl_->hidden(batch, false)).transpose(0, 1).contiguous(); });
}

KvCache Gpt::make_cache(std::int64_t batch, std::int64_t capacity) const {
  KvCache cache;
  cache.capacity = capacity;
  for (std::size_t l = 0; l < impl_->blocks.size(); ++l)
    for (auto* tensors : {&cache.keys, &cache.values})
      tensors->push_back(at::empty({capacity, batch, impl_->local_heads(), impl_->head_size()}, impl_->tensor));
  return cache;
}

at::Tensor Gpt::next_logits(const at::Tensor& tokens_bs, KvCache& cache) const {
  const std::int64_t s = tokens_bs.size(1), b = tokens_bs.size(0);
  if (cache.length + s > cache.capacity)
    throw std::logic_error(concat("a cache of ", cache.capacity, " rows cannot take ", cache.length, " + ", s));
  return parallel::without_autograd([&] {
    auto row_sb = counted_positions(s, b, tokens_bs.device()).add(cache.length), position_sb = row_sb;
    at::Tensor first_key_bs;
    if (cache.padding.defined()) {
      position_sb = row_sb.sub(cache.padding.unsqueeze(0)).clamp_min(0);
      // A row of padding sees itself, so that its (unused) softmax is over something.
      first_key_bs = at::minimum(row_sb, cache.padding.unsqueeze(0)).t().to(at::kInt).contiguous();
    }
    const auto hidden = impl_->run_blocks(
        impl_->embed(tokens_bs.t().contiguous(), position_sb),
        [&](std::size_t l) { return impl_->cached_attention(cache, l, first_key_bs); },
        [](std::size_t) { return Block::Sites(); });
    cache.length += s;
    return impl_->output.logits(hidden[s - 1]);
  });
}

}  // namespace megatron::model
