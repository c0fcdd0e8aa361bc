#include "megatron/comm/group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"

namespace megatron::comm {
namespace {

/// The handle of a collective that had nothing to do.
class Nothing final : public Work {
 public:
  void wait() override {}
};

WorkHandle nothing() {
  static const WorkHandle done = std::make_shared<Nothing>();  // stateless, hence shared
  return done;
}

std::string describe(const at::Tensor& t) {
  return concat(c10::toString(t.scalar_type()), " ", t.sizes(), t.is_contiguous() ? "" : ", not contiguous");
}

const at::Tensor& contiguous(const char* name, const at::Tensor& t) {
  if (!t.defined() || !t.is_contiguous())
    throw std::invalid_argument(rule_got_fix(concat(name, " works in place on a contiguous tensor."),
                                             t.defined() ? describe(t) : "an undefined tensor",
                                             "pass x.contiguous() and copy the result back"));
  return t;
}

void require(bool holds, const std::string& rule, const std::string& got) {
  if (!holds) throw std::invalid_argument(rule_got_fix(rule, got));
}

/// `whole` holds `n` times what `part` holds.
void require_n_parts(const char* name, const at::Tensor& whole, const at::Tensor& part, int n) {
  require(whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * n,
          concat(name, ": one tensor must hold ", n, " parts of the other's size and dtype."),
          describe(whole) + " and " + describe(part));
}

void require_peer(const char* name, int peer, const Group& group) {
  require(peer >= 0 && peer < group.size() && (peer != group.rank() || group.size() == 1),
          concat(name, ": the peer must be another rank of the group."),
          concat("rank ", peer, " seen from rank ", group.rank(), " of ", group.size()));
}

void require_root(int root, int size) {
  require(root >= 0 && root < size, "broadcast: the root must be a rank of the group.", concat(root, " of ", size));
}

}  // namespace

WorkHandle Group::all_reduce_async(const at::Tensor& inout, ReduceOp op) const {
  return size() == 1 ? nothing() : backend_->all_reduce(contiguous("all_reduce", inout), op);
}

void Group::all_reduce(const at::Tensor& inout, ReduceOp op) const { all_reduce_async(inout, op)->wait(); }

WorkHandle Group::all_gather_async(const at::Tensor& out, const at::Tensor& local) const {
  require_n_parts("all_gather", contiguous("all_gather", out), contiguous("all_gather", local), size());
  if (size() > 1) return backend_->all_gather(out, local);
  const c10::NoGradGuard no_grad;
  out.view(-1).copy_(local.view(-1));
  return nothing();
}

at::Tensor Group::all_gather(const at::Tensor& local, std::int64_t dim) const {
  if (size() == 1) return local;
  const c10::NoGradGuard no_grad;
  const at::Tensor part = (local.dim() == 0 ? local.view(1) : local).contiguous();
  std::vector<std::int64_t> shape(part.sizes().begin(), part.sizes().end());
  if (dim < 0) dim += part.dim();
  require(dim >= 0 && dim < part.dim(), "all_gather: dim must be a dimension of the tensor.",
          concat("dim ", dim, " of ", describe(local)));
  if (dim == 0) {
    shape[0] *= size();
    at::Tensor out = at::empty(shape, part.options());
    all_gather_async(out, part)->wait();
    return out;
  }
  shape.insert(shape.begin(), size());
  at::Tensor out = at::empty(shape, part.options());
  all_gather_async(out, part)->wait();
  return at::cat(out.unbind(0), dim);
}

WorkHandle Group::reduce_scatter_async(const at::Tensor& out, const at::Tensor& full, ReduceOp op) const {
  require_n_parts("reduce_scatter", contiguous("reduce_scatter", full), contiguous("reduce_scatter", out), size());
  if (size() > 1) return backend_->reduce_scatter(out, full, op);
  const c10::NoGradGuard no_grad;
  out.view(-1).copy_(full.view(-1));
  return nothing();
}

at::Tensor Group::reduce_scatter(const at::Tensor& full, std::int64_t dim, ReduceOp op) const {
  if (size() == 1) return full;
  const c10::NoGradGuard no_grad;
  if (dim < 0) dim += full.dim();
  require(dim >= 0 && dim < full.dim() && full.size(dim) % size() == 0,
          concat("reduce_scatter: the size of the dimension must divide by the ", size(), " ranks."),
          concat("dimension ", dim, " of ", describe(full)));
  std::vector<std::int64_t> shape(full.sizes().begin(), full.sizes().end());
  shape[static_cast<std::size_t>(dim)] /= size();
  const at::Tensor in = dim == 0 ? full.contiguous() : at::cat(full.chunk(size(), dim), 0);
  at::Tensor out = at::empty(shape, full.options());
  reduce_scatter_async(out, in, op)->wait();
  return out;
}

WorkHandle Group::broadcast_async(const at::Tensor& inout, int root) const {
  require_root(root, size());
  return size() == 1 ? nothing() : backend_->broadcast(contiguous("broadcast", inout), root);
}

void Group::broadcast(const at::Tensor& inout, int root) const { broadcast_async(inout, root)->wait(); }

WorkHandle Group::all_to_all_async(const at::Tensor& out, const at::Tensor& in) const {
  require_n_parts("all_to_all", contiguous("all_to_all", out), contiguous("all_to_all", in), 1);
  require(in.dim() > 0 && in.size(0) % size() == 0,
          concat("all_to_all: dimension 0 must divide by the ", size(), " ranks."), describe(in));
  if (size() > 1) return backend_->all_to_all(out, in);
  const c10::NoGradGuard no_grad;
  out.view(-1).copy_(in.view(-1));
  return nothing();
}

at::Tensor Group::all_to_all(const at::Tensor& in) const {
  if (size() == 1) return in;
  const c10::NoGradGuard no_grad;
  at::Tensor out = at::empty_like(in, in.options(), at::MemoryFormat::Contiguous);
  all_to_all_async(out, in.contiguous())->wait();
  return out;
}

WorkHandle Group::send_async(const at::Tensor& tensor, int destination, int tag) const {
  require(size() > 1, "send: a group of one has nobody to send to.", "size 1");
  require_peer("send", destination, *this);
  return backend_->send(contiguous("send", tensor), destination, tag);
}

void Group::send(const at::Tensor& tensor, int destination, int tag) const {
  send_async(tensor, destination, tag)->wait();
}

WorkHandle Group::recv_async(const at::Tensor& tensor, int source, int tag) const {
  require(size() > 1, "recv: a group of one has nobody to receive from.", "size 1");
  require_peer("recv", source, *this);
  return backend_->recv(contiguous("recv", tensor), source, tag);
}

void Group::recv(const at::Tensor& tensor, int source, int tag) const { recv_async(tensor, source, tag)->wait(); }

void Group::barrier() const {
  if (size() > 1) backend_->barrier()->wait();
}

std::vector<double> Group::all_reduce_scalars(std::vector<double> values, ReduceOp op) const {
  if (size() == 1 || values.empty()) return values;
  const auto count = static_cast<std::int64_t>(values.size());
  const at::Tensor mine = at::from_blob(values.data(), {1, count}, at::kDouble);
  const at::Tensor all = all_gather(mine.to(backend_->device())).cpu();
  const double* part = all.const_data_ptr<double>();
  std::vector<double> result(part, part + count);
  for (int r = 1; r < size(); ++r) {
    part += count;
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (op == ReduceOp::Sum) {
        result[i] += part[i];
      } else if (part[i] > result[i] || std::isnan(part[i])) {
        result[i] = part[i];
      }
    }
  }
  return result;
}

Group Group::split(const std::vector<std::vector<int>>& partition) const {
  std::vector<int> times_named(static_cast<std::size_t>(size()), 0);
  bool fits = true;
  for (const auto& ranks : partition) {
    fits = fits && !ranks.empty() && std::is_sorted(ranks.begin(), ranks.end());
    for (const int r : ranks) {
      if (r < 0 || r >= size()) {
        fits = false;
      } else {
        ++times_named[static_cast<std::size_t>(r)];
      }
    }
  }
  fits = fits && std::all_of(times_named.begin(), times_named.end(), [](int n) { return n == 1; });
  require(fits, concat("split: the sets must be ascending and name each of the ", size(), " ranks once."),
          concat(partition.size(), " sets"));
  Group mine;
  for (const auto& ranks : partition) {
    if (ranks.size() == 1) continue;  // the group of one talks to nobody
    if (auto backend = backend_->split(ranks)) mine = Group(std::move(backend));
  }
  return mine;
}

void Group::abort(const std::string& reason) const {
  if (backend_) backend_->abort(reason);
}

}  // namespace megatron::comm
