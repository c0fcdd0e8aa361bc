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
#include "megatron/generate/load.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/gguf_blocks.h"
#include "megatron/interchange/hugging_face/companions.h"
#include "megatron/interchange/hugging_face/hf_config.h"
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

/// The tokenizer of the model in `folder`: the one beside its weights, else the one that `recipe`, which its run has
/// saved, names. Throws ConfigError that begins with `job` where there is none.
text::Tokenizer tokenizer_of_model(const std::string& folder, const config::RunConfig& recipe, const char* job) {
  const auto place = interchange::companion_folder(folder);
  if (!place.empty()) return text::Tokenizer::load(place);
  if (recipe.data.tokenizer.empty())
    throw ConfigError(rule_got_fix(concat(job, ": the model must have its tokenizer."),
                                   concat("none in ", folder, " nor in a recipe"), "--tokenizer FOLDER"));
  return text::Tokenizer::load(recipe.data.tokenizer, recipe.data.tokenizer_type, recipe.data.vocab_extra_ids);
}

/// What a folder says of its model, weights left out.
struct Described {
  config::RunConfig config;   ///< the network and its rows; what else a recipe says belongs to training
  text::Tokenizer tokenizer;  ///< the one asked for, or the folder's
  bool trained_here;
};

/// What is wrong with the number of ranks, "" where nothing is. `dp_is_open`: dp is what the ranks leave.
std::string ranks_error(const config::ParallelConfig& parallel, const std::optional<comm::LaunchedRank>& place,
                        bool dp_is_open, const char* job) {
  const std::int64_t ranks = std::int64_t{parallel.tp} * parallel.pp * parallel.dp;
  if (ranks > kMaxRanks)
    return rule_got_fix(concat(job, ": there must be at most ", kMaxRanks, " ranks."), concat(ranks), "--tp 1 --pp 1");
  if (parallel.world_size == ranks) return "";
  const std::string rule = dp_is_open         ? " must be a multiple of tp x pp."
                           : parallel.dp == 1 ? " must be tp x pp: all ranks compute one copy of the model."
                                              : " must be tp x pp x dp.";
  const std::string got = concat(parallel.world_size, " ranks, tp ", parallel.tp, ", pp ", parallel.pp,
                                 dp_is_open || parallel.dp == 1 ? "" : concat(", dp ", parallel.dp));
  return place ? rule_got_fix(concat(job, ": the ranks of ", place->launcher, rule), got,
                              concat("start ", ranks, " ranks"))
               : rule_got_fix(concat(job, ": --world-size", rule), got,
                              concat("--world-size ", ranks, ", or leave it out"));
}

/// What is wrong with how the experts lie on the ranks of a model copy, "" where nothing is. Copies that compute other
/// texts do not wait for one another.
std::string experts_error(const config::RunConfig& config, const char* job) {
  const config::ParallelConfig& parallel = config.parallel;
  if (config.model.num_experts <= 0 || parallel.tp < 1 || parallel.ep < 1 || parallel.etp < 0) return "";
  const std::int64_t tp = parallel.tp, ep = parallel.ep, etp = parallel.etp > 0 ? parallel.etp : tp;
  if (tp % (ep * etp) == 0) return "";
  return rule_got_fix(concat(job, ": --ep x --etp must divide --tp, whose ranks hold the experts of each layer."),
                      concat("ep ", ep, ", etp ", etp, ", tp ", tp),
                      tp % ep == 0 ? concat("--etp ", std::gcd(etp, tp / ep)) : "leave --ep and --etp out");
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
    config.model = interchange::model_config_of(flags.load);
    // Of samples, which such a folder has none of; a text here may fill all positions.
    if (config.model.max_position_embeddings > 0)
      config.data.seq_length = std::min(config.data.seq_length, config.model.max_position_embeddings);
  }
  auto tokenizer =
      flags.tokenizer.empty() ? tokenizer_of_model(flags.load, recipe, job) : text::Tokenizer::load(flags.tokenizer);
  return {std::move(config), std::move(tokenizer), trained_here};
}

/// What follows from the layout. A world size of 0 is as many ranks as the layout asks for.
void complete(config::RunConfig& config, const ModelFlags& asked) {
  config::ParallelConfig& parallel = config.parallel;
  if (asked.ep == 0) {
    const bool fits = parallel.etp > 0 && parallel.tp % parallel.etp == 0 && config.model.num_experts > 0;
    parallel.ep = fits ? static_cast<int>(std::gcd(config.model.num_experts, parallel.tp / parallel.etp)) : 1;
  }
  const std::int64_t copy = std::max<std::int64_t>(1, std::int64_t{parallel.tp} * parallel.pp);
  parallel.dp = asked.dp > 0 ? asked.dp : static_cast<int>(std::max<std::int64_t>(1, parallel.world_size / copy));
  if (parallel.world_size == 0)
    parallel.world_size = static_cast<int>(std::min<std::int64_t>(copy * parallel.dp, 1 << 30));
  parallel.pp_schedule = parallel.pp > 1 ? "1f1b" : "";
  const bool even = parallel.pp < 1 || interchange::shape_of(config.model).num_layers % parallel.pp == 0;
  parallel.pp_layout = even ? "" : "balanced";
  config.train.global_batch_size = config.train.micro_batch_size * parallel.dp;
}

/// On the ranks asked for here. What computes forward alone sets its microbatch before.
plan::ResolvedRun resolve(const ModelFlags& asked, config::RunConfig config, const text::Tokenizer& tokenizer,
                          const char* job) {
  const auto place = comm::place_from(comm::process_environment());
  config::ParallelConfig& parallel = config.parallel;
  parallel.tp = asked.tp;
  parallel.pp = asked.pp;
  parallel.ep = asked.ep;
  parallel.etp = asked.etp;
  parallel.world_size = place ? place->world_size : asked.world_size;  // as in training, the launcher's holds
  parallel.threads_per_rank = asked.threads_per_rank;
  parallel.timeout_s = asked.timeout_s;
  parallel.device = asked.device;
  if (!asked.dtype.empty()) config.train.dtype = asked.dtype;
  complete(config, asked);
  const bool derived = !place && asked.world_size == 0;
  const std::int64_t rows = config.model.vocab_size;
  const std::int64_t needed =
      asked.tokenizer.empty() && rows > 0 ? recipe::needed_rows(tokenizer, rows) : tokenizer.vocab_size();
  const plan::Facts facts{.tokenizer_vocab = needed,
                          .flags = {{"parallel.tp", "tp"},
                                    {"parallel.pp", "pp"},
                                    {"parallel.ep", "ep"},
                                    {"parallel.etp", "etp"},
                                    {"parallel.world_size", "world-size"},
                                    {"parallel.threads_per_rank", "threads-per-rank"},
                                    {"parallel.timeout_s", "timeout-s"},
                                    {"parallel.device", "device"},
                                    {"train.dtype", "dtype"}},
                          .otherwise = asked.tokenizer.empty()
                                           ? "--load a folder whose configuration and weights are whole"
                                           : "leave --tokenizer out: the model has its own",
                          .complete = [&, ranks = parallel.world_size](config::RunConfig& changed) {
                            if (place) changed.parallel.world_size = place->world_size;
                            if (derived && changed.parallel.world_size == ranks) changed.parallel.world_size = 0;
                            complete(changed, asked);
                          }};
  const auto error_of = [&](const config::RunConfig& tried) {
    std::string error = ranks_error(tried.parallel, place, asked.dp == 0, job);
    if (error.empty()) error = experts_error(tried, job);
    return error.empty() ? plan::broken_rules(tried, facts) : error;
  };
  if (const std::string message = error_of(config); !message.empty())
    throw ConfigError(plan::with_working_fixes(message, config, facts, error_of));
  return plan::resolve(std::move(config), facts);
}

/// What the files say of themselves is compared before memory is taken for what a configuration says of them.
void check_weights(const ModelFlags& flags, const plan::ResolvedRun& run, bool strict, plan::Holding holding) {
  const auto report = checkpoint::compare_weights(*interchange::open_weights(flags.load), run.shape, strict);
  for (const std::string& name : report.missing)
    if (name.starts_with("embedding.") || name.starts_with(run.shape.stack()))
      throw ConfigError(rule_got_fix(concat("The weights of ", flags.load, " must be those of the model."),
                                     concat("missing: ", name), "copy the whole folder again"));
  check_memory(run, comm::place_from(comm::process_environment()), holding);
}

/// What --weights names; none: "full".
std::optional<GgufType> blocks_of(const ModelFlags& flags) {
  for (const auto& [name, type] : interchange::kBlockTypes)
    if (flags.weights == name) return type;
  return std::nullopt;
}

/// Throws ConfigError where --weights asks for blocks that cannot be.
void check_blocks(const ModelFlags& flags, const plan::ResolvedRun& run, const char* job) {
  if (!blocks_of(flags)) return;
  const std::string asked = concat("--weights ", flags.weights);
  const std::string fix = concat("--weights ", kFullWeights);
  const plan::ModelShape& shape = run.shape;
  if (!shape.causal || shape.encoder_decoder() || shape.experts)
    throw ConfigError(rule_got_fix(concat(job, ": ", asked, " is for a GPT without experts."),
                                   shape.experts ? "a mixture of experts" : "another kind of model", fix));
  if (run.config.parallel.device != "cpu")
    throw ConfigError(rule_got_fix(concat(job, ": ", asked, " is computed on the CPU alone."),
                                   concat("--device ", run.config.parallel.device), fix));
  const int tp = run.grid.size(plan::Axis::Tp);
  for (int rank = 0; rank < tp; ++rank)
    for (const plan::ParameterSpec& spec : plan::model_parameters(shape, tp, rank))
      if (plan::fits_blocks(spec) && !plan::part_fits_blocks(spec))
        throw ConfigError(rule_got_fix(concat(job, ": with ", asked, " each rank must have whole blocks of ",
                                              plan::kBlockNumbers, " columns of a matrix."),
                                       concat(spec.name, ": ", spec.shape[1], " columns, tp ", tp), "--tp 1"));
}

}  // namespace

TrainedModel open_trained_model(const ModelFlags& flags, const char* job, interchange::Writes writes) {
  check_model_flags(flags, job);
  interchange::check_writes(flags.load, job, writes);
  auto [config, tokenizer, trained_here] = describe(flags, job);
  config.train.micro_batch_size = 1;
  auto ends = interchange::end_tokens(flags.load, tokenizer);
  auto run = resolve(flags, config, tokenizer, job);
  check_blocks(flags, run, job);
  TrainedModel model{flags.load,      std::move(run),   std::move(tokenizer),
                     std::move(ends), blocks_of(flags), writes == interchange::Writes::Embeddings};
  check_weights(flags, model.run, /*strict=*/!model.without_heads, model.holding());
  return model;
}

TrainedModel open_drawn_model(const ModelFlags& flags, const config::RunConfig& recipe, const char* job) {
  check_ranks(flags, job);
  if (!flags.load.empty() || flags.weights != kFullWeights)
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
  check_memory(model.run, comm::place_from(comm::process_environment()), model.holding());
  return model;
}

TrainedModel open_task_model(const ModelFlags& flags, const char* job, const TaskModelOptions& task) {
  check_model_flags(flags, job);
  auto [config, tokenizer, trained_here] = describe(flags, job);
  if (task.seq_length > 0)
    config.data.seq_length = task.seq_length;
  else if (!trained_here)
    config.data.seq_length = std::min(config.data.seq_length, task.usual_length);
  config.model.head = task.head;
  config.model.num_classes = task.num_classes;
  config.model.mtp_num_layers = 0;
  config.train.micro_batch_size =
      task.microbatch_size > 0 ? task.microbatch_size
                               : std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, config.data.seq_length));
  config.parallel.variable_seq_lengths = flags.pp > 1;
  config.optimizer.name = "sgd";
  config.optimizer.sgd_momentum = 0;
  if (flags.weights != kFullWeights)
    throw ConfigError(rule_got_fix(concat(job, ": --weights ", flags.weights, " is for what writes or scores texts."),
                                   concat("--weights ", flags.weights), concat("--weights ", kFullWeights)));
  auto run = resolve(flags, config, tokenizer, job);
  check_weights(flags, run, /*strict=*/false, plan::Holding::Weights);  // of another head: whoever loads them says so
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
  facts.push_back({"model in " + model.folder, train::model_digest(model.folder)});
  for (const std::string& folder : model.kept) facts.push_back({"adapters in " + folder, train::model_digest(folder)});
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
  model::TransformerOptions options = model::transformer_options(run.config, run.shape);
  options.experts = context.experts();
  if (plan::roles_of(run).split_otherwise()) options.expert_slices = context.expert_slices().size();
  options.rope_positions = std::min(positions, run.shape.max_positions);
  options.kept = load_kept(model, parts.at(0), context);
  return {std::move(context), parts.at(0), std::move(parameters), options};
}

}  // namespace megatron::run
