#pragma once
#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "megatron/plan/rules.h"

// What a rank holds, and what the stages of a pipeline cost.
namespace megatron::plan {

/// Bytes that one layer keeps for the backward pass of one microbatch on each tensor-parallel rank, as model/ holds
/// them: the stream before both norms with their statistics, q, k, v, the attention's output and its logsumexp, and
/// what the MLP's first product gives (of a gated one both halves). Outputs of norms and, with train.recompute_gelu, of
/// the activation are computed again; dropout masks too. `config` is resolved; train.recompute full is not considered
/// here, parallel.cp is: a rank has its share of the tokens. Cross attention keeps the same, and of the encoder's
/// tokens their keys and values; norms of queries and keys keep these as they were before; adapters with magnitudes
/// the norms of their rows. `partial`: of a microbatch that recomputes in part, and so none of train.recompute_modules.
std::int64_t layer_activation_bytes(const config::RunConfig& config, const LayerSpec& layer, bool partial = false);

/// By layer of a stage: whether backward computes it again as a whole (recomputation.h). `partial`: of a microbatch
/// that train.recompute_partial_microbatches counts (schedule::Op::partial).
std::vector<bool> layers_again(const config::TrainConfig& train, const ModelShape& shape, const StageSpec& part,
                               bool partial);

/// Bytes that a stage keeps for one microbatch from its forward until its backward, train.recompute considered.
std::int64_t stage_activation_bytes(const config::RunConfig& config, const ModelShape& shape, const StageSpec& part,
                                    bool partial = false);

/// The most bytes of a group of layers while backward goes through it again (train.recompute full), besides what the
/// stage keeps.
std::int64_t recomputed_bytes(const config::RunConfig& config, const ModelShape& shape, const StageSpec& part,
                              bool partial = false);

/// What the ops of each stage cost: time as 10^12 floating-point operations of one of the ranks that share a layer and
/// its tokens (tp x cp), and bytes of activations; messages take no time. The output layer's backward is computed in
/// its forward (parallel/output_layer.h). The embedding multiplies nothing: each byte that it moves counts as 16
/// operations, about what processors compute in the time in which memory brings a byte.
schedule::Costs stage_costs(const config::RunConfig& config, const ModelShape& shape,
                            const std::vector<StageSpec>& parts);

/// For balanced_layers(): the sums of stage_costs() over forward and backward, each layer's with those of
/// train.recompute. Which layers of a stage the method block recomputes depends on the split: all count with its share
/// in a stage of ceil(num_layers / num_stages) layers.
SplitCosts split_costs(const config::RunConfig& config, const ModelShape& shape, int num_stages);

/// Tokens whose logits a rank holds at once: train.loss_chunk_tokens, or what it is where that is 0. A GPU wants more
/// of them in a product than a cache holds.
std::int64_t loss_chunk_tokens(const config::RunConfig& config);

/// Whether a rank keeps copies of weights in the order of AMX or AVX512_BF16 (kernels/matmul.h): on the CPU, with bf16,
/// or for AMX float32 and train.matmul_precision high. `processor`: the instruction set that train.kernels auto takes
/// on the processors of the ranks, as kernels::instruction_set() gives it there; "" for one without either.
bool packs_weights(const config::RunConfig& config, std::string_view processor);

/// Tokens of a microbatch on one rank from which on weights are packed while products read them, and training keeps no
/// copy but of experts' (kernels::kRowsPackedWhileRead). The loss keeps none of the output layer's; what heads of a row
/// for each sequence keep is not counted.
inline constexpr std::int64_t kTokensPackedWhileRead = 256;

/// Bytes of these copies: of every matrix that products have as right operand one for the output and one for the
/// gradient of the input, each in blocks of 32 x 32; an element is one bf16 number, of float32 two.
/// Parameters of depth 0 are not counted.
std::int64_t packed_weight_bytes(const config::TrainConfig& train, const std::vector<ParameterSpec>& specs);

/// At most so many bytes the copies of a rank take that only computes forward and keeps one of each matrix
/// (kernels::WeightCopies::All). 0: not packs_weights().
std::int64_t forward_copy_bytes(const ResolvedRun& run, int tp_rank, int pp_rank, std::string_view processor);

/// The most bytes that a product of float32 on AMX packs an operand into; larger products are cut
/// (kernels/tile_matmul.h, set_most_packed_words()).
inline constexpr std::int64_t kMostPackedOperandBytes = std::int64_t{24} << 20;

/// At most so many bytes both operands of a layer's product take, packed, of that which packs the most, of those that
/// AMX computes as six of bf16 (kernels::on_tiles()): x [tokens, in] with W [out, in], and both products of backward.
/// 0: all are too small. Of few rows the right one is packed a chunk at a time, in scratch, which is not counted.
std::int64_t packed_operand_bytes(std::int64_t tokens, std::int64_t out, std::int64_t in);

/// Numbers that a rank with these parameters has in place of parameters of norms: zeros that a LayerNorm without biases
/// adds, ones that norms of queries and keys without weights multiply by.
std::int64_t constants_of_norms(const ModelShape& shape, const std::vector<ParameterSpec>& specs);

/// Bytes that one rank holds during a step, by kind. All but `activations` and `logits` are exact; those two are the
/// tensors that forward keeps for backward, without the workspace of single operators. Not counted either, where
/// gradients take turns and a schedule splits backward: gradients of norms and biases that wait for the weights'
/// (parallel::Contribution), some ten rows of the hidden width a layer and microbatch that is put off.
struct MemoryPlan {
  std::int64_t parameters = 0;  ///< and constants_of_norms()
  std::int64_t gradients = 0;
  std::int64_t optimizer_state = 0;  ///< masters and moments of what the rank updates; scales of fp8
  std::int64_t packed_weights = 0;   ///< where packs_weights(); of other float32 on AMX packed_operand_bytes()
  std::int64_t activations = 0;      ///< at their peak, by simulation of the schedule
  std::int64_t logits = 0;           ///< of the tokens whose logits are held at once, where the output layer is
  std::int64_t teacher = 0;          ///< teacher_bytes() (cost/fit/teacher.h)
  std::int64_t total() const {
    return parameters + gradients + optimizer_state + packed_weights + activations + logits + teacher;
  }
};

/// What a simulated or measured program says of a pipeline rank's activations.
struct RankActivations {
  double peak_bytes = 0;
  std::set<int> partial_stages = {};  ///< schedule::partial_stages()

  RankActivations(double bytes) : peak_bytes(bytes) {}  // NOLINT(google-explicit-constructor): all there is of most
  RankActivations(const schedule::Timeline& timeline, int pp_rank);
};

/// What the rank at `tp_rank` and `pp_rank` holds. `activations`: of that pipeline rank, as schedule::simulate() gives
/// them for the run's program with stage_costs(). `processor`: packs_weights().
MemoryPlan memory_plan(const ResolvedRun& run, int tp_rank, int pp_rank, const RankActivations& activations,
                       std::string_view processor = {});

/// What the rank holds that holds most. Simulates the run's program.
MemoryPlan largest_memory(const ResolvedRun& run, std::string_view processor = {});

}  // namespace megatron::plan
