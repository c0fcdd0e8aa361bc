#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/optim/state_slice.h"
#include "megatron/optim/update_rule.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/parameters/matrices.h"
#include "megatron/plan/parameters/parameter_groups.h"
#include "megatron/plan/parameters/shards.h"
#include "megatron/plan/steps/learning_rate.h"

namespace megatron::optim {

struct OptimizerOptions {
  double weight_decay = 0.01;  ///< of steps whose LearningRates name no other
  bool decoupled = true;       ///< decay of the weights, not added to the gradient (L2)
  bool bf16_state = false;
  bool stochastic_rounding = false;  ///< of what is stored in 16 bits, else to nearest
  std::uint64_t seed = 0;            ///< of that rounding
  /// By parameter of the store. Empty: 1, and no decay where the spec has none.
  std::vector<plan::Multipliers> multipliers = {};
  // For rules that take whole matrices:
  std::vector<std::vector<plan::MatrixRows>> matrices = {};  ///< plan::matrices_of() of each parameter, or nothing
  comm::Group owners = {};         ///< the ranks that share the elements of a slice between them (plan::owners_of())
  comm::Group expert_owners = {};  ///< the same of weights of experts
  comm::Group slices = {};         ///< the tensor-parallel group
  comm::Group expert_slices = {};  ///< the same of weights of experts
};

/// What multiplies gradients.
struct GradScale {
  GradScale(double scale) : number(scale) {}                             // NOLINT(google-explicit-constructor)
  GradScale(at::Tensor known_there) : factor(std::move(known_there)) {}  // NOLINT(google-explicit-constructor)
  double number = 1;
  at::Tensor factor;  ///< in place of it where defined: kernels::Update::factor
};

/// Updates the weights that this rank owns from their gradients, in one pass over the contiguous buffers. Bf16 and fp16
/// parameters have float32 masters here, which begin as the values that were drawn, before rounding; the update changes
/// a master and rounds it into the parameter. Masters and state exist for the owned elements alone: all of the buffers
/// or, with the distributed optimizer, this rank's shards, one after the other. Keeps a reference to the store, which
/// must outlive it.
class Optimizer {
 public:
  /// `owned`: this rank's part of each bucket (plan/parameters/shards.h).
  Optimizer(const parallel::ParameterStore& parameters, std::vector<plan::Shard> owned,
            const config::OptimizerConfig& optimizer, OptimizerOptions options);

  /// Gradient x grad_scale, state, decay, update. The gradients of the owned elements are whole. Of a rule that takes
  /// whole matrices collective over `owners` and `slices`, which then sum each matrix of a layer in turn.
  /// A factor that is NaN changes nothing: who learns of it takes the step back from steps().
  void step(const plan::LearningRates& rates, const GradScale& grad_scale);
  /// Adds to the parameters so named what there is of them here: of what has no gradient. Before a step(), in which
  /// the model's values follow from masters. Each has as many numbers as its parameter elements.
  void shift(const std::map<std::string, std::vector<double>>& changes) const;
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  /// Where rounding is stochastic: writes the owned elements of the parameters as step number steps() did, which left
  /// the masters, and returns true. After masters and steps were filled from outside.
  bool round_masters();

  /// The weights that it updates, the masters where there are some: of a range of the store's buffers that lies in one
  /// owned shard. `own`: where it begins in the owned shards, laid one after the other. A view.
  at::Tensor weights_of(const plan::Range& world, std::int64_t own) const;
  /// Everything to keep of the owned elements, the weights first. Who fills masters from outside fills the parameters
  /// too, and calls round_masters().
  std::vector<StateSlice> state() const;
  /// The kinds of state that it keeps, besides the weights.
  const std::vector<std::string>& kinds() const { return kinds_; }
  /// What optimizer.name says.
  const std::string& name() const { return name_; }
  /// Whether the weights are apart from the parameters, which are roundings of them.
  bool has_masters() const { return masters_.defined(); }
  /// Bytes of masters and state.
  std::int64_t bytes() const;

 private:
  /// Neighbours with the same multipliers, in one shard. Padding between them holds zeros, which stay zeros.
  struct UniformRange {
    plan::Range world;  // in the store's buffers
    std::int64_t own;   // where it begins in masters and state
    plan::Multipliers multipliers;
    kernels::ElementNumbers numbers;
    /// Where it begins in each kind of state that it has.
    std::vector<std::pair<std::size_t, std::int64_t>> state;
    std::int64_t in_slice = 0;  ///< where it begins in the parameter's slice; of the first parameter
  };
  /// A matrix of a layer, and the owned parts of this rank's slice of it.
  struct Matrix {
    std::size_t parameter;
    std::vector<UniformRange> runs;
  };
  /// Where a parameter's owned range begins in a kind of state.
  struct Kept {
    std::size_t kind;
    int parameter;
    std::int64_t param_begin, begin, size;
  };
  void keep_state(const plan::Shard& shard, const plan::ParameterRange& range, const config::OptimizerInfo& info,
                  const config::OptimizerConfig& optimizer);
  void add_runs(const plan::Shard& shard, const plan::ParameterRange& range);
  UpdateRule::Views views_of(const UniformRange& run) const;
  kernels::Update update_of(const UniformRange& run, const plan::LearningRates& rates,
                            const GradScale& grad_scale) const;
  void step_matrix(const Matrix& matrix, const plan::LearningRates& rates, const GradScale& grad_scale) const;
  at::Tensor whole_direction(const Matrix& matrix, const GradScale& grad_scale) const;

  const parallel::ParameterStore& parameters_;
  std::vector<plan::Shard> owned_;
  std::string name_;
  std::vector<std::string> kinds_;
  std::unique_ptr<UpdateRule> rule_;
  OptimizerOptions options_;
  std::vector<UniformRange> runs_;
  std::vector<Matrix> matrices_;  ///< in the order of the store: every rank of a group has the same
  bool uniform_ = true;           ///< every element has the same kinds of state
  std::vector<Kept> kept_;
  std::vector<std::int64_t> sizes_;  ///< of state_
  at::Tensor masters_;               ///< flat; undefined where the parameters are float32 or float64
  std::vector<at::Tensor> state_;    ///< flat, in the order of kinds_
  std::int64_t steps_ = 0;
};

}  // namespace megatron::optim
