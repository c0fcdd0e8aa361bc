#include "app/bench/bench_options.h"

#include <algorithm>
#include <utility>

#include "app/config_file.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/plan/parameters/parameters.h"

namespace megatron::app {
namespace {

constexpr const char* kGenerateUsage =
    "megatron bench generate --load DIR | --model RECIPE [OPTION]…\n\n"
    "Tokens/s of greedy writing, one token after the other, and of reading a prompt, with the model in DIR, or a "
    "recipe's\n"
    "whose weights are drawn. The bound is how often a second the weights could be read: each token needs all of them\n"
    "once. On a CPU at the rate at which it reads memory, on a GPU at that at which it copies its own.";

}  // namespace

BenchCommOptions bench_comm_options(const Args& args) {
  BenchCommOptions options;
  const auto rest = config::parse_command_line(options, args, "megatron bench comm [OPTION]…");
  if (!rest.empty())
    throw ConfigError(rule_got_fix("bench comm takes options alone.", rest[0], concat("leave '", rest[0], "' out")));
  const bool sizes_fit = std::all_of(options.sizes.begin(), options.sizes.end(), [](std::int64_t bytes) {
    return bytes >= 4 && bytes % 4 == 0 && bytes <= (std::int64_t{1} << 32);
  });
  if (!sizes_fit) {
    std::string sizes;
    for (const std::int64_t bytes : options.sizes) sizes += concat(sizes.empty() ? "" : ",", bytes);
    throw ConfigError(
        rule_got_fix("--sizes must be multiples of 4 bytes, from 4 bytes to 4 GiB.", sizes, "--sizes 4096,1048576"));
  }
  if (options.ranks < 2 || options.ranks > 64 || options.repeats < 1)
    throw ConfigError(rule_got_fix("bench comm needs 2 to 64 ranks and a repeat.",
                                   concat(options.ranks, " ranks, ", options.repeats, " repeats"),
                                   "--ranks 2 --repeats 1"));
  return options;
}

BenchHardwareOptions bench_hardware_options(const Args& args) {
  BenchHardwareOptions options;
  const auto rest =
      config::parse_command_line(options, args, "megatron bench hardware --output this_machine.toml [OPTION]…");
  if (!rest.empty())
    throw ConfigError(
        rule_got_fix("bench hardware takes options alone.", rest[0], concat("leave '", rest[0], "' out")));
  if (options.ranks < 0 || options.ranks > 64)
    throw ConfigError(rule_got_fix("--ranks must be 1 to 64, or 0.", concat(options.ranks), "--ranks 2"));
  return options;
}

BenchCheckpointCommand bench_checkpoint_command(const Args& args) {
  BenchCheckpointOptions options;
  const auto words = config::parse_command_line(options, args, "megatron bench checkpoint [OPTION]…");
  if (!words.empty())
    throw ConfigError(rule_got_fix("this job takes options alone.", words[0], concat("leave '", words[0], "' out")));
  if (options.repeats < 1 || options.steps < 0 || options.load_tp < 1)
    throw ConfigError(rule_got_fix("--repeats and --load-tp must be 1 or more, --steps 0 or more.",
                                   concat(options.repeats, ", ", options.load_tp, ", ", options.steps),
                                   "--repeats 1 --load-tp 1 --steps 0"));
  std::string streams;
  for (const std::int64_t number : options.streams) streams += concat(streams.empty() ? "" : " ", number);
  const auto fits = [](std::int64_t number) { return number >= 1 && number <= 256; };
  if (options.streams.empty() || !std::ranges::all_of(options.streams, fits))
    throw ConfigError(rule_got_fix("--streams must list numbers from 1 to 256.", streams, "--streams 1 2 4 8"));
  config::RunConfig config;
  config::read_toml(config::fields_of(config), read_file(options.recipe), options.recipe);
  config.train.global_batch_size = config.train.micro_batch_size = 1;
  config.schedule = {};
  config.data.data_path = {};
  plan::ResolvedRun run = plan::resolve(config, {.flags = {{"", ""}}});  // no option is of the network
  plan::model_parameters(run.shape, options.load_tp, 0);                 // an error where the model does not divide
  return {std::move(options), std::move(run)};
}

BenchGenerateOptions bench_generate_options(const Args& args) {
  BenchGenerateOptions options;
  const auto rest = config::parse_command_line(options, args, kGenerateUsage);
  if (!rest.empty())
    throw ConfigError(
        rule_got_fix("bench generate takes options alone.", rest[0], concat("leave '", rest[0], "' out")));
  if (options.model.empty() && options.load.empty())
    throw ConfigError(rule_got_fix("bench generate: --load must name a trained model, or --model a recipe.", "neither",
                                   "--model smollm2_135m"));
  for (const auto& [flag, value] : {std::pair<const char*, std::int64_t>{"--prompt-tokens", options.prompt_tokens},
                                    {"--new-tokens", options.new_tokens},
                                    {"--prefill-tokens", options.prefill_tokens},
                                    {"--repeats", options.repeats}})
    if (value < 1)
      throw ConfigError(
          rule_got_fix(concat("bench generate: ", flag, " must be 1 or above."), concat(value), concat(flag, " 1")));
  if (options.profile && options.device != "cpu")
    throw ConfigError(rule_got_fix("--profile is for --device cpu: a GPU works on while its operators return.",
                                   options.device, "leave --profile out"));
  if (options.model.empty()) {
    recipe::check_model_flags(options, "bench generate");
  } else {
    config_file(options.model, "configs", "--model");
    recipe::check_ranks(options, "bench generate");
  }
  return options;
}

}  // namespace megatron::app
