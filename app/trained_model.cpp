#include "app/trained_model.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/generate/load.h"
#include "megatron/interchange/companions.h"
#include "megatron/interchange/hf_config.h"
#include "megatron/interchange/import.h"
#include "megatron/interchange/weights.h"
#include "megatron/model/options.h"
#include "megatron/train/engine.h"

namespace megatron::app {
namespace {

/// The tokenizer beside the weights, else where a run's recipe says.
text::Tokenizer tokenizer_of(const std::string& folder, const config::RunConfig& recipe, const char* job) {
  const auto place = interchange::companion_folder(folder);
  if (!place.empty()) return text::Tokenizer::load(place);
  if (recipe.data.tokenizer.empty())
    throw ConfigError(rule_got_fix(concat(job, ": the model must have its tokenizer."),
                                   concat("none in ", folder, " nor in a recipe"), "--tokenizer DIR"));
  return text::Tokenizer::load(recipe.data.tokenizer, recipe.data.tokenizer_type);
}

/// What a folder says of its model, weights left out.
struct Described {
  config::RunConfig config;   ///< the network and its rows; what else a recipe says belongs to training
  text::Tokenizer tokenizer;  ///< the one asked for, or the folder's
  bool trained_here;
};

void check_flags(const ModelFlags& flags, const char* job) {
  if (flags.load.empty())
    throw ConfigError(rule_got_fix(concat(job, ": --load must name a trained model."), "none", "--load runs/default"));
  for (const auto& [name, size] : {std::pair{"tp", flags.tp}, {"pp", flags.pp}, {"dp", flags.dp}})
    if (size < 1 || size > 65536)
      throw ConfigError(rule_got_fix(concat(job, ": --", name, " must be 1 or above."), concat(size)));
}

Described describe(const ModelFlags& flags, const char* job) {
  const bool trained_here = interchange::kind_of(flags.load) == interchange::FolderKind::Native;
  config::RunConfig config, recipe;
  if (trained_here) {
    recipe = checkpoint::saved_recipe(flags.load);
    config.model = recipe.model;
    config.train.dtype = recipe.train.dtype;
    config.data.seq_length = recipe.data.seq_length;
  } else {
    config.model = interchange::model_config_of(flags.load);
    // Of samples, which such a folder has none of; a text here may fill all positions.
    if (config.model.max_position_embeddings > 0)
      config.data.seq_length = std::min(config.data.seq_length, config.model.max_position_embeddings);
  }
  auto tokenizer =
      flags.tokenizer.empty() ? tokenizer_of(flags.load, recipe, job) : text::Tokenizer::load(flags.tokenizer);
  return {std::move(config), std::move(tokenizer), trained_here};
}

/// On the ranks asked for here. What computes forward alone sets its microbatch before.
plan::ResolvedRun resolve(const ModelFlags& flags, config::RunConfig config, const text::Tokenizer& tokenizer) {
  config.parallel.tp = flags.tp;
  config.parallel.pp = flags.pp;
  config.parallel.dp = flags.dp;
  config.parallel.world_size = flags.tp * flags.pp * flags.dp;
  config.parallel.pp_schedule = flags.pp > 1 ? "1f1b" : "";
  if (interchange::shape_of(config.model).num_layers % flags.pp != 0) config.parallel.pp_layout = "balanced";
  config.parallel.threads_per_rank = flags.threads_per_rank;
  config.parallel.device = flags.device;
  config.train.global_batch_size = config.train.micro_batch_size * flags.dp;
  if (!flags.dtype.empty()) config.train.dtype = flags.dtype;
  return plan::resolve(std::move(config), {.tokenizer_vocab = tokenizer.vocab_size()});
}

}  // namespace

TrainedModel open_trained_model(const ModelFlags& flags, const char* job, bool or_t5) {
  check_flags(flags, job);
  interchange::check_is_gpt(flags.load, job, or_t5);
  auto [config, tokenizer, trained_here] = describe(flags, job);
  config.train.micro_batch_size = 1;
  auto ends = interchange::end_tokens(flags.load, tokenizer);
  auto run = resolve(flags, config, tokenizer);
  return {flags.load, std::move(run), std::move(tokenizer), std::move(ends)};
}

TrainedModel open_task_model(const ModelFlags& flags, const char* job, const TaskModelOptions& task) {
  check_flags(flags, job);
  auto [config, tokenizer, trained_here] = describe(flags, job);
  if (task.seq_length > 0)
    config.data.seq_length = task.seq_length;
  else if (!trained_here)
    config.data.seq_length = std::min(config.data.seq_length, task.usual_length);
  config.model.head = task.head;
  config.model.num_classes = task.num_classes;
  config.train.micro_batch_size =
      task.microbatch_size > 0 ? task.microbatch_size
                               : std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, config.data.seq_length));
  config.parallel.variable_seq_lengths = flags.pp > 1;
  config.optimizer.name = "sgd";
  config.optimizer.sgd_momentum = 0;
  auto run = resolve(flags, config, tokenizer);
  return {flags.load, std::move(run), std::move(tokenizer), {}};
}

RankModel load_rank(const TrainedModel& model, const comm::Group& world, at::Device device, std::int64_t positions) {
  const plan::ResolvedRun& run = model.run;
  parallel::ParallelContext context(run.grid, world, device);
  const auto parts = plan::parts_of_rank(run.parts, run.placement, context.index(plan::Axis::Pp));
  auto specs =
      plan::gpt_parameters(run.shape, context.grid().size(plan::Axis::Tp), context.index(plan::Axis::Tp), parts);
  for (plan::ParameterSpec& spec : specs) spec.init = plan::Init::Zero;  // they are read: drawing them would be in vain
  auto layout = plan::buffer_layout(specs, 0);
  parallel::ParameterStore parameters(std::move(specs), std::move(layout), train::scalar_type(run.config), device, 0,
                                      parallel::ParameterStore::Gradients::None);
  generate::load_weights(model.folder, parameters, run.shape);
  model::GptOptions options = model::gpt_options(run.config, run.shape);
  options.rope_positions = std::min(positions, run.shape.max_positions);
  return {std::move(context), parts.at(0), std::move(parameters), std::move(options)};
}

}  // namespace megatron::app
