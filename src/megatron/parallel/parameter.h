#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megatron/base/files/gguf.h"
#include "megatron/comm/group.h"
#include "megatron/kernels/matmul.h"
#include "megatron/plan/parameters/buffer_layout.h"
#include "megatron/plan/parameters/gradient_pool.h"
#include "megatron/plan/parameters/parameter_pool.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/parameters/shards.h"

namespace megatron::parallel {

/// Weight gradients that backward passes hand over instead of computing them: a schedule that splits backward puts them
/// off until a rank would be idle (Qi et al. 2023). A piece holds what it needs: the layer's input, or how to make it
/// again, and the gradient of its output.
class GradientQueue {
 public:
  using Work = std::function<void()>;

  /// From now on: whether pieces wait (true) or are computed as they come, as at first.
  void defer(bool on) { deferring_ = on; }
  bool deferring() const { return deferring_; }
  void add(Work work);
  /// The pieces that wait, in the order in which they came.
  std::vector<Work> take() { return std::exchange(waiting_, {}); }

 private:
  bool deferring_ = false;
  std::vector<Work> waiting_;
};
/// Computes pieces in order and lets go of each one's tensors as soon as it is done.
void run_pieces(std::vector<GradientQueue::Work> pieces);

/// Values that are on their way from other ranks: with the distributed optimizer a bucket of parameters is gathered
/// while the next forward pass runs, and the first module that reads one of them waits for it.
class Arrival {
 public:
  /// Called when a value is about to be read. `alone`: the operator that reads it reads no others but those of its
  /// layer.
  using Need = std::function<void(bool alone)>;

  void expect(comm::WorkHandle work) { work_ = std::move(work); }
  /// Who gathers values when they are read is asked from now on (ZeRO stage 3).
  void on_read(Need need) { need_ = std::move(need); }
  void wait(bool alone = true) {
    if (need_) need_(alone);
    if (work_) std::exchange(work_, nullptr)->wait();
  }

 private:
  comm::WorkHandle work_;
  Need need_;
};

/// One parameter on this rank: views of the contiguous buffers, and the bookkeeping of its gradient. Layers hold a
/// shared pointer to it; their backward passes write the gradient themselves (no autograd accumulation).
class Parameter {
 public:
  plan::ParameterSpec spec;
  at::Tensor value;  ///< [local_shape], requires_grad: a leaf, so that autograd reaches the layer's backward. Read it
                     ///< by arrived()
  at::Tensor grad;   ///< [local_shape], view of the gradient buffer; written by way of a Contribution
  std::shared_ptr<GradientQueue> queue;  ///< its store's; null outside of one
  std::shared_ptr<Arrival> arrival;      ///< its bucket's; null outside of a store
  bool pooled = false;                   ///< its gradient is in a plan::GradientPool
  /// The type of `packed`'s blocks, where that alone has the values and `value` is NaN of their shape, without memory.
  std::optional<GgufType> in_blocks;

  /// Whether it is not trained: then it has no gradient, and backward passes write none.
  bool frozen() const { return !grad.defined(); }

  /// The value, for whoever reads it: waits for it where it is on its way, and has it gathered where it is not there.
  /// With ZeRO stage 3 it is there until an operator asks for one of another layer. Operators on the boundary of two
  /// layers read vectors of both, a bias and a norm; those that read a matrix read their own layer's alone.
  const at::Tensor& arrived() const {
    if (arrival) arrival->wait(/*alone=*/spec.shape.size() > 1);
    return value;
  }

  kernels::PackedWeight packed;  ///< of `value`, for the products that read it

  std::int64_t value_bytes() const;  ///< that the values take

  /// A backward pass hands over what writes a contribution: done now or, where the queue defers, when that is run. So
  /// `write` asks beta() itself.
  void contribute(GradientQueue::Work write);
  /// Whether contribute() would put `write` off.
  bool deferring() const { return queue && queue->deferring(); }
  /// 0 for the first contribution since clear_gradient() (overwrite: nothing has to be zeroed), 1 afterwards.
  double beta() const { return contributions_ == 0 ? 0.0 : 1.0; }
  /// `grad`, for a backward pass that is about to write a contribution: beside it in a pool nothing is in use.
  const at::Tensor& gradient_to_write() const {
    if (before_ && contributions_ == 0) before_();
    return grad;
  }
  /// A backward pass calls this after each contribution it has written.
  void gradient_written();
  void clear_gradient() { contributions_ = 0; }
  int contributions() const { return contributions_; }
  /// Who reduces gradients is called before the first contribution since clear_gradient(), and after each. Null: no
  /// more.
  void watch(std::function<void()> before, std::function<void()> after);

 private:
  int contributions_ = 0;
  std::function<void()> before_, after_;
};
using ParameterPtr = std::shared_ptr<Parameter>;

/// A contribution to one parameter's gradient that a backward pass computes now. Where the rest of that pass is put
/// off and the gradient is in a pool, it is kept and added with the rest: a bucket is then in the pool for one
/// operation, not from one to a later one.
class Contribution {
 public:
  enum class When : std::uint8_t { Now, WithTheRest };
  /// `parameter` may be null: then there is nothing to write.
  explicit Contribution(ParameterPtr parameter, When when = When::Now);

  /// [local_shape], to be written, or by beta() added to; of a frozen parameter memory that nobody reads.
  const at::Tensor& target() const { return target_; }
  double beta() const { return kept_ || !parameter_ ? 0 : parameter_->beta(); }
  void written();
  /// Writes `gradient` [local_shape], or by beta() adds it, in any dtype.
  void write(const at::Tensor& gradient);

 private:
  ParameterPtr parameter_;
  bool kept_ = false;
  at::Tensor target_;
};

/// What parameters and their gradients are stored in. Gradients are sums over microbatches and ranks, so those of bf16
/// and fp16 parameters are float32 unless asked otherwise.
struct Precision {
  at::ScalarType values, gradients;

  // NOLINTNEXTLINE(google-explicit-constructor): a dtype is a precision
  Precision(at::ScalarType both) : values(both), gradients(is_half(both) ? at::kFloat : both) {}
  Precision(at::ScalarType v, at::ScalarType g) : values(v), gradients(g) {}

  static bool is_half(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }
};

/// How gradients are held with ZeRO stages 2 and 3: whole buckets take turns in `pool`, and what this rank owns of each
/// is summed in memory of its own. `owned`: plan::shards().
struct PooledGradients {
  plan::GradientPool pool;
  std::vector<plan::Shard> owned;
};

/// How values are held with ZeRO stage 3: this rank's shards, and whole buckets that take turns in `pool`.
struct PooledValues {
  plan::ParameterPool pool;
  std::vector<plan::Shard> owned;
};

/// All parameters of this rank in one contiguous buffer (plan::BufferLayout), their gradients in another, laid out
/// alike; or of either this rank's shards and a pool in which whole buckets take turns.
class ParameterStore {
 public:
  enum class Gradients { Hold, None };

  /// Values are drawn from (seed, name, index in the full tensor): equal in every layout, no communication; in bf16 and
  /// fp16 the float32 values rounded. With Gradients::None the parameters need no gradient and have none: for models
  /// that only compute forward. `pooled`, `pooled_values`: how gradients and values take turns; nothing: each is whole.
  ParameterStore(std::vector<plan::ParameterSpec> specs, plan::BufferLayout layout, Precision precision,
                 at::Device device, std::uint64_t seed, Gradients gradients = Gradients::Hold,
                 std::optional<PooledGradients> pooled = std::nullopt,
                 std::optional<PooledValues> pooled_values = std::nullopt);

  /// Adds a parameter whose values are not in the buffer but, once they are read, in fewer bits in `packed`: a matrix
  /// of whole blocks (plan/parameters/blocks.h), for models that only compute forward on the CPU.
  void add_in_blocks(plan::ParameterSpec spec, GgufType type);
  /// From now on get() also finds the parameters of `frozen`, a store with Gradients::None: the weights of a model
  /// whose adapters are in this one.
  void add_frozen(std::shared_ptr<const ParameterStore> frozen) { frozen_ = std::move(frozen); }
  const std::shared_ptr<const ParameterStore>& frozen() const { return frozen_; }  ///< may be null

  const ParameterPtr& get(const std::string& name) const;  ///< throws std::out_of_range naming the parameter
  const std::vector<ParameterPtr>& all() const { return parameters_; }  ///< in the order of the specs
  const plan::BufferLayout& layout() const { return layout_; }
  /// Flat [layout.size], once all of them are there. Throws std::logic_error where they take turns.
  const at::Tensor& values() const;
  void await_values() const;          ///< those that are on their way, where they do not take turns
  at::TensorOptions options() const;  ///< dtype and device of the values
  at::ScalarType dtype() const { return values_.scalar_type(); }
  std::int64_t value_bytes() const;  ///< of the buffers that hold values, in this store
  /// Where values take turns, else nothing.
  const std::optional<PooledValues>& pooled_values() const { return pooled_values_; }
  /// The place in the pool of a bucket whose values take turns, flat, with the gaps.
  const at::Tensor& bucket_values(std::size_t bucket) const { return bucket_values_.at(bucket); }
  /// Values of elements that this rank owns: flat, a view. `world`: a range of the layout within one bucket and, where
  /// they take turns, within this rank's shard.
  at::Tensor owned_values(const plan::Range& world) const;
  /// Where the values of the parameter at `index` of all() are to be read into, [local_shape]; then keep() takes what
  /// was read. The parameter itself or, where values take turns, memory of its own, of which keep() takes what this
  /// rank owns.
  at::Tensor to_fill(std::size_t index) const;
  void keep(std::size_t index, const at::Tensor& filled) const;
  const at::Tensor& gradients() const { return gradients_; }  ///< flat [layout.size], or the pool
  const std::optional<PooledGradients>& pooled() const { return pooled_; }
  /// Of a bucket of the layout, whole: flat, with the gaps.
  at::Tensor bucket_gradients(std::size_t bucket) const;
  /// Once they are summed over ranks, the gradients of elements that this rank owns: flat. `world`: a range of the
  /// layout within one bucket and, where they are pooled, within this rank's shard.
  at::Tensor summed_gradients(const plan::Range& world) const;
  std::int64_t gradient_bytes() const { return static_cast<std::int64_t>(gradients_.nbytes() + sums_.nbytes()); }
  GradientQueue& gradient_queue() const { return *queue_; }
  /// Of the values in a bucket of the layout.
  Arrival& arrival(std::size_t bucket) const { return *arrivals_.at(bucket); }
  /// The values that the parameter at `index` of all() was drawn as, in float32 (float64 for float64): [local_shape].
  at::Tensor first_values(std::size_t index) const;

 private:
  plan::BufferLayout layout_;
  std::uint64_t seed_;
  std::optional<PooledGradients> pooled_;
  std::optional<PooledValues> pooled_values_;
  std::shared_ptr<const ParameterStore> frozen_;
  at::Tensor values_, gradients_;          ///< of the values all, or the pool
  at::Tensor owned_values_;                ///< of the shards, one after the other, where values take turns
  std::vector<at::Tensor> bucket_values_;  ///< by bucket, each with a version of its own, where values take turns
  at::Tensor sums_;  ///< of the shards, one after the other, where gradients are pooled; else empty
  std::vector<std::shared_ptr<Arrival>> arrivals_;  ///< by bucket
  std::shared_ptr<GradientQueue> queue_ = std::make_shared<GradientQueue>();
  std::vector<ParameterPtr> parameters_;
  std::unordered_map<std::string, ParameterPtr> by_name_;
};

}  // namespace megatron::parallel
