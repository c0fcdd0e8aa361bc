#include "megatron/model/decoding/draft.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <variant>

#include "megatron/base/machine/out_of_memory.h"
#include "megatron/kernels/attention.h"
#include "megatron/model/attention.h"
#include "megatron/model/latent_attention.h"
#include "megatron/model/stage_modules.h"
#include "megatron/parallel/backward.h"
#include "megatron/plan/cost/kv_cache.h"

namespace megatron::model {
namespace {

/// Keys and values of a depth's layer, [capacity, 1, heads, width] (plan::CacheWidths), with the rows of one head one
/// after another.
struct DepthCache {
  at::Tensor keys, values;
  std::int64_t length = 0;  ///< rows that read known tokens

  DepthCache(const Block& block, std::int64_t capacity, const at::TensorOptions& options) {
    const auto& spec = std::get<plan::SelfAttention>(block.attention().spec.inner);
    const plan::CacheWidths widths = plan::cache_widths(spec, block.tp().size());
    for (auto [x, width] : {std::pair(&keys, widths.key), std::pair(&values, widths.value)})
      *x = at::empty({1, widths.heads, capacity, width}, options).permute({2, 0, 1, 3});
  }
};

}  // namespace

struct Drafter::Impl {
  TransformerOptions options;
  comm::Group tp;
  at::TensorOptions tensor;
  StageModules modules;
  std::vector<DepthCache> caches;
  std::vector<at::Tensor> states;  ///< [capacity, 1, h] that each depth reads: the model's, then those before it

  Impl(TransformerOptions o, const plan::StageSpec& part, const parallel::ParameterStore& parameters, comm::Group group)
      : options(o),
        tp(std::move(group)),
        tensor(parameters.values().options()),
        modules(options, part, parameters, tp) {
    if (modules.depths.empty()) throw std::logic_error("a model without depths of prediction drafts nothing");
    if (options.sequence_parallel) throw std::logic_error("decoding is not sequence parallel: one token cannot divide");
  }

  Attend attention(const Block& block, DepthCache& cache) const;
  /// Depth k on rows [caches[k].length, known), which read `ahead` -> its states behind its norm [s, 1, h].
  at::Tensor run(std::size_t k, std::int64_t known, const std::vector<std::int64_t>& ahead);
};

Attend Drafter::Impl::attention(const Block& block, DepthCache& cache) const {
  const BranchModules& branch = block.attention();
  const auto& spec = std::get<plan::SelfAttention>(branch.spec.inner);
  const kernels::RopeTable& rope = modules.rope_of(spec);
  const auto positions = [&cache, &rope](const at::Tensor& x) {
    const std::int64_t begin = cache.length;
    if (!rope.cos.defined()) return at::Tensor();
    return at::arange(begin, begin + x.size(0), x.options().dtype(at::kLong)).unsqueeze(0);
  };
  const auto asked_of = [&cache, &branch](const at::Tensor& x) {
    return attention_options(branch, {.begin = cache.length, .s = x.size(0), .b = 1, .device = x.device()});
  };
  Attend attend = [&cache, &rope, &branch, positions, asked_of](const at::Tensor& qkv) {
    const std::int64_t s = qkv.size(0), begin = cache.length;
    const Heads heads = heads_of(qkv, branch.groups, branch.head_size);
    Rotary{rope, positions(qkv)}.rotate(heads);
    cache.keys.narrow(0, begin, s).copy_(heads.k);
    cache.values.narrow(0, begin, s).copy_(heads.v);
    return Recomputable{kernels::attention(heads.q, cache.keys.narrow(0, 0, begin + s),
                                           cache.values.narrow(0, 0, begin + s), asked_of(qkv))
                            .out.view({s, 1, -1}),
                        {}};
  };
  if (!spec.latents) return attend;
  attend.latents = [&cache, &rope, &branch, positions, asked_of](const LatentInput& in) {
    const std::int64_t s = in.q.size(0), begin = cache.length;
    const LatentRows rows = latent_rows(in, branch, rope, positions(in.q));
    cache.keys.narrow(0, begin, s).copy_(rows.keys);
    const auto seen = cache.keys.narrow(0, 0, begin + s);
    const at::Tensor out = kernels::attention(rows.queries, seen, seen, asked_of(in.q)).out;
    return Recomputable{values_of_rows(out, branch), {}};
  };
  return attend;
}

at::Tensor Drafter::Impl::run(std::size_t k, std::int64_t known, const std::vector<std::int64_t>& ahead) {
  const PredictionModules& depth = modules.depths[k];
  const std::int64_t begin = caches[k].length, s = known - begin;
  modules.check_positions(at::arange(begin, known), s);
  const auto tokens_s1 = at::tensor(ahead, at::kLong).to(tensor.device()).unsqueeze(1);
  const auto ahead_of_rows = static_cast<std::int64_t>(k) + 1;
  const auto places = at::arange(begin + ahead_of_rows, known + ahead_of_rows, tokens_s1.options()).unsqueeze(1);
  const auto x = depth.input(states[k].narrow(0, begin, s), modules.embed(tokens_s1, places));
  return depth.block
      .forward(normalized(x, depth.block.input_norm()), attention(depth.block, caches[k]), {}, &depth.final_norm)
      .y;
}

Drafter::Drafter(TransformerOptions options, const plan::StageSpec& part, const parallel::ParameterStore& parameters,
                 comm::Group tp)
    : impl_(std::make_unique<Impl>(std::move(options), part, parameters, std::move(tp))) {}
Drafter::~Drafter() = default;
Drafter::Drafter(Drafter&&) noexcept = default;

std::int64_t Drafter::depths() const { return static_cast<std::int64_t>(impl_->modules.depths.size()); }

void Drafter::begin(std::int64_t capacity) {
  taking_memory_for("keys, values and states of multi-token prediction", [&] {
    impl_->caches.clear();
    impl_->states.clear();
    for (const PredictionModules& depth : impl_->modules.depths) {
      impl_->caches.emplace_back(depth.block, capacity, impl_->tensor);
      impl_->states.push_back(at::empty({capacity, 1, impl_->options.shape.hidden}, impl_->tensor));
    }
  });
}

void Drafter::see(const at::Tensor& states, std::int64_t first) {
  impl_->states.front().narrow(0, first, states.size(0)).copy_(states);
}

std::vector<std::int64_t> Drafter::draft(std::span<const std::int64_t> tokens, std::int64_t count) {
  // The last token is number `known`; each depth goes through the rows before it that it has not read with what is
  // known now, and the last row says what comes next. Rows that have read drafts are read again.
  const auto known = static_cast<std::int64_t>(tokens.size()) - 1;
  std::vector<std::int64_t> text(tokens.begin(), tokens.end());
  parallel::without_autograd([&] {
    for (std::int64_t k = 0; k < count; ++k) {
      const auto depth = static_cast<std::size_t>(k);
      DepthCache& cache = impl_->caches.at(depth);
      const auto begin = text.begin() + cache.length + k + 1;
      const at::Tensor y = impl_->run(depth, known, {begin, text.begin() + known + k + 1});
      if (depth + 1 < impl_->states.size()) impl_->states[depth + 1].narrow(0, cache.length, y.size(0)).copy_(y);
      cache.length = std::max<std::int64_t>(0, known - k);
      const auto logits = impl_->modules.output->logits(impl_->modules.for_output(y[y.size(0) - 1]));
      text.push_back(logits[0].argmax().item<std::int64_t>());
    }
    return 0;
  });
  return {text.begin() + known + 1, text.end()};
}

}  // namespace megatron::model
