#include "megatron/model/decoding/t5_decode.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <variant>

#include "megatron/kernels/attention.h"
#include "megatron/model/attention.h"
#include "megatron/model/stage_modules.h"
#include "megatron/parallel/backward.h"

// s tokens of the encoder, b sequences, h hidden, n heads of this rank, d head size.
namespace megatron::model {
namespace {

constexpr std::int64_t kFirstCapacity = 32;  // tokens of answers

/// [rows, n, capacity, d] as its readers see it: the tokens of one row's head lie one after another.
at::Tensor tokens_first(const at::Tensor& x) { return x.permute({2, 0, 1, 3}); }

const plan::SelfAttention& self_of(const Block& block) {
  return std::get<plan::SelfAttention>(block.attention().spec.inner);
}

const BranchModules& cross_of(const Block& block) {
  for (const BranchModules& branch : block.branches())
    if (std::holds_alternative<plan::CrossAttention>(branch.spec.inner)) return branch;
  throw std::logic_error("a layer of a T5's decoder has cross attention");
}

/// Makes room for one more token.
void grow(T5Cache& cache) {
  if (cache.length < cache.capacity) return;
  cache.capacity *= 2;
  for (auto* tensors : {&cache.keys, &cache.values}) {
    for (at::Tensor& tensor : *tensors) {
      const auto more =
          tokens_first(at::empty({tensor.size(1), tensor.size(2), cache.capacity, tensor.size(3)}, tensor.options()));
      more.narrow(0, 0, cache.length).copy_(tensor.narrow(0, 0, cache.length));
      tensor = more;
    }
  }
}

}  // namespace

void T5Cache::keep(const at::Tensor& rows, const at::Tensor& kept) {
  for (auto* tensors : {&keys, &values})
    for (at::Tensor& tensor : *tensors) tensor = tokens_first(tensor.permute({1, 2, 0, 3}).index_select(0, rows));
  if (kept.size(0) == texts) return;  // a text that has ended never comes again
  for (auto* tensors : {&cross_keys, &cross_values})
    for (at::Tensor& tensor : *tensors) tensor = tensor.index_select(1, kept);
  if (key_lengths_b.defined()) key_lengths_b = key_lengths_b.index_select(0, kept);
  texts = kept.size(0);
}

struct CachedT5::Impl {
  TransformerOptions options;
  plan::StageSpec part;
  at::TensorOptions tensor;  ///< dtype and device of the parameters
  StageModules modules;
  std::size_t encoder_blocks;  ///< of the stage; those of the decoder follow

  Impl(TransformerOptions o, const plan::StageSpec& p, const parallel::ParameterStore& parameters,
       const comm::Group& tp)
      : options(o),
        part(p),
        tensor(parameters.values().options()),
        modules(options, part, parameters, tp),
        encoder_blocks(static_cast<std::size_t>(
            std::clamp<std::int64_t>(options.shape.encoder_layers - part.first_layer, 0, part.num_layers))) {
    if (options.sequence_parallel || !options.shape.encoder_decoder())
      throw std::logic_error("decoding as a T5 is of a T5, and not sequence parallel: one token cannot divide");
  }

  using EncoderOutputOf = std::function<EncoderOutput(std::size_t block)>;
  /// Blocks [first, last) on x: the stream behind them or, where not null, its norm `end`.
  at::Tensor run(const at::Tensor& x, std::size_t first, std::size_t last, const Norm* end,
                 const StageModules::AttentionOf& attention, const EncoderOutputOf& encoder_output) const;
  /// Attention of a new token over those of the cache and itself, which is added to it.
  Attend attend_own(T5Cache& cache, std::size_t index, const at::Tensor& bias) const;
  /// Attention of a new token over the text.
  EncoderOutput attend_text(const T5Cache& cache, std::size_t index) const;

  at::Tensor read(const at::Tensor& in, const at::Tensor& key_lengths_b) const;
  T5Cache begin(const at::Tensor& states, const at::Tensor& key_lengths_b) const;
  at::Tensor write(const at::Tensor& in, T5Cache& cache) const;
};

at::Tensor CachedT5::Impl::run(const at::Tensor& x, std::size_t first, std::size_t last, const Norm* end,
                               const StageModules::AttentionOf& attention,
                               const EncoderOutputOf& encoder_output) const {
  if (first == last) return end == nullptr ? x : normalized(x, *end).y;
  auto stream = normalized(x, modules.blocks[first].input_norm());
  for (std::size_t l = first; l < last; ++l) {
    const EncoderOutput across = encoder_output(l);
    stream = modules.blocks[l].forward(std::move(stream), attention(l), {},
                                       l + 1 < last ? &modules.blocks[l + 1].input_norm() : end,
                                       parallel::Value::Needed, &across);
  }
  return end == nullptr ? stream.residual : stream.y;
}

at::Tensor CachedT5::Impl::read(const at::Tensor& in, const at::Tensor& key_lengths_b) const {
  const at::Tensor x =
      part.embedding ? modules.embed(in.t().contiguous(), counted_positions(in.size(1), in.size(0), in.device())) : in;
  if (encoder_blocks == 0) return x;
  const std::int64_t s = x.size(0);
  const at::Tensor bias = modules.encoder_bias ? modules.encoder_bias->between(s, s).values : at::Tensor();
  const auto attention = [&](std::size_t l) -> Attend {
    return [&, &block = modules.blocks[l]](const at::Tensor& qkv) -> Recomputable {
      const Heads heads = heads_of(qkv, block.attention().groups, block.attention().head_size);
      kernels::AttentionOptions both_ways = attention_options(self_of(block));
      both_ways.key_lengths = key_lengths_b;
      both_ways.bias = bias;
      return {kernels::attention(heads.q, heads.k, heads.v, both_ways).out.flatten(2), {}};
    };
  };
  return run(x, 0, encoder_blocks, modules.encoder_norm ? &*modules.encoder_norm : nullptr, attention,
             [](std::size_t) { return EncoderOutput(); });
}

T5Cache CachedT5::Impl::begin(const at::Tensor& states, const at::Tensor& key_lengths_b) const {
  const std::int64_t s = states.size(0), b = states.size(1);
  T5Cache cache;
  cache.key_lengths_b = key_lengths_b;
  cache.texts = b;
  cache.capacity = kFirstCapacity;
  for (std::size_t l = encoder_blocks; l < modules.blocks.size(); ++l) {
    const std::int64_t n = cross_of(modules.blocks[l]).heads, d = cross_of(modules.blocks[l]).head_size;
    const auto pairs = modules.blocks[l].cross_keys_and_values(states).view({s, b, n, 2, d});
    // Head by head, as they are read for each token.
    const auto kept = pairs.permute({3, 1, 2, 0, 4}).contiguous();
    cache.cross_keys.push_back(tokens_first(kept[0]));
    cache.cross_values.push_back(tokens_first(kept[1]));
    const auto& own = modules.blocks[l].attention();  // whose heads need not be those of cross attention
    for (auto* tensors : {&cache.keys, &cache.values})
      tensors->push_back(tokens_first(at::empty({b, own.groups, cache.capacity, own.head_size}, tensor)));
  }
  return cache;
}

Attend CachedT5::Impl::attend_own(T5Cache& cache, std::size_t index, const at::Tensor& bias) const {
  return [&cache, index, bias, &block = modules.blocks[encoder_blocks + index]](const at::Tensor& qkv) -> Recomputable {
    const Heads heads = heads_of(qkv, block.attention().groups, block.attention().head_size);
    auto &keys = cache.keys[index], &values = cache.values[index];
    keys.narrow(0, cache.length, 1).copy_(heads.k);
    values.narrow(0, cache.length, 1).copy_(heads.v);
    const std::int64_t seen = cache.length + 1;
    kernels::AttentionOptions own =
        attention_options(self_of(block), {.begin = cache.length, .s = 1, .b = qkv.size(1)});
    own.bias = bias;
    return {kernels::attention(heads.q, keys.narrow(0, 0, seen), values.narrow(0, 0, seen), own).out.flatten(2), {}};
  };
}

// The answers to one text are so many queries over the same keys.
EncoderOutput CachedT5::Impl::attend_text(const T5Cache& cache, std::size_t index) const {
  const auto attend = [&cache, index, &branch = cross_of(modules.blocks[encoder_blocks + index])](
                          const at::Tensor& q, const at::Tensor& /*kv*/) -> Recomputable {
    const std::int64_t rows = q.size(1), answers = rows / cache.texts;
    const auto heads = q.view({cache.texts, answers, branch.heads, branch.head_size}).transpose(0, 1);
    kernels::AttentionOptions all = attention_options(std::get<plan::CrossAttention>(branch.spec.inner));
    all.key_lengths = cache.key_lengths_b;
    const auto out = kernels::attention(heads, cache.cross_keys[index], cache.cross_values[index], all).out;
    return {out.transpose(0, 1).reshape({1, rows, -1}), {}};
  };
  return {{}, attend};
}

at::Tensor CachedT5::Impl::write(const at::Tensor& in, T5Cache& cache) const {
  grow(cache);
  const bool begins = plan::begins_decoder(options.shape, part);
  const auto position = [&] { return counted_positions(1, in.size(0), in.device()).add(cache.length); };
  const at::Tensor x = begins ? modules.embed(in.unsqueeze(0), position()) : in;
  const at::Tensor bias =
      modules.decoder_bias ? modules.decoder_bias->between(1, cache.length + 1).values : at::Tensor();
  const at::Tensor y = run(
      x, encoder_blocks, modules.blocks.size(), modules.final_norm ? &*modules.final_norm : nullptr,
      [&](std::size_t l) { return attend_own(cache, l - encoder_blocks, bias); },
      [&](std::size_t l) { return attend_text(cache, l - encoder_blocks); });
  ++cache.length;
  return part.output ? modules.output->logits(modules.for_output(y[0])) : y;
}

CachedT5::CachedT5(TransformerOptions options, const plan::StageSpec& part, const parallel::ParameterStore& parameters,
                   comm::Group tp)
    : impl_(std::make_unique<Impl>(options, part, parameters, std::move(tp))) {}
CachedT5::~CachedT5() = default;
CachedT5::CachedT5(CachedT5&&) noexcept = default;

const TransformerOptions& CachedT5::options() const { return impl_->options; }

at::Tensor CachedT5::read(const at::Tensor& in, const at::Tensor& key_lengths_b) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return parallel::without_autograd([&] { return impl_->read(in, key_lengths_b); });
}

T5Cache CachedT5::begin(const at::Tensor& states, const at::Tensor& key_lengths_b) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return parallel::without_autograd([&] { return impl_->begin(states, key_lengths_b); });
}

at::Tensor CachedT5::write(const at::Tensor& in, T5Cache& cache) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return parallel::without_autograd([&] { return impl_->write(in, cache); });
}

}  // namespace megatron::model
