#include "megatron/model/gpt.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>

#include <optional>
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

/// What the blocks need to know of a microbatch and of the pass over it: little, as what is computed again keeps it.
struct Pass {
  at::Tensor sample_ids, first_key_bs;
  bool training;
};

struct Gpt::Impl {
  GptOptions options;
  plan::StagePart part;
  comm::Group tp;
  at::TensorOptions tensor;  ///< dtype and device of the parameters
  std::optional<parallel::VocabParallelEmbedding> words, positions;
  std::vector<Block> blocks;  ///< layers part.first_layer …
  std::vector<LayerGroup> groups;
  std::optional<Norm> final_norm;
  std::optional<parallel::VocabParallelOutput> output;

  Impl(GptOptions o, const plan::StagePart& p, const parallel::ParameterStore& parameters, comm::Group group);

  std::int64_t head_size() const { return options.shape.hidden / options.shape.num_heads; }
  std::int64_t local_heads() const { return options.shape.num_heads / tp.size(); }
  void need_whole_model() const {
    if (part != plan::whole_model(options.shape.num_layers))
      throw std::logic_error("only the whole model gives logits, not a pipeline stage");
  }

  at::Tensor embed(const at::Tensor& tokens_sb, const at::Tensor& positions_sb) const {
    return words->forward(tokens_sb).add(positions->forward(positions_sb));
  }
  /// The embedding of the microbatch, after its dropout.
  at::Tensor embed(const Batch& batch, const Pass& pass) const;

  /// The stage without its output layer: x, undefined with embedding, -> what follows the last layer, and the final
  /// norm where that is this stage's.
  at::Tensor hidden(at::Tensor x, const Batch& batch, bool training) const;

  Attend attention(const Pass& pass, std::int64_t layer) const;
  /// The dropout of one site on rows `x_sbh` of the stream.
  kernels::Dropout stream_site(const Pass& pass, const std::string& name, const at::Tensor& x_sbh) const;

  /// Layers [first, last) of the stage. `attend(l)` and `dropout(l)` say how each goes.
  template <class AttendOf, class SitesOf>
  Normed run_blocks(at::Tensor x_sbh, const LayerGroup& group, const Norm* next, const AttendOf& attend,
                    const SitesOf& dropout, parallel::Value value = parallel::Value::Needed) const {
    const auto block = [&](std::int64_t l) -> const Block& { return blocks[static_cast<std::size_t>(l)]; };
    auto stream = layer_norm(std::exchange(x_sbh, {}), block(group.first).input_norm());
    for (std::int64_t l = group.first; l < group.last; ++l) {
      const bool last = l + 1 == group.last;
      stream = block(l).forward(std::move(stream), attend(l), dropout(l), last ? next : &block(l + 1).input_norm(),
                                last ? value : parallel::Value::Needed);
    }
    return stream;
  }
  /// `value`: whether the stream after the last of them is read.
  Normed run_blocks(at::Tensor x_sbh, const LayerGroup& group, const Norm* next, const Pass& pass,
                    parallel::Value value = parallel::Value::Needed) const;

  Attend cached_attention(KvCache& cache, std::int64_t layer, const at::Tensor& first_key_bs) const;
};

Gpt::Impl::Impl(GptOptions o, const plan::StagePart& p, const parallel::ParameterStore& parameters, comm::Group group)
    : options(std::move(o)),
      part(p),
      tp(std::move(group)),
      tensor(parameters.values().options()),
      groups(layer_groups(options.recompute, p.num_layers)) {
  const bool split = options.sequence_parallel;
  const auto& shape = options.shape;
  if (part.embedding) {
    using parallel::VocabParallelEmbedding;
    words.emplace(parameters.get(kWordEmbedding), shape.vocab, "token id", tp, VocabParallelEmbedding::Options{split});
    positions.emplace(parameters.get(kPositionEmbedding), shape.max_positions, "position id", tp,
                      VocabParallelEmbedding::Options{split});
  }
  const Block::Options block{.epsilon = options.layernorm_epsilon,
                             .gelu = options.gelu,
                             .sequence_parallel = split,
                             .keep_gelu = !options.recompute.gelu && !options.recompute.mlp,
                             .recompute_mlp = options.recompute.mlp};
  for (std::int64_t l = part.first_layer; l < part.first_layer + part.num_layers; ++l)
    blocks.emplace_back(parameters, concat("decoder.layers.", l, "."), block, tp);
  if (!part.output) return;
  final_norm = norm_of(parameters, "decoder.final_layernorm.", options.layernorm_epsilon);
  output.emplace(parameters.get(shape.tied_output ? kWordEmbedding : "output_layer.weight"), tp,
                 parallel::VocabParallelOutput::Options{.vocab = shape.vocab,
                                                        .label_smoothing = options.label_smoothing,
                                                        .chunk_tokens = options.loss_chunk_tokens,
                                                        .sequence_parallel = split});
}

kernels::Dropout Gpt::Impl::stream_site(const Pass& pass, const std::string& name, const at::Tensor& x_sbh) const {
  auto dropout = site(pass.training ? options.hidden_dropout : 0, options.seed, name, pass.sample_ids);
  if (options.sequence_parallel) dropout.position_offset = tp.rank() * x_sbh.size(0);
  return dropout;
}

Attend Gpt::Impl::attention(const Pass& pass, std::int64_t layer) const {
  kernels::AttentionOptions attention;
  attention.first_key = pass.first_key_bs;
  attention.dropout = site(pass.training ? options.attention_dropout : 0, options.seed,
                           concat("layer ", layer, "/attention"), pass.sample_ids);
  attention.head_offset = tp.rank() * local_heads();
  return [attention, d = head_size(), again = options.recompute.attention_core](const at::Tensor& qkv) {
    return self_attention(qkv, d, attention, again);
  };
}

Normed Gpt::Impl::run_blocks(at::Tensor x_sbh, const LayerGroup& group, const Norm* next, const Pass& pass,
                             parallel::Value value) const {
  const auto rows = x_sbh.detach();  // of the stream, whose size the dropout sites need
  return run_blocks(
      std::move(x_sbh), group, next, [&](std::int64_t l) { return attention(pass, part.first_layer + l); },
      [&](std::int64_t l) {
        const std::string layer = concat("layer ", part.first_layer + l);
        return Block::Sites{.attention_output = stream_site(pass, layer + "/attention output", rows),
                            .mlp_output = stream_site(pass, layer + "/mlp output", rows)};
      },
      value);
}

at::Tensor Gpt::Impl::embed(const Batch& batch, const Pass& pass) const {
  const auto tokens_sb = batch.tokens_bs.t().contiguous();
  const auto positions_sb = batch.position_ids_bs.defined()
                                ? batch.position_ids_bs.t().contiguous()
                                : counted_positions(tokens_sb.size(0), tokens_sb.size(1), tokens_sb.device());
  const auto x = embed(tokens_sb, positions_sb);
  return dropout(x, stream_site(pass, "embedding", x));
}

at::Tensor Gpt::Impl::hidden(at::Tensor x, const Batch& batch, bool training) const {
  if (x.defined() == part.embedding)
    throw std::logic_error("a stage takes the output of the one before it, and only the first finds its own input");
  const Pass pass{.sample_ids = batch.sample_ids, .first_key_bs = batch.first_key_bs, .training = training};
  if (part.embedding) x = embed(batch, pass);
  for (const LayerGroup& group : groups) {
    if (group.again) {
      const bool split = options.recompute.distribute_inputs && !options.sequence_parallel;
      const auto compute = [this, group, pass](at::Tensor in, parallel::Value value) {
        return run_blocks(std::move(in), group, nullptr, pass, value).residual;
      };
      x = recomputed(x, compute, split ? tp : comm::Group());
    } else if (part.output) {
      return run_blocks(std::move(x), group, &*final_norm, pass).y;  // the last group: the norm is fused with it
    } else {
      x = run_blocks(std::move(x), group, nullptr, pass).residual;
    }
  }
  return part.output ? layer_norm(x, *final_norm).y : x;
}

Attend Gpt::Impl::cached_attention(KvCache& cache, std::int64_t layer, const at::Tensor& first_key_bs) const {
  kernels::AttentionOptions attention;
  attention.first_key = first_key_bs;
  return [&cache, layer, attention, d = head_size()](const at::Tensor& qkv) {
    const std::int64_t s = qkv.size(0), b = qkv.size(1), seen = cache.length + s;
    const auto heads = qkv.view({s, b, -1, 3, d});
    auto &keys = cache.keys[static_cast<std::size_t>(layer)], &values = cache.values[static_cast<std::size_t>(layer)];
    keys.narrow(0, cache.length, s).copy_(heads.select(3, 1));
    values.narrow(0, cache.length, s).copy_(heads.select(3, 2));
    const auto k = keys.narrow(0, 0, seen), v = values.narrow(0, 0, seen);
    return Remakeable{kernels::attention(heads.select(3, 0), k, v, attention).out.view({s, b, -1}), {}};
  };
}

void KvCache::keep(const at::Tensor& rows) {
  for (auto* tensors : {&keys, &values})
    for (at::Tensor& tensor : *tensors) tensor = tensor.index_select(1, rows);
  if (padding.defined()) padding = padding.index_select(0, rows);
}

Gpt::Gpt(GptOptions options, const plan::StagePart& part, const parallel::ParameterStore& parameters, comm::Group tp)
    : impl_(std::make_unique<Impl>(std::move(options), part, parameters, std::move(tp))) {}
Gpt::Gpt(GptOptions options, const parallel::ParameterStore& parameters, comm::Group tp)
    : Gpt(options, plan::whole_model(options.shape.num_layers), parameters, std::move(tp)) {}
Gpt::~Gpt() = default;
Gpt::Gpt(Gpt&&) noexcept = default;

const GptOptions& Gpt::options() const { return impl_->options; }

at::Tensor Gpt::forward(at::Tensor x, const Batch& batch, bool training) const {
  if (impl_->part.output) throw std::logic_error("the last stage gives a loss");
  const auto compute = [&] { return impl_->hidden(std::move(x), batch, training); };
  return training ? compute() : parallel::without_autograd(compute);
}

LossSum Gpt::loss(at::Tensor x, const Batch& batch, bool training) const {
  if (!impl_->part.output) throw std::logic_error("only the last stage gives a loss");
  const auto compute = [&] {
    const auto hidden = impl_->hidden(std::move(x), batch, training);
    const auto labels_sb = batch.labels_bs.t().contiguous();
    const auto mask_sb =
        batch.loss_mask_bs.defined() ? batch.loss_mask_bs.t().contiguous() : at::ones_like(labels_sb, impl_->tensor);
    return LossSum{impl_->output->loss_sum(hidden, labels_sb, mask_sb), mask_sb.sum(at::kDouble).item<double>()};
  };
  return training ? compute() : parallel::without_autograd(compute);
}

at::Tensor Gpt::logits(const Batch& batch) const {
  impl_->need_whole_model();
  return parallel::without_autograd(
      [&] { return impl_->output->logits(impl_->hidden({}, batch, false)).transpose(0, 1).contiguous(); });
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
  impl_->need_whole_model();
  if (impl_->options.sequence_parallel) throw std::logic_error("the next token's logits are not sequence parallel");
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
    const auto x = impl_->embed(tokens_bs.t().contiguous(), position_sb);
    const LayerGroup all{.first = 0, .last = static_cast<std::int64_t>(impl_->blocks.size())};
    const auto cached = [&] {
      return impl_->run_blocks(
          x, all, &*impl_->final_norm, [&](std::int64_t l) { return impl_->cached_attention(cache, l, first_key_bs); },
          [](std::int64_t) { return Block::Sites(); });
    };
    const auto hidden = (all.last > 0 ? cached() : layer_norm(x, *impl_->final_norm)).y;
    cache.length += s;
    return impl_->output->logits(hidden[s - 1]);
  });
}

}  // namespace megatron::model
