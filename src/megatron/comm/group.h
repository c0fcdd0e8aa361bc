#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace megatron::comm {

/// A rank is gone or late: the message names the collective, the ranks that did not arrive and the time waited.
struct PeerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class ReduceOp : std::uint8_t { Sum, Max };

/// A collective under way. `wait()` returns when its result may be read and its inputs may be written; it throws
/// PeerError. Destroying a handle waits too; where an exception does it, the group gives up instead and ends with it.
class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;
};
using WorkHandle = std::shared_ptr<Work>;

/// What a transport must provide; one implementation per transport (local, Gloo, NCCL). Tensors are contiguous.
/// Every rank of the group calls the same collectives in the same order with equal shapes and dtypes.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  ///< "local", "gloo", "nccl", "counting(local)", …
  /// Where the tensors of its collectives live.
  virtual at::Device device() const { return at::Device(at::kCPU); }
  virtual WorkHandle all_reduce(at::Tensor inout, ReduceOp op) = 0;
  /// out = the concatenation along dimension 0 of every rank's `in`.
  virtual WorkHandle all_gather(at::Tensor out, at::Tensor in) = 0;
  /// out = this rank's equal part along dimension 0 of the reduced `in`.
  virtual WorkHandle reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) = 0;
  virtual WorkHandle broadcast(at::Tensor inout, int root) = 0;
  /// Part r of `in` along dimension 0 goes to rank r; part r of `out` comes from rank r. Equal parts.
  virtual WorkHandle all_to_all(at::Tensor out, at::Tensor in) = 0;
  /// A message meets the recv of the same source, destination and tag, in order. NCCL knows no tags: where it may
  /// serve, receive what one rank sends in the order in which it is sent. A send may last until its recv has been
  /// posted.
  virtual WorkHandle send(at::Tensor tensor, int destination, int tag) = 0;
  virtual WorkHandle recv(at::Tensor tensor, int source, int tag) = 0;
  virtual WorkHandle barrier() = 0;
  /// A backend over the subset `ranks` of this group (ranks of this group, ascending), or nullptr on ranks outside it.
  /// Collective over the whole group.
  virtual std::shared_ptr<Backend> split(const std::vector<int>& ranks) = 0;
  /// This rank gives up: peers waiting for it, now or later, get PeerError naming it and `reason`.
  virtual void abort(const std::string& reason) = 0;
};

/// Value handle to a set of ranks. Copy it freely. On a group of size 1 every collective is the identity, so callers
/// never write `if (size > 1)`. The blocking calls wait; the `_async` calls return a handle (never null).
class Group {
 public:
  Group() = default;  ///< the group of one
  explicit Group(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}

  int rank() const { return backend_ ? backend_->rank() : 0; }
  int size() const { return backend_ ? backend_->size() : 1; }

  void all_reduce(const at::Tensor& inout, ReduceOp op = ReduceOp::Sum) const;
  WorkHandle all_reduce_async(const at::Tensor& inout, ReduceOp op = ReduceOp::Sum) const;
  /// Concatenation along `dim` of every rank's `local`, in rank order.
  at::Tensor all_gather(const at::Tensor& local, std::int64_t dim = 0) const;
  WorkHandle all_gather_async(const at::Tensor& out, const at::Tensor& local) const;
  /// This rank's part along `dim` (whose size divides by size()) of the sum over ranks.
  at::Tensor reduce_scatter(const at::Tensor& full, std::int64_t dim = 0, ReduceOp op = ReduceOp::Sum) const;
  WorkHandle reduce_scatter_async(const at::Tensor& out, const at::Tensor& full, ReduceOp op = ReduceOp::Sum) const;
  void broadcast(const at::Tensor& inout, int root) const;
  WorkHandle broadcast_async(const at::Tensor& inout, int root) const;
  at::Tensor all_to_all(const at::Tensor& in) const;
  WorkHandle all_to_all_async(const at::Tensor& out, const at::Tensor& in) const;
  void send(const at::Tensor& tensor, int destination, int tag = 0) const;
  WorkHandle send_async(const at::Tensor& tensor, int destination, int tag = 0) const;
  void recv(const at::Tensor& tensor, int source, int tag = 0) const;
  WorkHandle recv_async(const at::Tensor& tensor, int source, int tag = 0) const;
  void barrier() const;

  /// Scalars, summed in double in rank order on every backend.
  std::vector<double> all_reduce_scalars(std::vector<double> values, ReduceOp op = ReduceOp::Sum) const;

  /// The group of `ranks` (ranks of this group, ascending, containing this one). Collective over this whole group:
  /// every rank calls it, each naming the set it belongs to; sets partition the group.
  Group split(const std::vector<std::vector<int>>& partition) const;

  void abort(const std::string& reason) const;
  const std::shared_ptr<Backend>& backend() const { return backend_; }

 private:
  std::shared_ptr<Backend> backend_;
};

}  // namespace megatron::comm
