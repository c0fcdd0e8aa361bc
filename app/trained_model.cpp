#include "app/trained_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/checkpoint/folder.h"
#include "megatron/checkpoint/model_state.h"
#include "megatron/generate/load.h"
#include "megatron/interchange/weights.h"
#include "megatron/model/options.h"
#include "megatron/train/engine.h"

namespace megatron::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The tokenizer of a run of ours: its copy in the run's folder, else where its recipe says.
text::Tokenizer tokenizer_of_run(const std::string& folder, const config::RunConfig& recipe, const char* job) {
  const fs::path checkpoints = fs::absolute(checkpoint::find_checkpoint(folder)).parent_path();
  for (const fs::path& place : {checkpoints, checkpoints.parent_path(), fs::path(recipe.train.out)})
    if (fs::exists(place / "tokenizer.json")) return text::Tokenizer::load(place);
  if (recipe.data.tokenizer.empty())
    throw ConfigError(
        rule_got_fix(concat(job, ": the run must name its tokenizer."), "none in its recipe", "--tokenizer DIR"));
  return text::Tokenizer::load(recipe.data.tokenizer);
}

/// eos_token_id, a number or a list, of generation_config.json, else of config.json.
std::vector<std::int64_t> ends_of_hugging_face(const fs::path& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!fs::exists(folder / name)) continue;
    const json file = json::parse(read_file(folder / name, 1 << 24), nullptr, false);
    if (!file.is_object())
      throw ConfigError(rule_got_fix((folder / name).string() + " must be a JSON object.", "something else"));
    const json value = file.value("eos_token_id", json());
    if (value.is_null()) continue;
    std::vector<std::int64_t> ends;
    for (const json& id : value.is_array() ? value : json::array({value})) {
      if (!id.is_number_integer())
        throw ConfigError(rule_got_fix((folder / name).string() + ": eos_token_id must be a token or a list of them.",
                                       id.type_name()));
      ends.push_back(id.get<std::int64_t>());
    }
    return ends;
  }
  return {};
}

/// The model's sizes on the ranks asked for here; what else a recipe says belongs to training.
plan::ResolvedRun resolve(const ModelFlags& flags, config::RunConfig config, const text::Tokenizer& tokenizer) {
  config.parallel.tp = flags.tp;
  config.parallel.pp = flags.pp;
  config.parallel.dp = flags.dp;
  config.parallel.world_size = flags.tp * flags.pp * flags.dp;
  config.parallel.pp_schedule = flags.pp > 1 ? "1f1b" : "";
  config.parallel.threads_per_rank = flags.threads_per_rank;
  config.parallel.device = flags.device;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = flags.dp;
  if (!flags.dtype.empty()) config.train.dtype = flags.dtype;
  return plan::resolve(std::move(config), {.tokenizer_vocab = tokenizer.vocab_size()});
}

}  // namespace

TrainedModel open_trained_model(const ModelFlags& flags, const char* job) {
  if (flags.load.empty())
    throw ConfigError(rule_got_fix(concat(job, ": --load must name a trained model."), "none", "--load runs/default"));
  for (const auto& [name, size] : {std::pair{"tp", flags.tp}, {"pp", flags.pp}, {"dp", flags.dp}})
    if (size < 1 || size > 65536)
      throw ConfigError(rule_got_fix(concat(job, ": --", name, " must be 1 or above."), concat(size)));
  const bool native = interchange::kind_of(flags.load) == interchange::FolderKind::Native;
  config::RunConfig config;
  if (native) {
    const auto recipe = checkpoint::saved_recipe(flags.load);
    config.model = recipe.model;
    config.train.dtype = recipe.train.dtype;
    config.data.seq_length = recipe.data.seq_length;
    auto tokenizer =
        flags.tokenizer.empty() ? tokenizer_of_run(flags.load, recipe, job) : text::Tokenizer::load(flags.tokenizer);
    auto run = resolve(flags, config, tokenizer);
    std::vector<std::int64_t> ends;
    if (const auto eod = tokenizer.token_to_id("<|endoftext|>")) ends.push_back(*eod);
    return {flags.load, std::move(run), std::move(tokenizer), std::move(ends)};
  }
  config.model = interchange::model_config_of(flags.load);
  if (config.model.max_position_embeddings > 0) config.data.seq_length = config.model.max_position_embeddings;
  auto tokenizer = text::Tokenizer::load(flags.tokenizer.empty() ? flags.load : flags.tokenizer);
  auto ends = ends_of_hugging_face(flags.load);
  if (ends.empty())
    if (const auto eod = tokenizer.token_to_id("<|endoftext|>")) ends.push_back(*eod);
  auto run = resolve(flags, config, tokenizer);
  return {flags.load, std::move(run), std::move(tokenizer), std::move(ends)};
}

RankModel load_rank(const TrainedModel& model, const comm::Group& world, at::Device device) {
  const plan::ResolvedRun& run = model.run;
  parallel::ParallelContext context(run.grid, world, device);
  const auto parts = plan::parts_of_rank(run.parts, run.placement, context.index(plan::Axis::Pp));
  auto specs =
      plan::gpt_parameters(run.shape, context.grid().size(plan::Axis::Tp), context.index(plan::Axis::Tp), parts);
  for (plan::ParameterSpec& spec : specs)
    spec.init = plan::Init::Zero;  // they are read: drawing them would be in vain
  auto layout = plan::buffer_layout(specs, 0);
  parallel::ParameterStore parameters(std::move(specs), std::move(layout), train::scalar_type(run.config), device, 0,
                                      parallel::ParameterStore::Gradients::None);
  generate::load_weights(model.folder, parameters, run.shape);
  model::GptOptions options = model::gpt_options(run.config, run.shape);
  return {std::move(context), parts.at(0), std::move(parameters), std::move(options)};
}

}  // namespace megatron::app
