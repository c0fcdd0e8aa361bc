#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/files/gguf.h"
#include "megatron/comm/agreement.h"
#include "megatron/comm/group.h"
#include "megatron/config/options.h"
#include "megatron/model/transformer_stage.h"
#include "megatron/parallel/context.h"
#include "megatron/parallel/parameter.h"
#include "megatron/plan/cost/memory_fit.h"
#include "megatron/plan/rules.h"
#include "megatron/recipe/forward.h"
#include "megatron/recipe/model_flags.h"
#include "megatron/text/tokenizer.h"

// A model that was trained somewhere, for the jobs that only compute forward with it.
namespace megatron::run {

using recipe::ModelFlags;

struct TrainedModel {
  std::string folder;  ///< of its weights; empty: load_rank() draws them
  plan::ResolvedRun run;
  text::Tokenizer tokenizer;
  std::vector<std::int64_t> ends;          ///< tokens that end a text
  std::optional<GgufType> in_blocks = {};  ///< what matrices are held as (families::kBlockTypes)
  bool without_heads = false;              ///< what follows an encoder's last norm may be missing
  std::vector<std::string> kept = {};      ///< folders of adapters beside the weights (kept_adapters.h)
  std::int64_t usual_adapter = 0;          ///< the one, by its number, of texts of which nothing else is said
  std::int64_t kept_bytes = 0;             ///< that they take on all ranks together
  bool keeps_copies = false;               ///< of weights, in the processor's order (check_memory())

  plan::Holding holding() const { return {plan::Holding::What::Weights, in_blocks, keeps_copies}; }
};

/// Throws ConfigError where the weights, the adapters and `besides` do not fit into this machine's memory, as
/// run::check_memory(). Where copies of the weights in the processor's order fit amply beside them, products keep these
/// from now on; else they make none, and take longer.
void check_memory(TrainedModel& model, plan::Besides besides = {});

/// Has products keep the copies of these weights that check_memory() has found room for, or none.
void keep_copies(const TrainedModel& model, const parallel::ParameterStore& parameters);

/// Reads what `flags` name, weights left out. Throws ConfigError that begins with `job` where nothing is named, and for
/// whatever is wrong with the folder or the layout. `writes`: what the job needs the model for.
TrainedModel open_trained_model(const ModelFlags& flags, const char* job,
                                recipe::Writes writes = recipe::Writes::Texts);

/// The model of a recipe, whose weights are drawn, on the ranks of `flags`, which name none: to measure what needs no
/// weights in particular. Throws as open_trained_model().
TrainedModel open_drawn_model(const ModelFlags& flags, const config::RunConfig& recipe, const char* job);

/// open_trained_model() of a BERT or GPT with the head of a task, or that lacks it: whether the weights have one the
/// caller asks. The run is for train::Engine, which keeps nothing for an optimizer.
TrainedModel open_task_model(const ModelFlags& flags, const char* job, const recipe::TaskModelOptions& task);

/// Throws ConfigError that begins with `job` where one of `ids` has no row in the model's embedding: a tokenizer may
/// have special tokens whose ids lie behind the last row.
void check_tokens(const TrainedModel& model, std::span<const std::int64_t> ids, const char* job);

/// What the ranks of a job that computes with `model` must have in common besides its recipe: the tokenizer, the
/// weights and the job's own options (config::fields_of its flags).
comm::Facts model_facts(const TrainedModel& model, const config::Fields& flags);

/// This rank's part of it, its weights read.
struct RankModel {
  parallel::ParallelContext context;
  plan::StageSpec part;
  parallel::ParameterStore parameters;
  model::TransformerOptions options;

  at::TensorOptions tensor() const { return parameters.values().options(); }
};

/// `positions`: as many as its texts will have at most. Collective over `world`.
RankModel load_rank(const TrainedModel& model, const comm::Group& world, at::Device device, std::int64_t positions);

}  // namespace megatron::run
