#include "megatron/model/decoding/decode.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <variant>

#include "megatron/base/error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/matmul.h"
#include "megatron/model/attention.h"
#include "megatron/model/decoding/token_graph.h"
#include "megatron/model/decoding/token_step.h"
#include "megatron/model/latent_attention.h"
#include "megatron/model/stage_modules.h"
#include "megatron/parallel/backward.h"
#include "megatron/plan/cost/kv_cache.h"

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

bool has_latents(const BranchModules& branch) {
  return std::get<plan::SelfAttention>(branch.spec.inner).latents.has_value();
}

}  // namespace

void KvCache::keep(const at::Tensor& rows) {
  for (auto* tensors : {&keys, &values})
    for (at::Tensor& tensor : *tensors) tensor = positions_first(tensor.permute({1, 2, 0, 3}).index_select(0, rows));
  if (padding.defined()) padding = padding.index_select(0, rows);
}

std::int64_t PagedCache::capacity() const { return std::ssize(blocks) * plan::kCacheBlockTokens; }

struct CachedGpt::Impl {
  TransformerOptions options;
  plan::StageSpec part;
  comm::Group tp;
  at::TensorOptions tensor;  ///< dtype and device of the parameters
  StageModules modules;
  ModelEnds ends;  ///< of a whole model on one rank

  Impl(TransformerOptions o, const plan::StageSpec& p, const parallel::ParameterStore& parameters, comm::Group group)
      : options(o),
        part(p),
        tp(std::move(group)),
        tensor(parameters.values().options()),
        modules(options, part, parameters, tp) {
    if (!options.shape.causal || options.shape.encoder_decoder())
      throw std::logic_error("a cache of keys and values alone serves no encoder");
    if (options.sequence_parallel) throw std::logic_error("decoding is not sequence parallel: one token cannot divide");
    if (part.embedding && part.output && tp.size() == 1) ends = ends_of(options.shape, parameters);
  }

  plan::CacheWidths widths(const Block& block) const {
    return plan::cache_widths(std::get<plan::SelfAttention>(block.attention().spec.inner), tp.size());
  }
  /// Attention of the new tokens over the rows of the cache and over themselves, which are added to it.
  Attend attention(KvCache& cache, std::size_t layer, const Places& place) const;
  /// Attention of new tokens of each sequence over its own blocks, to which they are added.
  Attend attention_in_blocks(std::span<PagedCache* const> caches, std::size_t layer,
                             const at::Tensor& position_sb) const;
  /// The blocks on tokens that follow the cache's rows.
  Normed run(const at::Tensor& in, KvCache& cache) const;
  /// The blocks on `s` tokens that follow those of each sequence; one of each, or several of one.
  Normed run(const at::Tensor& in, std::int64_t s, std::span<PagedCache* const> caches) const;
  Normed run(const at::Tensor& in, PagedCache& cache) const;
  /// What a stage gives of the last token alone, and what of all of one sequence.
  at::Tensor last(const Normed& stream, at::Tensor* states) const;
  at::Tensor all(const Normed& stream, at::Tensor* states) const;
  /// Sequences that step() may take at once so that none has an influence on another.
  std::int64_t most_sequences() const;
  at::Tensor step(const at::Tensor& in, std::span<PagedCache* const> caches) const;
};

Attend CachedGpt::Impl::attention(KvCache& cache, std::size_t layer, const Places& place) const {
  const kernels::RopeTable& rope =
      modules.rope_of(std::get<plan::SelfAttention>(modules.blocks[layer].attention().spec.inner));
  const Rotary rotary{rope, rope.cos.defined() ? place.position_sb.t() : at::Tensor()};
  const BranchModules& branch = modules.blocks[layer].attention();
  Attend attend = [&cache, layer, &place, rotary, &branch](const at::Tensor& qkv) {
    const std::int64_t s = qkv.size(0), b = qkv.size(1), seen = cache.length + s;
    const Heads heads = heads_of(qkv, branch.groups, branch.head_size);
    rotary.rotate(heads);
    auto &keys = cache.keys[layer], &values = cache.values[layer];
    keys.narrow(0, cache.length, s).copy_(heads.k);
    values.narrow(0, cache.length, s).copy_(heads.v);
    const auto k = keys.narrow(0, 0, seen), v = values.narrow(0, 0, seen);
    const auto options = attention_options(
        branch, {.begin = cache.length, .s = s, .b = b, .first_key_bs = place.first_key_bs, .device = qkv.device()});
    return Recomputable{kernels::attention(heads.q, k, v, options).out.view({s, b, -1}), {}};
  };
  if (!has_latents(branch)) return attend;
  attend.latents = [&cache, layer, &place, rotary, &branch](const LatentInput& in) {
    const std::int64_t s = in.q.size(0), b = in.q.size(1);
    const LatentRows rows = latent_rows(in, branch, rotary.table, rotary.position_ids_bs);
    cache.keys[layer].narrow(0, cache.length, s).copy_(rows.keys);
    const auto seen = cache.keys[layer].narrow(0, 0, cache.length + s);
    const auto options = attention_options(
        branch, {.begin = cache.length, .s = s, .b = b, .first_key_bs = place.first_key_bs, .device = in.q.device()});
    return Recomputable{values_of_rows(kernels::attention(rows.queries, seen, seen, options).out, branch), {}};
  };
  return attend;
}

Normed CachedGpt::Impl::run(const at::Tensor& in, KvCache& cache) const {
  const std::int64_t s = in.size(part.embedding ? 1 : 0), b = in.size(part.embedding ? 0 : 1);
  if (cache.length + s > cache.capacity)
    throw std::logic_error(concat("a cache of ", cache.capacity, " rows cannot take ", cache.length, " + ", s));
  const auto place = places(s, b, cache, in.device());
  modules.check_positions(place.position_sb, s);
  const auto x = part.embedding ? modules.embed(in.t().contiguous(), place.position_sb) : in;
  auto stream = takes_token(modules, x)
                    ? run_token(modules, tp, x, place.of_one_token(cache.length), cache.keys, cache.values)
                    : modules.run(x, [&](std::size_t layer) { return attention(cache, layer, place); });
  cache.length += s;
  return stream;
}

at::Tensor CachedGpt::Impl::last(const Normed& stream, at::Tensor* states) const {
  if (states != nullptr && part.output) *states = stream.y;
  return part.output ? modules.output->logits(modules.for_output(stream.y[stream.y.size(0) - 1])) : stream.residual;
}

at::Tensor CachedGpt::Impl::all(const Normed& stream, at::Tensor* states) const {
  if (!part.output) return stream.residual;
  if (states != nullptr) *states = stream.y;
  const auto y = modules.for_output(stream.y.select(1, 0));
  const std::int64_t s = y.size(0);
  const auto of_last = modules.output->logits(y.narrow(0, s - 1, 1));  // of one row, as last() computes it
  return s == 1 ? of_last : at::cat({modules.output->logits(y.narrow(0, 0, s - 1)), of_last});
}

namespace {

/// Keys or values [s, g, d] of the tokens that come after those of a sequence, into its blocks of `pool`.
void write_rows(const at::Tensor& pool, const PagedCache& cache, const at::Tensor& rows_sgd) {
  const std::int64_t s = rows_sgd.size(0), size = pool.size(1);
  for (std::int64_t row = 0, count = 0; row < s; row += count) {
    const std::int64_t at = cache.length + row, first = at % size;
    count = std::min(size - first, s - row);
    pool.select(0, cache.blocks[static_cast<std::size_t>(at / size)])
        .narrow(0, first, count)
        .copy_(rows_sgd.narrow(0, row, count));
  }
}

/// Queries [s, 1, …] of the tokens of a sequence that its blocks of `keys` and `values` have had written last.
at::Tensor attended(const at::Tensor& q, const PagedCache& cache, const at::Tensor& keys, const at::Tensor& values,
                    const BranchModules& branch) {
  const std::int64_t s = q.size(0), seen = cache.length + s, used = (seen + keys.size(1) - 1) / keys.size(1);
  const auto blocks = at::tensor(at::ArrayRef(cache.blocks.data(), static_cast<std::size_t>(used)), at::kLong);
  const auto options = attention_options(branch, {.begin = cache.length, .s = s, .b = 1, .device = q.device()});
  return kernels::attention_over_blocks(q, keys, values, blocks.to(q.device()), seen, options).out;
}

}  // namespace

Attend CachedGpt::Impl::attention_in_blocks(std::span<PagedCache* const> caches, std::size_t layer,
                                            const at::Tensor& position_sb) const {
  const BranchModules& branch = modules.blocks[layer].attention();
  const kernels::RopeTable& rope = modules.rope_of(std::get<plan::SelfAttention>(branch.spec.inner));
  const Rotary rotary{rope, rope.cos.defined() ? position_sb.t() : at::Tensor()};
  // Each sequence by itself, so that what it gets has the same bits whatever sequences are beside it.
  const auto of_each = [caches](const auto& of_one) {
    std::vector<at::Tensor> outs;
    for (std::size_t i = 0; i < caches.size(); ++i) outs.push_back(of_one(*caches[i], static_cast<std::int64_t>(i)));
    return Recomputable{outs.size() == 1 ? outs.front() : at::cat(outs, 1), {}};
  };
  Attend attend = [of_each, layer, rotary, &branch](const at::Tensor& qkv) {
    const Heads heads = heads_of(qkv, branch.groups, branch.head_size);
    rotary.rotate(heads);
    return of_each([&](const PagedCache& cache, std::int64_t i) {
      const auto &keys = cache.pool->keys[layer], &values = cache.pool->values[layer];
      write_rows(keys, cache, heads.k.select(1, i));
      write_rows(values, cache, heads.v.select(1, i));
      return attended(heads.q.narrow(1, i, 1), cache, keys, values, branch).view({qkv.size(0), 1, -1});
    });
  };
  if (!has_latents(branch)) return attend;
  attend.latents = [of_each, layer, rotary, &branch](const LatentInput& in) {
    return of_each([&](const PagedCache& cache, std::int64_t i) {
      const auto position = rotary.table.cos.defined() ? rotary.position_ids_bs.narrow(0, i, 1) : at::Tensor();
      const LatentRows rows =
          latent_rows({.q = in.q.narrow(1, i, 1), .latent = in.latent.narrow(1, i, 1), .key = in.key.narrow(1, i, 1)},
                      branch, rotary.table, position, i);
      const at::Tensor& keys = cache.pool->keys[layer];
      write_rows(keys, cache, rows.keys.select(1, 0));
      return values_of_rows(attended(rows.queries, cache, keys, keys, branch), branch, i);
    });
  };
  return attend;
}

Normed CachedGpt::Impl::run(const at::Tensor& in, std::int64_t s, std::span<PagedCache* const> caches) const {
  std::vector<std::int64_t> lengths, adapters;
  for (const PagedCache* cache : caches) {
    if (cache->length + s > cache->capacity())
      throw std::logic_error(concat("blocks of ", cache->capacity(), " tokens cannot take ", cache->length, " + ", s));
    lengths.push_back(cache->length);
    adapters.push_back(cache->adapter);
  }
  const parallel::AdapterChoice::Batch batch(options.kept ? options.kept->choice.get() : nullptr, adapters);
  const auto position_sb = counted_positions(s, std::ssize(caches), in.device())
                               .add(at::tensor(lengths, at::kLong).to(in.device()).unsqueeze(0));
  modules.check_positions(position_sb, s);
  const auto x = part.embedding ? modules.embed(in, position_sb) : in;
  auto stream =
      takes_token(modules, x)
          ? run_token_of_each(modules, tp, x, position_sb.select(0, 0), caches)
          : modules.run(x, [&](std::size_t layer) { return attention_in_blocks(caches, layer, position_sb); });
  for (PagedCache* cache : caches) cache->length += s;
  return stream;
}

Normed CachedGpt::Impl::run(const at::Tensor& in, PagedCache& cache) const {
  PagedCache* const one = &cache;
  return run(part.embedding ? in.t().contiguous() : in, in.size(part.embedding ? 1 : 0), {&one, 1});
}

std::int64_t CachedGpt::Impl::most_sequences() const {
  std::int64_t most = std::int64_t{1} << 30;
  for (const Block& block : modules.blocks)
    for (const BranchModules& branch : block.branches()) {
      if (branch.experts) {
        if (const std::int64_t rows = branch.experts->most_few_rows(); rows > 0) most = std::min(most, rows);
        continue;
      }
      std::vector<parallel::ParameterPtr> weights{branch.out.weight()};
      for (const parallel::ColumnParallelLinear& linear : branch.in) weights.push_back(linear.weight());
      for (const auto& weight : weights)
        if (const std::int64_t rows = kernels::most_few_rows(weight->value, &weight->packed); rows > 0)
          most = std::min(most, rows);
    }
  return most;
}

at::Tensor CachedGpt::Impl::step(const at::Tensor& in, std::span<PagedCache* const> caches) const {
  return last(run(part.embedding ? in.unsqueeze(0) : in, 1, caches), nullptr);
}

CachedGpt::CachedGpt(TransformerOptions options, const plan::StageSpec& part,
                     const parallel::ParameterStore& parameters, comm::Group tp)
    : impl_(std::make_unique<Impl>(options, part, parameters, std::move(tp))) {}
CachedGpt::CachedGpt(TransformerOptions options, const parallel::ParameterStore& parameters, comm::Group tp)
    : CachedGpt(options, plan::whole_model(options.shape.num_layers), parameters, std::move(tp)) {}
CachedGpt::~CachedGpt() = default;
CachedGpt::CachedGpt(CachedGpt&&) noexcept = default;

const TransformerOptions& CachedGpt::options() const { return impl_->options; }
at::Device CachedGpt::device() const { return impl_->tensor.device(); }

KvCache CachedGpt::make_cache(std::int64_t batch, std::int64_t capacity) const {
  KvCache cache;
  cache.capacity = capacity;
  taking_memory_for(concat("keys and values of ", batch, " texts of ", capacity, " positions"), [&] {
    for (const Block& block : impl_->modules.blocks) {
      const plan::CacheWidths widths = impl_->widths(block);
      for (auto [tensors, width] : {std::pair(&cache.keys, widths.key), std::pair(&cache.values, widths.value)})
        tensors->push_back(positions_first(at::empty({batch, widths.heads, capacity, width}, impl_->tensor)));
    }
  });
  return cache;
}

KvPool CachedGpt::make_pool(std::int64_t blocks) const {
  KvPool pool;
  taking_memory_for(concat("keys and values of ", blocks * plan::kCacheBlockTokens, " positions"), [&] {
    for (const Block& block : impl_->modules.blocks) {
      const plan::CacheWidths widths = impl_->widths(block);
      for (auto [tensors, width] : {std::pair(&pool.keys, widths.key), std::pair(&pool.values, widths.value)})
        tensors->push_back(
            at::empty({blocks, widths.heads, plan::kCacheBlockTokens, width}, impl_->tensor).transpose(1, 2));
    }
  });
  return pool;
}

namespace {

// Of one token, the operators that autograd would put around each view take as long as a tenth of the weights.
template <class Compute>
auto plainly(const Compute& compute) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return parallel::without_autograd(compute);
}

}  // namespace

at::Tensor CachedGpt::forward(const at::Tensor& in, KvCache& cache, at::Tensor* states) const {
  return plainly([&] { return impl_->last(impl_->run(in, cache), states); });
}

at::Tensor CachedGpt::forward(const at::Tensor& in, PagedCache& cache) const {
  return plainly([&] { return impl_->last(impl_->run(in, cache), nullptr); });
}

at::Tensor CachedGpt::forward_all(const at::Tensor& in, KvCache& cache, at::Tensor* states) const {
  return plainly([&] { return impl_->all(impl_->run(in, cache), states); });
}

at::Tensor CachedGpt::forward_all(const at::Tensor& in, PagedCache& cache) const {
  return plainly([&] { return impl_->all(impl_->run(in, cache), nullptr); });
}

at::Tensor CachedGpt::step(const at::Tensor& in, std::span<PagedCache* const> caches) const {
  return plainly([&] {
    const std::int64_t dim = impl_->part.embedding ? 0 : 1, b = in.size(dim);
    const std::int64_t most = impl_->most_sequences();
    if (b <= most) return impl_->step(in, caches);
    std::vector<at::Tensor> parts;
    for (std::int64_t i = 0; i < b; i += most) {
      const std::int64_t count = std::min(most, b - i);
      parts.push_back(impl_->step(in.narrow(dim, i, count),
                                  caches.subspan(static_cast<std::size_t>(i), static_cast<std::size_t>(count))));
    }
    return at::cat(parts, impl_->part.output ? 0 : 1);
  });
}

std::unique_ptr<TokenGraph> CachedGpt::token_graph(KvCache& cache) const {
  if (impl_->options.kept) return nullptr;
  return plainly([&] { return TokenGraph::of(impl_->options, impl_->modules, impl_->ends, cache); });
}

}  // namespace megatron::model
