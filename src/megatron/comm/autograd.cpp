#include "megatron/comm/autograd.h"

#include <torch/csrc/autograd/custom_function.h>

#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron::comm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Carries a group from forward to backward inside the autograd graph.
struct SavedGroup final : torch::CustomClassHolder {
  explicit SavedGroup(Group g) : group(std::move(g)) {}
  Group group;
};

void save(AutogradContext* ctx, const Group& group, std::int64_t dim = 0) {
  ctx->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<SavedGroup>(group));
  ctx->saved_data["dim"] = dim;
}

const Group& saved_group(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<SavedGroup>(ctx->saved_data["group"].toCapsule())->group;
}

std::int64_t saved_dim(AutogradContext* ctx) { return ctx->saved_data["dim"].toInt(); }

/// The sum over ranks in a new tensor: `x` may be shared with other readers.
at::Tensor reduced_copy(const at::Tensor& x, const Group& group) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(sum);
  return sum;
}

at::Tensor own_part(const at::Tensor& x, const Group& group, std::int64_t dim) {
  const std::int64_t part = x.size(dim) / group.size();
  return x.narrow(dim, part * group.rank(), part).contiguous();
}

struct CopyToGroup : torch::autograd::Function<CopyToGroup> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Group& group) {
    save(ctx, group);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    return {reduced_copy(dy[0], saved_group(ctx)), {}};
  }
};

struct ReduceFromGroup : torch::autograd::Function<ReduceFromGroup> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const Group& group) {
    return reduced_copy(x, group);
  }
  static variable_list backward(AutogradContext*, variable_list dy) { return {dy[0], {}}; }
};

struct GatherFromGroup : torch::autograd::Function<GatherFromGroup> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Group& group, std::int64_t dim) {
    save(ctx, group, dim);
    return group.all_gather(x, dim);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    return {own_part(dy[0], saved_group(ctx), saved_dim(ctx)), {}, {}};
  }
};

struct ScatterToGroup : torch::autograd::Function<ScatterToGroup> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Group& group, std::int64_t dim) {
    save(ctx, group, dim);
    return own_part(x, group, dim);
  }
  static variable_list backward(AutogradContext* ctx, variable_list dy) {
    return {saved_group(ctx).all_gather(dy[0], saved_dim(ctx)), {}, {}};
  }
};

std::int64_t dimension_of(const at::Tensor& x, std::int64_t dim) {
  const std::int64_t d = dim < 0 ? dim + x.dim() : dim;
  if (d < 0 || d >= x.dim())
    throw std::invalid_argument(rule_got_fix("gather, scatter: dim must be a dimension of the tensor.",
                                             concat("dim ", dim, " of ", x.sizes())));
  return d;
}

}  // namespace

at::Tensor copy_to_group(const at::Tensor& x, const Group& group) {
  return group.size() == 1 ? x : CopyToGroup::apply(x, group);
}

at::Tensor reduce_from_group(const at::Tensor& x, const Group& group) {
  return group.size() == 1 ? x : ReduceFromGroup::apply(x, group);
}

at::Tensor gather_from_group(const at::Tensor& x, const Group& group, std::int64_t dim) {
  return group.size() == 1 ? x : GatherFromGroup::apply(x, group, dimension_of(x, dim));
}

at::Tensor scatter_to_group(const at::Tensor& x, const Group& group, std::int64_t dim) {
  if (group.size() == 1) return x;
  dim = dimension_of(x, dim);
  if (x.size(dim) % group.size() != 0)
    throw std::invalid_argument(
        rule_got_fix(concat("scatter: the dimension must divide by the ", group.size(), " ranks."),
                     concat("dimension ", dim, " of ", x.sizes())));
  return ScatterToGroup::apply(x, group, dim);
}

}  // namespace megatron::comm
