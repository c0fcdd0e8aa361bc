#include "megatron/model/decoding/score.h"

#include <stdexcept>
#include <utility>
#include <variant>

#include "megatron/kernels/attention.h"
#include "megatron/model/attention.h"
#include "megatron/model/stage_modules.h"
#include "megatron/parallel/backward.h"

namespace megatron::model {
namespace {

/// Attention of the positions from `first` on over all.
Attend attention_from(std::int64_t first, const StageModules& modules, const BranchModules& branch) {
  return [first, &modules, &branch](const at::Tensor& qkv) {
    const std::int64_t s = qkv.size(0), b = qkv.size(1);
    const Heads heads = heads_of(qkv, branch.groups, branch.head_size);
    Rotary{modules.rope_of(std::get<plan::SelfAttention>(branch.spec.inner)), {}}.rotate(heads);
    const auto q = heads.q.narrow(0, first, s - first);
    const auto options = attention_options(branch, {.begin = first, .s = s - first, .b = b, .device = qkv.device()});
    return Recomputable{kernels::attention(q, heads.k, heads.v, options).out.view({s - first, b, -1}), {}};
  };
}

}  // namespace

struct ScoringGpt::Impl {
  TransformerOptions options;
  plan::StageSpec part;
  StageModules modules;

  Impl(TransformerOptions o, const plan::StageSpec& p, const parallel::ParameterStore& parameters,
       const comm::Group& tp)
      : options(o), part(p), modules(options, part, parameters, tp) {
    if (options.sequence_parallel) throw std::logic_error("scoring is not sequence parallel: some rows do not divide");
  }

  /// Of the positions from `first` on in what the last block gives.
  Normed run(const at::Tensor& in, std::int64_t first) const;
};

Normed ScoringGpt::Impl::run(const at::Tensor& in, std::int64_t first) const {
  const std::int64_t s = in.size(part.embedding ? 1 : 0), b = in.size(part.embedding ? 0 : 1);
  modules.check_positions({}, s);
  auto x = part.embedding ? modules.embed(in.t().contiguous(), counted_positions(s, b, in.device())) : in;
  if (modules.blocks.empty()) x = x.narrow(0, first, s - first);
  return modules.run(x, [&](std::size_t block) {
    return attention_from(block + 1 == modules.blocks.size() ? first : 0, modules, modules.blocks[block].attention());
  });
}

ScoringGpt::ScoringGpt(TransformerOptions options, const plan::StageSpec& part,
                       const parallel::ParameterStore& parameters, comm::Group tp)
    : impl_(std::make_unique<Impl>(options, part, parameters, tp)) {}
ScoringGpt::~ScoringGpt() = default;
ScoringGpt::ScoringGpt(ScoringGpt&&) noexcept = default;

const TransformerOptions& ScoringGpt::options() const { return impl_->options; }

at::Tensor ScoringGpt::forward(const at::Tensor& in) const {
  if (impl_->part.output) throw std::logic_error("the last stage gives scores");
  return parallel::without_autograd([&] { return impl_->run(in, 0).residual.contiguous(); });
}

at::Tensor ScoringGpt::states(const at::Tensor& in) const {
  if (!impl_->part.output) throw std::logic_error("only the last stage has a norm behind it");
  return parallel::without_autograd([&] { return impl_->run(in, 0).y; });
}

parallel::VocabParallelOutput::TokenLosses ScoringGpt::score(const at::Tensor& in, const ScoredTokens& scored) const {
  if (!impl_->part.output) throw std::logic_error("only the last stage gives scores");
  return parallel::without_autograd([&] {
    const auto y = impl_->modules.for_output(impl_->run(in, scored.first).y);
    const auto rows = y.reshape({-1, y.size(-1)}).index_select(0, scored.rows);
    return impl_->modules.output->token_losses(rows, scored.labels, scored.likeliest);
  });
}

}  // namespace megatron::model
