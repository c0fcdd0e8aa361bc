#include "megatron/run/trained_model.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/base/text/printable.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/checkpoint/weights.h"
#include "megatron/families/hf_config.h"
#include "megatron/generate/load.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/gguf_blocks.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/import.h"
#include "megatron/interchange/weights.h"
#include "megatron/model/options.h"
#include "megatron/plan/cost/rank_buffers.h"
#include "megatron/plan/mend.h"
#include "megatron/plan/parameters/blocks.h"
#include "megatron/recipe/resolve.h"
#include "megatron/run/kept_adapters.h"
#include "megatron/run/memory_check.h"
#include "megatron/run/ranks.h"
#include "megatron/train/engine.h"
#include "megatron/train/resume/agreement.h"

namespace megatron::run {
namespace {

/// What a folder says of its model, weights left out.
struct Described {
  config::RunConfig config;   ///< the network and its rows; what else a recipe says belongs to training
  text::Tokenizer tokenizer;  ///< the one asked for, or the folder's
  bool trained_here;
};

/// On the ranks asked for. What computes forward alone sets its microbatch before.
plan::ResolvedRun resolve(const ModelFlags& flags, const config::RunConfig& config, const text::Tokenizer& tokenizer,
                          const char* job) {
  return recipe::resolve_forward(flags, config, recipe::forward_rows(flags, config.model.vocab_size, tokenizer),
                                 comm::place_from(comm::process_environment()), job);
}

Described describe(const ModelFlags& flags, const char* job) {
  const bool trained_here = interchange::format_of(flags.load).native;
  config::RunConfig config, recipe;
  if (trained_here) {
    recipe = checkpoint::saved_recipe(flags.load);
    config.model = recipe.model;
    config.train.dtype = recipe.train.dtype;
    config.data.seq_length = recipe.data.seq_length;
  } else {
    config = recipe::forward_config(interchange::model_config_of(flags.load));
  }
  auto tokenizer = recipe::forward_tokenizer(
      flags, flags.tokenizer.empty() ? interchange::companion_folder(flags.load) : "", recipe, job);
  return {std::move(config), std::move(tokenizer), trained_here};
}

/// What the files say of themselves is compared before memory is taken for what a configuration says of them.
void check_weights(const ModelFlags& flags, const plan::ResolvedRun& run, bool strict) {
  const auto report = checkpoint::compare_weights(*interchange::open_weights(flags.load), run.shape, strict);
  for (const std::string& name : report.missing)
    if (name.starts_with("embedding.") || name.starts_with(run.shape.stack()))
      throw ConfigError(rule_got_fix(concat("The weights of ", flags.load, " must be those of the model."),
                                     concat("missing: ", name), "copy the whole folder again"));
}

}  // namespace

void check_memory(TrainedModel& model, plan::Besides besides) {
  const auto place = comm::place_from(comm::process_environment());
  besides.bytes += model.kept_bytes;
  model.keeps_copies = true;
  model.keeps_copies = fits_amply(model.run, place, model.holding(), besides);
  check_memory(model.run, place, model.holding(), besides);
}

void keep_copies(const TrainedModel& model, const parallel::ParameterStore& parameters) {
  for (const parallel::ParameterPtr& parameter : parameters.all())
    parameter->packed.keep(model.keeps_copies ? kernels::WeightCopies::All : kernels::WeightCopies::None);
}

TrainedModel open_trained_model(const ModelFlags& flags, const char* job, recipe::Writes writes) {
  recipe::check_model_flags(flags, job);
  recipe::check_writes(interchange::model_config_of(flags.load), flags.load, job, writes);
  auto [config, tokenizer, trained_here] = describe(flags, job);
  config.train.micro_batch_size = 1;
  auto ends = interchange::end_tokens(flags.load, tokenizer);
  auto run = resolve(flags, config, tokenizer, job);
  TrainedModel model{flags.load,      std::move(run),           std::move(tokenizer),
                     std::move(ends), recipe::blocks_of(flags), writes == recipe::Writes::Embeddings};
  check_weights(flags, model.run, /*strict=*/!model.without_heads);
  check_memory(model);
  return model;
}

TrainedModel open_drawn_model(const ModelFlags& flags, const config::RunConfig& recipe, const char* job) {
  recipe::check_ranks(flags, job);
  if (!flags.load.empty() || flags.weights != recipe::kFullWeights)
    throw ConfigError(rule_got_fix(concat(job, ": weights that are drawn are not read, nor held in blocks."),
                                   concat("--load '", flags.load, "', --weights ", flags.weights),
                                   "leave both out, or --load alone"));
  config::RunConfig config;
  config.model = recipe.model;
  config.train.dtype = recipe.train.dtype;
  config.train.micro_batch_size = 1;
  config.data.seq_length = recipe.data.seq_length;
  if (config.model.vocab_size < 2) config.model.vocab_size = 4096;  // a recipe that leaves it to its tokenizer
  auto tokenizer = text::Tokenizer::load(std::to_string(config.model.vocab_size - 1), "NullTokenizer");
  TrainedModel model{"", resolve(flags, config, tokenizer, job), std::move(tokenizer), {}};
  check_memory(model);
  return model;
}

TrainedModel open_task_model(const ModelFlags& flags, const char* job, const recipe::TaskModelOptions& task) {
  recipe::check_model_flags(flags, job);
  auto [config, tokenizer, trained_here] = describe(flags, job);
  recipe::set_task(config, task, trained_here, flags, job);
  auto run = resolve(flags, config, tokenizer, job);
  check_weights(flags, run, /*strict=*/false);  // of another head: whoever loads them says so
  check_memory(run, comm::place_from(comm::process_environment()), plan::Holding::Weights);
  return {flags.load, std::move(run), std::move(tokenizer), {}};
}

void check_tokens(const TrainedModel& model, std::span<const std::int64_t> ids, const char* job) {
  const std::int64_t rows = model.run.shape.vocab;
  const auto beyond = std::ranges::find_if(ids, [&](std::int64_t id) { return id >= rows; });
  if (beyond == ids.end()) return;
  const bool named = *beyond < model.tokenizer.vocab_size();
  throw ConfigError(rule_got_fix(
      concat(job, ": a text must have tokens of the model alone, whose embedding has ", rows, " rows."),
      concat("token ", *beyond,
             named ? concat(", ", in_quotes(model.tokenizer.id_to_bytes(static_cast<std::int32_t>(*beyond)))) : ""),
      "leave that token out of the text"));
}

comm::Facts model_facts(const TrainedModel& model, const config::Fields& flags) {
  comm::Facts facts = train::option_facts(flags);
  facts.push_back({"tokenizer", model.tokenizer.fingerprint()});
  facts.push_back(train::model_fact("model in " + model.folder, model.folder));
  for (const std::string& folder : model.kept) facts.push_back(train::model_fact("adapters in " + folder, folder));
  return facts;
}

RankModel load_rank(const TrainedModel& model, const comm::Group& world, at::Device device, std::int64_t positions) {
  const plan::ResolvedRun& run = model.run;
  plan::Besides besides;
  if (!model.kept.empty()) besides = {.bytes = model.kept_bytes, .what = "adapters", .fix = "fewer adapters"};
  check_gpu_memory(run, world, device, model.holding(), besides);
  parallel::ParallelContext context(run.grid, world, device, plan::expert_layout(run.config.parallel));
  const auto parts = plan::parts_of_rank(run.parts, run.placement, context.pipeline().rank());
  auto specs = plan::model_parameters(run.shape, context.grid().size(plan::Axis::Tp), context.tensor().rank(), parts,
                                      plan::expert_share(run, context.rank()));
  const bool drawn = model.folder.empty();
  if (!drawn)  // they are read: drawing them would be in vain
    for (plan::ParameterSpec& spec : specs) spec.init = plan::Init::Zero;
  const auto blocks = std::stable_partition(specs.begin(), specs.end(), [&](const plan::ParameterSpec& spec) {
    return !model.in_blocks || !plan::fits_blocks(spec);
  });
  std::vector<plan::ParameterSpec> in_blocks(std::make_move_iterator(blocks), std::make_move_iterator(specs.end()));
  specs.erase(blocks, specs.end());
  auto layout = plan::buffer_layout(specs, 0);
  parallel::ParameterStore parameters = taking_memory_for("the model's weights", [&] {
    return parallel::ParameterStore(std::move(specs), std::move(layout), train::scalar_type(run.config), device,
                                    run.config.train.seed, parallel::ParameterStore::Gradients::None);
  });
  for (plan::ParameterSpec& spec : in_blocks) {
    const GgufType type = plan::block_type(spec, *model.in_blocks);
    parameters.add_in_blocks(std::move(spec), type);
  }
  taking_memory_for("the model's weights", [&] {
    if (drawn) return;
    generate::load_weights(model.folder, parameters, run.shape, /*strict=*/!model.without_heads);
  });
  keep_copies(model, parameters);
  model::TransformerOptions options = model::transformer_options(run.config, run.shape);
  options.experts = context.experts();
  if (plan::roles_of(run).split_otherwise()) options.expert_slices = context.expert_slices().size();
  options.rope_positions = std::min(positions, run.shape.max_positions);
  options.kept = load_kept(model, parts.at(0), context);
  return {std::move(context), parts.at(0), std::move(parameters), options};
}

}  // namespace megatron::run
