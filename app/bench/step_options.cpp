#include "app/bench/step_options.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "app/config_file.h"
#include "megatron/base/error.h"
#include "megatron/base/ranks/launched_rank.h"
#include "megatron/config/value.h"
#include "megatron/recipe/resolve.h"

namespace megatron::app {
namespace {

plan::ResolvedRun resolve(const BenchStepOptions& options, const std::optional<LaunchedRank>& place) {
  config::RunConfig config;
  config::load_toml(config, config_file(options.model, "configs", "--model"));
  config.model.hidden_dropout = config.model.attention_dropout = options.dropout;
  config.model.max_position_embeddings = std::max(config.model.max_position_embeddings, options.seq_length);
  config.data.seq_length = options.seq_length;
  config.optimizer = options.optimizer;
  config.parallel.world_size = place ? 0 : options.world_size;
  config.parallel.tp = options.tp;
  config.parallel.cp = options.cp;
  config.parallel.cp_comm_type = options.cp_comm_type;
  config.parallel.pp = options.pp;
  config.parallel.vpp = options.vpp;
  config.parallel.sp = options.sp;
  config.parallel.pp_schedule = options.schedule;
  config.parallel.pp_communication = options.pp_communication;
  config.parallel.pp_layout = options.pp_layout;
  config.parallel.dp = options.dp;
  config.parallel.threads_per_rank = options.threads_per_rank;
  config.parallel.launch = options.launch;
  config.parallel.backend = options.backend;
  config.parallel.device = options.device;
  config.schedule.rampup_batch_size.clear();
  config.schedule.lr_warmup_samples = 0;
  config.train.micro_batch_size = options.micro_batch_size;
  const auto complete = [&](config::RunConfig& changed) {
    const config::ParallelConfig& parallel = changed.parallel;
    const int world = place ? place->world_size : parallel.world_size;
    const int dp =
        parallel.dp > 0 ? parallel.dp : std::max(1, world / std::max(1, parallel.tp * parallel.cp * parallel.pp));
    changed.train.global_batch_size = changed.train.micro_batch_size * options.microbatches * dp;
  };
  complete(config);
  config.train.train_iters = options.warmup + options.steps;
  config.train.dtype = options.dtype;
  config.train.kernels = options.kernels;
  config.train.matmul_precision = options.matmul_precision;
  config.train.loss_chunk_tokens = options.loss_chunk_tokens;
  config.train.recompute_gelu = options.recompute_gelu;
  config.train.deterministic_mode = options.deterministic_mode;
  config.train.recompute = options.recompute;
  config.log.trace = options.trace;
  if (config.model.vocab_size == 0) config.model.vocab_size = 4096;  // a recipe that leaves it to its tokenizer
  constexpr std::int64_t kMaxMicrobatches = 1 << 16;
  if (options.microbatches < 1 || options.microbatches > kMaxMicrobatches)
    throw ConfigError(rule_got_fix(concat("--microbatches must be from 1 to ", kMaxMicrobatches, "."),
                                   concat(options.microbatches), "--microbatches 1 (the default)"));
  if (options.steps < 1 || options.warmup < 0)
    throw ConfigError(rule_got_fix("--steps must be at least 1 and --warmup at least 0.",
                                   concat(options.steps, " and ", options.warmup), "--steps 1 --warmup 0"));
  std::map<std::string, std::string> flags = {{"optimizer.", ""},
                                              {"train.micro_batch_size", "micro-batch-size"},
                                              {"data.seq_length", "seq-length"},
                                              {"log.trace", "trace"},
                                              {"parallel.pp_schedule", "schedule"}};
  for (const char* name : {"world_size", "tp", "cp", "cp_comm_type", "pp", "vpp", "sp", "pp_communication", "pp_layout",
                           "dp", "threads_per_rank", "launch", "backend", "device"})
    flags.emplace(concat("parallel.", name), config::normalized(name));
  for (const char* name : {"dtype", "kernels", "matmul_precision", "loss_chunk_tokens", "recompute_gelu",
                           "deterministic_mode", "recompute"})
    flags.emplace(concat("train.", name), config::normalized(name));
  return plan::resolve(config, {.launched_world_size = place ? place->world_size : 0,
                                .schedule_file = recipe::read_schedule_file(options.schedule),
                                .flags = std::move(flags),
                                .complete = complete});
}

}  // namespace

BenchStepCommand bench_step_command(const Args& args) {
  BenchStepOptions options;
  const auto rest = config::parse_command_line(options, args, "megatron bench step [OPTION]…");
  if (!rest.empty())
    throw ConfigError(
        rule_got_fix("megatron bench step takes options alone.", rest[0], concat("leave '", rest[0], "' out")));
  if (options.profile && options.device != "cpu")
    throw ConfigError(rule_got_fix("--profile is for --device cpu: a GPU works on while its operators return.",
                                   options.device, "leave --profile out"));
  if (!options.profile && !options.svg.empty())
    throw ConfigError(rule_got_fix("--svg is the picture of --profile.", options.svg, "--profile --svg FILE"));
  plan::ResolvedRun run = resolve(options, place_from(process_environment()));
  return {std::move(options), std::move(run)};
}

}  // namespace megatron::app
