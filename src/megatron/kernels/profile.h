#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/timer.h"
#include "megatron/kernels/operators.h"

// What each operator (operators.def) of a rank takes, counted where the public functions take it from the table: it
// needs no tool of the system, and no rights.
namespace megatron::kernels {

/// Of all calls of one operator together.
struct OperatorUse {
  std::int64_t calls = 0;
  double seconds = 0;  ///< that the calling thread spent in them, its workers at its side
  double flops = 0;    ///< of matrix products; of attention with the keys that a query sees, padding among them
  double bytes = 0;    ///< the least that moves: each tensor that is read, and each that is written, once
};

/// While one lives, the operators that this thread calls are counted. At most one a thread. Operators on the CPU alone:
/// a GPU works on while their functions return.
class OperatorProfile {
 public:
  OperatorProfile();
  ~OperatorProfile();
  OperatorProfile(const OperatorProfile&) = delete;
  OperatorProfile& operator=(const OperatorProfile&) = delete;

  /// By operator; products by their weight's shape too: "linear 3072 x 768".
  const std::map<std::string, OperatorUse>& uses() const { return uses_; }
  void clear() { uses_.clear(); }
  void add(const std::string& name, const OperatorUse& call);

  /// The calling thread's; null where there is none, or an operator is being called: what calls others counts as one.
  static OperatorProfile* current();

 private:
  friend class ProfiledCall;
  std::map<std::string, OperatorUse> uses_;
  bool in_call_ = false;
};

/// One call: made before it, handed its arguments and what it returns, counted when it ends.
class ProfiledCall {
 public:
  ProfiledCall(OperatorProfile& profile, const char* name) : profile_(profile), name_(name) { profile.in_call_ = true; }
  ~ProfiledCall();
  ProfiledCall(const ProfiledCall&) = delete;
  ProfiledCall& operator=(const ProfiledCall&) = delete;

  template <class... Arguments>
  void arguments(Arguments&&... all) {  // nothing is taken out of them
    (take(all), ...);
    given_ = tensors_.size();
    watch_.emplace();
  }
  template <class Result>
  void result(const Result& result) {
    seconds_ = watch_->seconds();
    take(result);
  }

 private:
  void take(const at::Tensor& x) { tensors_.push_back(x); }
  void take(at::TensorList all) { tensors_.insert(tensors_.end(), all.begin(), all.end()); }
  void take(const AttentionOptions& options) { attention_ = options; }
  void take(const AttentionOutput& x) { tensors_.insert(tensors_.end(), {x.out, x.logsumexp}); }
  void take(const NormOutput& x) { tensors_.insert(tensors_.end(), {x.y, x.mean, x.rstd}); }
  void take(const AddNormOutput& x) { tensors_.insert(tensors_.end(), {x.sum, x.y, x.mean, x.rstd}); }
  void take(const AddNormGradients& x) { tensors_.insert(tensors_.end(), {x.weight, x.norm_bias, x.bias}); }
  void take(const AddNormInputGradients& x) { tensors_.insert(tensors_.end(), {x.residual, x.x}); }
  void take(const ActivatedOutput& x) { tensors_.insert(tensors_.end(), {x.u, x.y}); }
  void take(const WeightedGradient& x) { tensors_.insert(tensors_.end(), {x.du, x.y, x.weights}); }
  void take(const Groups& groups) { tensors_.insert(tensors_.end(), groups.weights.begin(), groups.weights.end()); }
  void take(const Fp8Scale& x) { tensors_.insert(tensors_.end(), {x.scale, x.inverse}); }
  void take(const Fp8Numbers& x) { tensors_.insert(tensors_.end(), {x.rows, x.turned}); }
  void take(const Fp8Matrices& x) {
    for (const Fp8Matrix& matrix : {x.rows, x.turned})
      tensors_.insert(tensors_.end(), {matrix.numbers, matrix.inverse});
  }
  void take(const SoftmaxPieces& x) { tensors_.insert(tensors_.end(), {x.max, x.sum_exp, x.target}); }
  template <class Other>
  void take(const Other&) {}

  OperatorProfile& profile_;
  std::string name_;
  std::vector<at::Tensor> tensors_;  // as they come among the arguments, undefined ones too; then those returned
  std::size_t given_ = 0;
  AttentionOptions attention_ = {};
  std::optional<Stopwatch> watch_;
  std::optional<double> seconds_;
};

}  // namespace megatron::kernels
