#include "megatron/model/decoding/decode.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/minimum.h>

#include <stdexcept>
#include <utility>
#include <variant>

#include "megatron/base/error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/kernels/attention.h"
#include "megatron/model/attention.h"
#include "megatron/model/decoding/token_step.h"
#include "megatron/model/stage_modules.h"
#include "megatron/parallel/backward.h"

// s sequence, b batch, h hidden, n heads of this rank, d head size.
namespace megatron::model {
namespace {

/// Where the tokens of one call stand.
struct Places {
  at::Tensor position_sb;   ///< [s, b] in their sequences
  at::Tensor first_key_bs;  ///< [b, s] the first row of the cache that each sees; undefined: 0

  /// Where s is 1.
  TokenPlaces of_one_token(std::int64_t length) const {
    return {position_sb.select(0, 0), first_key_bs.defined() ? first_key_bs.select(1, 0) : at::Tensor(), length};
  }
};

Places places(std::int64_t s, std::int64_t b, const KvCache& cache, at::Device device) {
  const auto row_sb = counted_positions(s, b, device).add(cache.length);
  if (!cache.padding.defined()) return {row_sb, {}};
  const auto padding = cache.padding.unsqueeze(0);
  // A row of padding sees itself, so that its (unused) softmax is over something.
  return {row_sb.sub(padding).clamp_min(0), at::minimum(row_sb, padding).t().to(at::kInt).contiguous()};
}

/// A cache as its readers see it. In memory the rows of one sequence's group lie one after another: they are read
/// together.
at::Tensor positions_first(const at::Tensor& x_bgsd) { return x_bgsd.permute({2, 0, 1, 3}); }

}  // namespace

void KvCache::keep(const at::Tensor& rows) {
  for (auto* tensors : {&keys, &values})
    for (at::Tensor& tensor : *tensors) tensor = positions_first(tensor.permute({1, 2, 0, 3}).index_select(0, rows));
  if (padding.defined()) padding = padding.index_select(0, rows);
}

struct CachedGpt::Impl {
  TransformerOptions options;
  plan::StagePart part;
  comm::Group tp;
  at::TensorOptions tensor;  ///< dtype and device of the parameters
  StageModules modules;

  Impl(TransformerOptions o, const plan::StagePart& p, const parallel::ParameterStore& parameters, comm::Group group)
      : options(o),
        part(p),
        tp(std::move(group)),
        tensor(parameters.values().options()),
        modules(options, part, parameters, tp) {
    if (!options.shape.causal || options.shape.encoder_decoder())
      throw std::logic_error("a cache of keys and values alone serves no encoder");
    if (options.sequence_parallel) throw std::logic_error("decoding is not sequence parallel: one token cannot divide");
  }

  /// Attention of the new tokens over the rows of the cache and over themselves, which are added to it.
  Attend attention(KvCache& cache, std::size_t layer, const Places& place) const;
  at::Tensor forward(const at::Tensor& in, KvCache& cache) const;
};

Attend CachedGpt::Impl::attention(KvCache& cache, std::size_t layer, const Places& place) const {
  const Rotary rotary{modules.rope, modules.rope.cos.defined() ? place.position_sb.t() : at::Tensor()};
  return [&cache, layer, &place, rotary, &branch = modules.blocks[layer].attention()](const at::Tensor& qkv) {
    const std::int64_t s = qkv.size(0), b = qkv.size(1), seen = cache.length + s;
    const Heads heads = heads_of(qkv, branch.groups, branch.head_size);
    rotary.rotate(heads);
    auto &keys = cache.keys[layer], &values = cache.values[layer];
    keys.narrow(0, cache.length, s).copy_(heads.k);
    values.narrow(0, cache.length, s).copy_(heads.v);
    const auto k = keys.narrow(0, 0, seen), v = values.narrow(0, 0, seen);
    const auto options = attention_options(
        std::get<plan::SelfAttention>(branch.spec.inner),
        {.begin = cache.length, .s = s, .b = b, .first_key_bs = place.first_key_bs, .device = qkv.device()});
    return Recomputable{kernels::attention(heads.q, k, v, options).out.view({s, b, -1}), {}};
  };
}

at::Tensor CachedGpt::Impl::forward(const at::Tensor& in, KvCache& cache) const {
  const std::int64_t s = in.size(part.embedding ? 1 : 0), b = in.size(part.embedding ? 0 : 1);
  if (cache.length + s > cache.capacity)
    throw std::logic_error(concat("a cache of ", cache.capacity, " rows cannot take ", cache.length, " + ", s));
  const auto place = places(s, b, cache, in.device());
  modules.check_positions(place.position_sb, s);
  const auto x = part.embedding ? modules.embed(in.t().contiguous(), place.position_sb) : in;
  const auto stream = takes_token(modules, x)
                          ? run_token(modules, tp, x, place.of_one_token(cache.length), cache.keys, cache.values)
                          : modules.run(x, [&](std::size_t layer) { return attention(cache, layer, place); });
  cache.length += s;
  return part.output ? modules.output->logits(modules.for_output(stream.y[s - 1])) : stream.residual;
}

CachedGpt::CachedGpt(TransformerOptions options, const plan::StagePart& part,
                     const parallel::ParameterStore& parameters, comm::Group tp)
    : impl_(std::make_unique<Impl>(options, part, parameters, std::move(tp))) {}
CachedGpt::CachedGpt(TransformerOptions options, const parallel::ParameterStore& parameters, comm::Group tp)
    : CachedGpt(options, plan::whole_model(options.shape.num_layers), parameters, std::move(tp)) {}
CachedGpt::~CachedGpt() = default;
CachedGpt::CachedGpt(CachedGpt&&) noexcept = default;

const TransformerOptions& CachedGpt::options() const { return impl_->options; }

KvCache CachedGpt::make_cache(std::int64_t batch, std::int64_t capacity) const {
  KvCache cache;
  cache.capacity = capacity;
  taking_memory_for(concat("keys and values of ", batch, " texts of ", capacity, " positions"), [&] {
    for (const Block& block : impl_->modules.blocks)
      for (auto* tensors : {&cache.keys, &cache.values})
        tensors->push_back(positions_first(
            at::empty({batch, block.attention().groups, capacity, block.attention().head_size}, impl_->tensor)));
  });
  return cache;
}

at::Tensor CachedGpt::forward(const at::Tensor& in, KvCache& cache) const {
  // Of one token, the operators that autograd would put around each view take as long as a tenth of the weights.
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return parallel::without_autograd([&] { return impl_->forward(in, cache); });
}

}  // namespace megatron::model
