#include "megatron/parallel/embedding.h"

#include <ATen/ops/logical_or.h>
#include <ATen/ops/nonzero.h>

#include <utility>

#include "megatron/base/error.h"
#include "megatron/kernels/embedding.h"
#include "megatron/kernels/quantized/blocks.h"
#include "megatron/parallel/backward.h"

namespace megatron::parallel {
namespace {

void check_ids(const at::Tensor& ids_sb, std::int64_t num_ids, const std::string& name) {
  const auto outside = at::logical_or(ids_sb.lt(0), ids_sb.ge(num_ids));
  if (!outside.any().item<bool>()) return;
  const auto first = at::nonzero(outside)[0];
  const auto position = first[0].item<std::int64_t>(), sample = first[1].item<std::int64_t>();
  throw ConfigError(rule_got_fix(concat("each ", name, " must be one of 0 … ", num_ids - 1),
                                 concat(name, " ", ids_sb[position][sample].item<std::int64_t>(), " at position ",
                                        position, " of sample ", sample, " of the microbatch")));
}

}  // namespace

VocabParallelEmbedding::VocabParallelEmbedding(ParameterPtr weight, std::int64_t num_ids, std::string name,
                                               comm::Group tp, Options options)
    : weight_(std::move(weight)), num_ids_(num_ids), name_(std::move(name)) {
  const bool split = !weight_->spec.replicated();
  if (options.sequence_parallel)
    (split ? scatter_ : positions_) = std::move(tp);
  else if (split)
    sum_ = std::move(tp);
}

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& ids_sb, const at::Tensor& host) const {
  check_ids(host.defined() ? host : ids_sb, num_ids_, name_);
  const std::int64_t begin = weight_->spec.begin();
  const std::int64_t num_own = ids_sb.size(0) / positions_.size();
  const auto ids = ids_sb.narrow(0, num_own * positions_.rank(), num_own);
  const auto y = without_autograd([&] {
    const kernels::QuantizedMatrix* const blocks = weight_->packed.quantized();
    auto rows = blocks != nullptr ? kernels::embedding(ids, *blocks, begin, weight_->value.scalar_type())
                                  : kernels::embedding(ids, weight_->arrived(), begin);
    sum_.all_reduce(rows);
    return scatter_.reduce_scatter(rows);
  });
  auto backward = [ids, begin, weight = weight_,
                   scatter = scatter_](const std::vector<at::Tensor>& grads) -> std::vector<at::Tensor> {
    const auto dy = scatter.all_gather(grads[0].contiguous());
    Contribution rows(weight);
    if (rows.beta() == 0) rows.target().zero_();  // only some rows are added to
    kernels::embedding_backward(rows.target(), ids, dy, begin);
    rows.written();
    return {};
  };
  return with_backward({weight_->value}, y, std::move(backward));
}

}  // namespace megatron::parallel
