#include "app/bench/scaling_options.h"

#include <filesystem>
#include <utility>

#include "app/flags.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron bench scaling [--hardware NAME] [--recipes NAME…] [--svg FILE] [--json]\n"
    "megatron bench scaling --measured [--steps N] [--most-ranks 4] [--svg FILE] [--json]\n\n"
    "Weak scaling (table 1, figure 5), attention heads (table 7) and strong scaling (table 8) of Shoeybi et al. 2019.\n"
    "Predicted by the cost model for a cluster that a file in configs/hardware describes, on dgx2h with what the "
    "paper\n"
    "measured there; with --recipes for these runs instead. Or measured on this machine's cores with small models.";

void check_measured(const ScalingMeasureOptions& options) {
  const auto need = [](bool ok, const std::string& rule, std::int64_t got) {
    if (!ok)
      throw ConfigError(rule_got_fix(rule, concat(got), concat("leave ", rule.substr(0, rule.find(' ')), " out")));
  };
  need(options.most_ranks == 1 || options.most_ranks == 2 || options.most_ranks == 4, "--most-ranks must be 1, 2 or 4.",
       options.most_ranks);
  need(options.steps >= 1 && options.steps <= 10000, "--steps must be from 1 to 10000.", options.steps);
  need(options.warmup >= 0 && options.warmup <= 10000, "--warmup must be from 0 to 10000.", options.warmup);
  need(options.rounds >= 1 && options.rounds <= 1000, "--rounds must be from 1 to 1000.", options.rounds);
  need(options.width >= 16 && options.width <= 16384 && options.width % 16 == 0,
       "--width must be a multiple of 16, from 16 to 16384.", options.width);
  need(options.samples >= 1 && options.samples <= 1024, "--samples must be from 1 to 1024.", options.samples);
}

/// Throws ConfigError for options of another of the three figures than the one that is asked for.
void check_read(const BenchScalingOptions& options) {
  const ScalingPredictOptions& predict = options.predict;
  const ScalingMeasureOptions& measure = options.measure;
  const ScalingPredictOptions usual;
  const ScalingMeasureOptions small;
  if (measure.measured) {
    for (const auto& [flag, set] : {std::pair{"--recipes", !predict.recipes.empty()},
                                    {"--hardware", predict.hardware != usual.hardware},
                                    {"--world-size", predict.world_size != usual.world_size},
                                    {"--dtype", predict.dtype != usual.dtype}})
      if (set)
        throw ConfigError(rule_got_fix(concat("--measured has runs of its own: ", flag, " is for predictions."),
                                       concat("--measured and ", flag), "leave one of the two out"));
    return;
  }
  refuse_without(predict.world_size != usual.world_size && predict.recipes.empty(), "--world-size", "--recipes");
  refuse_without(predict.dtype != usual.dtype && predict.recipes.empty(), "--dtype", "--recipes");
  for (const auto& [flag, set] : {std::pair{"--most-ranks", measure.most_ranks != small.most_ranks},
                                  {"--steps", measure.steps != small.steps},
                                  {"--warmup", measure.warmup != small.warmup},
                                  {"--rounds", measure.rounds != small.rounds},
                                  {"--width", measure.width != small.width},
                                  {"--seq-length", measure.seq_length != small.seq_length},
                                  {"--samples", measure.samples != small.samples}})
    refuse_without(set, flag, "--measured");
  if (predict.world_size < 0)
    throw ConfigError(rule_got_fix("--world-size must be 0 or above.", concat(predict.world_size),
                                   "--world-size 0, each recipe's own"));
}

}  // namespace

void make_chart_folder(const ScalingOutputOptions& output) {
  if (!output.svg.empty()) make_folder(std::filesystem::path(output.svg).parent_path());
}

BenchScalingOptions bench_scaling_options(const Args& args) {
  BenchScalingOptions options;
  no_words(config::parse_command_line(options, args, kUsage));
  check_read(options);
  if (!options.output.svg.empty() && !options.output.svg.ends_with(".svg"))
    throw ConfigError(rule_got_fix("--svg takes a file that ends in .svg.", options.output.svg, "--svg scaling.svg"));
  if (options.measure.measured) check_measured(options.measure);
  return options;
}

}  // namespace megatron::app
