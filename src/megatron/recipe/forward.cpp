#include "megatron/recipe/forward.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/config/tables/model_kinds.h"
#include "megatron/families/format_words.h"
#include "megatron/families/hf_config.h"
#include "megatron/plan/mend.h"
#include "megatron/plan/parameters/blocks.h"
#include "megatron/plan/parameters/parameters.h"
#include "megatron/recipe/resolve.h"

namespace megatron::recipe {
namespace {

/// What is wrong with the number of ranks, "" where nothing is. `dp_is_open`: dp is what the ranks leave.
std::string ranks_error(const config::ParallelConfig& parallel, const std::optional<LaunchedRank>& place,
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
  const bool even = parallel.pp < 1 || families::shape_of(config.model).num_layers % parallel.pp == 0;
  parallel.pp_layout = even ? "" : "balanced";
  config.train.global_batch_size = config.train.micro_batch_size * parallel.dp;
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
  if (tp == 1) return;                                                                      // which has whole rows
  for (const plan::ParameterSpec& spec : plan::model_parameters(shape, tp, /*tp_rank=*/0))  // slices are all as long
    if (plan::fits_blocks(spec) && !plan::part_fits_blocks(spec))
      throw ConfigError(rule_got_fix(concat(job, ": with ", asked, " each rank must have whole blocks of ",
                                            plan::kBlockNumbers, " columns of a matrix."),
                                     concat(spec.name, ": ", spec.shape[1], " columns, tp ", tp), "--tp 1"));
}

}  // namespace

bool is_encoder(const config::ModelConfig& model) {
  const config::ModelTraits& kind = config::model_traits(model.architecture);
  return !kind.causal && !kind.encoder_decoder;
}

void check_writes(const config::ModelConfig& model, const std::filesystem::path& folder, const std::string& job,
                  Writes writes) {
  if (model.head != "tokens")
    throw ConfigError(rule_got_fix(concat(job, ": the model must have its output layer, not the head of a task."),
                                   concat(folder.string(), ", model.head ", model.head),
                                   "megatron eval with the name of the task it was fine-tuned for"));
  const config::ModelTraits& kind = config::model_traits(model.architecture);
  if (writes == Writes::Embeddings && is_encoder(model)) return;
  if (kind.encoder_decoder && writes == Writes::Texts)
    throw ConfigError(rule_got_fix(concat(job, ": the model must be a GPT; a T5 answers a text, and cannot write on."),
                                   folder.string(), "--load a GPT's folder; a T5 answers by megatron generate"));
  if (is_encoder(model))
    throw ConfigError(
        rule_got_fix(concat(job, ": the model must be a GPT; a BERT reads texts and cannot write on."), folder.string(),
                     "--load a GPT's folder; of a BERT that is fine-tuned, megatron eval mnli and the like"));
}

config::RunConfig forward_config(const config::ModelConfig& model) {
  config::RunConfig config;
  config.model = model;
  // Of samples, which such a folder has none of.
  if (model.max_position_embeddings > 0)
    config.data.seq_length = std::min(config.data.seq_length, model.max_position_embeddings);
  return config;
}

void set_task(config::RunConfig& config, const TaskModelOptions& task, bool trained_here, const ModelFlags& flags,
              const char* job) {
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
}

text::Tokenizer forward_tokenizer(const ModelFlags& flags, const std::filesystem::path& beside,
                                  const config::RunConfig& recipe, const char* job) {
  if (!flags.tokenizer.empty()) return text::Tokenizer::load(flags.tokenizer);
  if (!beside.empty()) return text::Tokenizer::load(beside);
  if (recipe.data.tokenizer.empty())
    throw ConfigError(rule_got_fix(concat(job, ": the model must have its tokenizer."),
                                   concat("none in ", flags.load, " nor in a recipe"), "--tokenizer FOLDER"));
  return text::Tokenizer::load(recipe.data.tokenizer, recipe.data.tokenizer_type, recipe.data.vocab_extra_ids);
}

std::int64_t forward_rows(const ModelFlags& flags, std::int64_t rows, const text::Tokenizer& tokenizer) {
  return flags.tokenizer.empty() && rows > 0 ? needed_rows(tokenizer, rows) : tokenizer.vocab_size();
}

std::optional<GgufType> blocks_of(const ModelFlags& flags) {
  for (const auto& [name, type] : families::kBlockTypes)
    if (flags.weights == name) return type;
  return std::nullopt;
}

plan::ResolvedRun resolve_forward(const ModelFlags& asked, config::RunConfig config, std::int64_t token_rows,
                                  const std::optional<LaunchedRank>& place, const char* job) {
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
  const plan::Facts facts{.tokenizer_vocab = token_rows,
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
  plan::ResolvedRun run = plan::resolve(std::move(config), facts);
  check_blocks(asked, run, job);
  return run;
}

}  // namespace megatron::recipe
