#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/kernels/activation.h"
#include "megatron/kernels/dropout.h"
#include "megatron/model/experts/expert_adapters.h"
#include "megatron/model/experts/routing.h"
#include "megatron/parallel/linear.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/layer.h"

namespace megatron::model {

/// What a pass over a microbatch asks of its routers.
struct RouterSite {
  /// What the auxiliary losses of each sequence are multiplied by where gradients begin, [b] float64: the tokens of it
  /// that count, as those bring the loss that is divided by their number at last, times the loss scale. Undefined:
  /// there are no auxiliary losses.
  at::Tensor sequence_weights_b = {};
  comm::Group sequence = {};  ///< the ranks that share each sequence
  double loss_scale = 1;      ///< that they include
  bool training = false;      ///< copies that exceed an expert's capacity are dropped, and routers' inputs jittered
  /// Where the jitter of this layer's input, a number of each element, is drawn (kernels::jitter_factors); and where in
  /// the sequence rows are.
  kernels::Dropout jitter = {};
  /// Where the logits of this layer are drawn in place of the router's own, a number of each token and expert; without
  /// samples they are not.
  kernels::Dropout logits = {};
  at::Tensor adapted_samples = {};  ///< Block::Sites::adapted_samples
};

/// What a layer's router did since it was asked last, of this rank's sequences: counted in backward passes, each
/// microbatch once.
struct RouterCounts {
  std::vector<double> loads;  ///< copies that chose each expert of the layer
  double dropped = 0;         ///< of these
  /// Auxiliary losses, balance and z: sums over sequences, times the tokens that count; 0 where neither has a
  /// coefficient. Counted by the first rank of tp.
  double balance = 0, z = 0;
};

/// A mixture of experts in place of an MLP, split by features over `tp`, its experts over the ranks of `ep`
/// (plan::Experts). Router and weights of experts are computed in float32 (float64 of float64). Every tensor-parallel
/// rank routes the whole sequence; rows of one expert are multiplied together, those of all experts of a rank in one
/// call.
///
///   x       [s, b, h], with sequence_parallel this rank's part of the sequence [s/t, b, h]
///   returns the same shape
///
/// Communication over tp: that of an MLP (parallel/linear.h). Over ep: an all-gather of counts and two all-to-alls
/// forward, of rows and results; backward five, of gradients of results and back, of weights and back, and of rows,
/// which are not kept but sent again. While those travel, the shared expert computes.
///
/// With Options::slices the experts are split by features over so many ranks of `ep`, whatever tp is, and a token's
/// copy goes to all slices of its expert. With sequence_parallel each tensor-parallel rank sends the tokens of its own
/// part of the sequence; what goes over tp is an all-gather of the router's logits forward, and what the shared expert
/// needs. Without it all ranks of tp have all tokens. Where the ranks of `ep` are among them nothing is sent: each
/// computes what its own experts give, of several copies of the experts each for a share of the tokens, and the sum
/// over tp adds that up. Where others are in `ep` each rank of tp sends them a share of the tokens. A token's share
/// follows from its experts alone, so that no other token changes a bit of what it gets.
class ExpertLayer {
 public:
  struct Options {
    kernels::Activation activation = kernels::Activation::Silu;
    bool sequence_parallel = false;
    bool recompute = false;  ///< nothing is kept but x: Block::Options::recompute_mlp
    /// Ranks of `ep`, neighbours, that have a slice each of the same experts. Where the size of `ep` divides that of tp
    /// it is one of the groups of so many neighbours that tp consists of (plan::RankRoles::expert_copy). 0: experts are
    /// split over `tp`, and each rank of `ep` has other ones.
    int slices = 0;
  };

  /// Finds its parameters by the names of plan::Branch::linears() behind `prefix`, the layer's.
  ExpertLayer(const parallel::ParameterStore& parameters, const std::string& prefix, const plan::Experts& experts,
              const Options& options, comm::Group tp, comm::Group ep);

  /// Finds the adapters of `layer`, its own description, by the names of plan::adapter_name(). `seed`: of what they
  /// drop. With dropout, and a part of the experts adapted, another all-to-all forward, of a number for each row.
  void adapt(const FindParameter& find, const plan::LayerSpec& layer, const plan::Lora& lora, std::uint64_t seed);

  /// Adapters beside the weights of a model that only computes forward.
  struct Kept {
    plan::Lora lora;
    FindParameter find;
  };
  /// From now on each sequence of a batch has the one of `kept` that it chose, number i + 1 at i. Between ranks of `ep`
  /// another all-to-all forward, of a number for each row.
  void keep(const std::vector<Kept>& kept, const plan::LayerSpec& layer,
            std::shared_ptr<const parallel::AdapterChoice> choice);

  /// `recompute_fn`: x again, so that it need not be kept; may be empty.
  at::Tensor forward(const at::Tensor& x, parallel::RecomputeFunction recompute_fn, const RouterSite& site,
                     parallel::Value value = parallel::Value::Needed) const;
  /// Returns what was counted since the last call, and resets it.
  RouterCounts take_counts() const;
  /// The most rows of which each gets the same bits whatever the others are, of each product; 0: none.
  std::int64_t most_few_rows() const;

 private:
  /// An MLP of each group of rows: the experts', or the shared one.
  struct Mlps {
    std::vector<parallel::ParameterPtr> fc1, fc2;
    std::vector<parallel::ParameterPtr> bias1 = {}, bias2 = {};  ///< empty: none; each rank of tp has bias2 whole
    bool gated = false;
    ExpertAdaptersPtr adapter1 = {}, adapter2 = {};  ///< of fc1, of fc2; null: none
    KeptExpertAdaptersPtr kept1 = {}, kept2 = {};    ///< beside fc1, fc2; null: none

    bool trains_first() const { return !fc1.front()->frozen() || adapter1; }
    bool trains_second() const { return !fc2.front()->frozen() || adapter2; }
    /// Contribute to the gradients of what is trained of a layer that gave rows x, of gradient dy. `ids`: of the rows.
    void write_first(const at::Tensor& dy, const at::Tensor& x, const std::vector<std::int64_t>& offsets,
                     const at::Tensor& ids) const;
    void write_second(const at::Tensor& dy, const at::Tensor& x, const std::vector<std::int64_t>& offsets,
                      const at::Tensor& ids) const;
  };
  struct Inner;
  struct Rows;
  struct WeightWork;
  class Backward;
  /// The adapters of the experts' two layers and of the shared one's, on this rank; null: none.
  struct AdaptersOfLayer {
    ExpertAdaptersPtr fc1, fc2, shared1, shared2;
  };

  Inner inner(const Rows& x, std::int64_t batch, const RouterSite& site, parallel::Value activations) const;
  void route(Inner& inner, const at::Tensor& x_rh, std::int64_t batch, const RouterSite& site) const;
  AdaptersOfLayer adapters_of(const FindParameter& find, const plan::LayerSpec& layer, const plan::Lora& lora,
                              std::uint64_t seed) const;
  at::Tensor first(const at::Tensor& x, const Mlps& mlps, const std::vector<std::int64_t>& offsets,
                   const at::Tensor& ids, const RowAdapters& kept, parallel::Value activations, at::Tensor& y) const;
  at::Tensor second(const at::Tensor& y, const Mlps& mlps, const std::vector<std::int64_t>& offsets,
                    const at::Tensor& ids, const RowAdapters& kept,
                    const std::vector<parallel::ParameterPtr>& biases) const;
  void choose_adapters(Inner& inner, const Rows& x, std::int64_t batch) const;
  Rows rows_of(const at::Tensor& part) const;
  at::Tensor summed(const at::Tensor& rows, std::int64_t batch) const;
  at::Tensor joined(const at::Tensor& own_rows, const at::Tensor& all_rows, std::int64_t batch) const;
  at::Tensor own(const at::Tensor& of_all) const;
  at::Tensor of_share(const at::Tensor& kept, const at::Tensor& experts, int shares, int share) const;
  Routes routes_of(const at::Tensor& kept, const at::Tensor& experts) const;
  at::Tensor places(const at::Tensor& experts) const;
  at::Tensor of_places(const at::Tensor& numbers) const;
  kernels::Dropout placed(kernels::Dropout place, std::int64_t positions) const;
  at::Tensor ids_of(const RouterSite& site, std::int64_t positions, const kernels::Dropout& place) const;
  at::Tensor numbered(const at::Tensor& ids, const std::vector<std::int64_t>& offsets) const;
  parallel::ParameterPtr trained() const;
  at::Tensor jitter(const at::Tensor& x_rh, std::int64_t batch, const RouterSite& site) const;
  at::Tensor drawn_logits(const at::Tensor& x_rh, std::int64_t batch, const RouterSite& site) const;
  std::vector<parallel::ParameterPtr> biases_of_sum() const;
  bool apart() const { return options_.slices > 0; }
  /// Whether it sends the rows of its own part of the sequence.
  bool sends_part() const { return apart() && options_.sequence_parallel; }
  /// Whether the ranks of `ep` have all rows: nothing is sent.
  bool within_tp() const { return apart() && !options_.sequence_parallel && tp_.size() % ep_.size() == 0; }
  std::int64_t local_experts() const { return spec_.count * std::max(1, options_.slices) / ep_.size(); }
  /// Ranks that split an expert, and this one's number among them.
  int slices() const { return apart() ? options_.slices : tp_.size(); }
  int slice() const { return apart() ? ep_.rank() % options_.slices : tp_.rank(); }
  std::int64_t first_expert() const { return ep_.rank() / std::max(1, options_.slices) * local_experts(); }

  plan::Experts spec_;
  Options options_;
  comm::Group tp_, ep_;
  parallel::ParameterPtr router_, router_bias_, bias_, shared_gate_;
  Mlps experts_, shared_;
  std::shared_ptr<const parallel::AdapterChoice> choice_;  ///< null: no adapters are kept
  struct Counted;
  std::shared_ptr<Counted> counted_;  ///< also of copies of the layer, which backward passes hold
};

}  // namespace megatron::model
