#pragma once
#include <map>
#include <string>
#include <vector>

#include "megatron/interchange/megatron_lm/dist/dcp_source.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/plan/stages.h"

// The state of Megatron-Core's distributed optimizer stored by buffer ("dp_reshardable"): each rank of tensor and
// pipeline parallelism has one-dimensional tensors, its buckets, in which the parameters of a stage follow one another.
// With expert parallelism experts are in buffers of a second optimizer, of each rank of expert parallelism too.
namespace megatron::interchange {

/// What Megatron-LM's run could have done, behind a rule that its state by buffer breaks.
inline constexpr const char* kAsSaved =
    " (dist_ckpt_optim_fully_reshardable of Megatron-LM's run saves it by parameter).";

/// What a run had that saved one.
struct BufferLayout {
  int tp = 1, pp = 1;
  int ep = 1, etp = 1;  ///< of experts: ranks that share them, and ranks that split each; etp counts where ep > 1
  std::vector<plan::StageSpec> stages = {};  ///< in model order; a pipeline rank has each pp-th
  bool fused_norms = false;      ///< norms were registered within the linear layers behind them (Transformer Engine)
  bool grouped_experts = false;  ///< first layers of all experts before all second ones (TEGroupedMLP)
};

/// Where the state `theirs` ("param", "exp_avg") of each parameter lies, by our names of the parameters. Parameters are
/// registered in the order of the model and laid out in the opposite one, each beginning at a multiple of 64; buckets
/// end with a parameter. Throws ConfigError where the buckets are not as long as that says, or of other optimizers.
std::map<std::string, DcpSource::TensorLocation> buffer_places(const DcpFolder& folder, const plan::ModelShape& shape,
                                                               const BufferLayout& layout, const std::string& theirs);

/// Whether the folder has state that is stored so.
bool has_buffers(const DcpFolder& folder);

}  // namespace megatron::interchange
