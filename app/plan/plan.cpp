#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/jobs.h"
#include "app/layouts.h"
#include "app/plan/megatron_args.h"
#include "app/plan/search.h"
#include "app/print.h"
#include "app/terminal.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/progress.h"
#include "megatron/config/megatron/translate.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"
#include "megatron/config/value.h"
#include "megatron/plan/cost/links/step_traffic.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/plan/pipeline_plan.h"
#include "megatron/plan/report.h"
#include "megatron/plan/rules.h"
#include "megatron/plan/steps/launches.h"
#include "megatron/recipe/resolve.h"
#include "megatron/schedule/pictures/draw.h"
#include "megatron/schedule/text.h"
#include "megatron/study/traffic_picture.h"

namespace megatron::app {
namespace {

using schedule::Timeline;

constexpr const char* kUsage =
    "megatron plan RECIPE.toml [--world-size N] [--json] [--draw schedule.svg] [--trace trace.json] [OPTION]…\n"
    "megatron plan RECIPE.toml --traffic traffic.svg [--hardware NAME] [OPTION]…\n"
    "megatron plan RECIPE.toml --search --world-size N [--hardware NAME] [--fit 80GB] [--svg search.svg] [--json]\n"
    "megatron plan --megatron-args FILE [--program pretrain_gpt|pretrain_bert|pretrain_t5] [--json]\n\n"
    "Shows what a run of this recipe would be: groups of ranks, stages and their schedule, slices of parameters,\n"
    "gradient buckets, samples per rank, memory, FLOPs. Runs nothing. With --megatron-args: what the command line of "
    "a\n"
    "program of Megatron-LM means here, as a recipe. With --search: the fastest layouts of so many ranks.";

struct PlanOptions {
  config::RunConfig run;
  bool as_json = false, launches = false;
  std::string draw, traffic, trace, processor = "amx", megatron_args, program = "pretrain_gpt";
  SearchFlags search;
  void visit(auto& v) {
    v("json", as_json, "Print one JSON object.", config::Common());
    v("draw", draw, "File for the schedule: a picture (.svg), or the program as --schedule reads it (.txt).",
      config::Common());
    v("traffic", traffic,
      "File for a picture (.svg) of the bytes that ranks send one another in a step, by what for and over which links.",
      config::Common());
    v("launches", launches, "Print what a GPU is given for a layer: launches, streams, bytes.");
    v("trace", trace, "Timeline measured with log.trace, drawn with a simulation that uses its operation times.");
    v("processor", processor,
      "Instruction set of the ranks' processors, where train.kernels is auto; bf16 on the first two keeps packed "
      "copies of weights.",
      config::Choices({"amx", "avx512_bf16", "avx512", "avx2", "reference"}));
    v("megatron_args", megatron_args,
      "Instead of a recipe: file with the arguments of a program of Megatron-LM as a shell has them, the first may be "
      "WORLD_SIZE=N.");
    v("program", program, "With --megatron-args: whose arguments they are.",
      config::Choices(config::megatron_programs()));
    search.visit(v);
    run.visit(v);
  }
};

/// The options of `megatron plan` that may be given with --megatron-args.
struct ArgumentsOptions {
  bool as_json = false;
  std::string megatron_args, program = "pretrain_gpt";
  void visit(auto& v) {
    v("json", as_json, "");
    v("megatron_args", megatron_args, "");
    v("program", program, "", config::Choices(config::megatron_programs()));
  }
};

bool has_flag(const Args& args, const char* flag) {
  return std::ranges::any_of(
      args, [&](const std::string& word) { return config::normalized(word.substr(0, word.find('='))) == flag; });
}

int plan_arguments(const Args& args) {
  ArgumentsOptions options;
  const Args rest = config::parse_command_line(options, args, kUsage);
  if (!rest.empty() || options.megatron_args.empty())
    throw ConfigError(rule_got_fix("--megatron-args takes the place of a recipe.", rest.empty() ? "no file" : rest[0],
                                   "megatron plan --megatron-args FILE"));
  return plan_megatron_args(options.megatron_args, options.program, options.as_json);
}

bool draws_picture(const std::string& file) {
  if (file.ends_with(".svg")) return true;
  if (file.empty() || file.ends_with(".txt")) return false;
  throw ConfigError(rule_got_fix("--draw takes a file that ends in .svg or .txt.", file, "--draw schedule.svg"));
}

/// Who sends whom how much, on nodes of the hardware, over which ranks are spread evenly where they divide.
void draw_traffic(const plan::ResolvedRun& run, const std::string& hardware_name, const std::string& file) {
  plan::Hardware hardware = machine_of(hardware_name, "").hardware;
  const int ranks = run.grid.world_size();
  if (const int nodes = nodes_of(ranks, hardware); ranks % nodes == 0) hardware.ranks_per_node = ranks / nodes;
  const std::string title = concat("traffic of a step: ", ranks, " ranks, ", plan::sizes_text(run.grid), ", ",
                                   run.microbatches_per_step, " microbatches");
  write_file(file, study::traffic_svg(plan::step_traffic(run), ranks, hardware, title));
}

/// Throws ConfigError unless each rank has computed what the plan's program says, in its order.
void check_operations(const Timeline& measured, const schedule::Program& program, const std::string& path) {
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    std::vector<std::string> done, planned;
    for (const schedule::Slot& slot : measured.ranks[rank])
      if (schedule::is_computation(slot.op.kind)) done.push_back(schedule::to_string(slot.op));
    for (const schedule::Op& op : program.ranks[rank])
      if (schedule::is_computation(op.kind)) planned.push_back(schedule::to_string(op));
    const auto [ours, theirs] = std::mismatch(planned.begin(), planned.end(), done.begin(), done.end());
    if (ours == planned.end() && theirs == done.end()) continue;
    const auto shown = [](auto op, const auto& all) { return op == all.end() ? "nothing" : *op; };
    throw ConfigError(rule_got_fix(concat(path, ": must be measured with the recipe's schedule."),
                                   concat("pp rank ", rank, ", operation ", ours - planned.begin() + 1, ": ",
                                          shown(theirs, done), " in the trace, ", shown(ours, planned), " in the plan"),
                                   "leave --trace out, or give it with --schedule and --vpp of the run that wrote it"));
  }
}

Timeline read_trace(const std::string& path, const schedule::Program& program) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 28;
  Timeline measured = schedule::parse_chrome_trace(read_file(path, kMaxBytes), path);
  const schedule::Placement &of_trace = measured.placement, &of_plan = program.placement;
  if (of_trace.num_ranks() != of_plan.num_ranks() || of_trace.num_stages() != of_plan.num_stages() ||
      measured.num_microbatches != program.num_microbatches)
    throw ConfigError(
        rule_got_fix(concat(path, ": must be measured with the recipe's stages, ranks and microbatches."),
                     concat(of_trace.num_stages(), " stages on ", of_trace.num_ranks(), " ranks, ",
                            measured.num_microbatches, " microbatches in the trace; ", of_plan.num_stages(), " on ",
                            of_plan.num_ranks(), ", ", program.num_microbatches, " in the plan"),
                     "leave --trace out, or give it with the options of the run that wrote it"));
  check_operations(measured, program, path);
  return measured;
}

/// What is drawn: the program of a step, in units of time or, with a measured timeline, with its operations' times.
struct Drawing {
  schedule::Program program;
  Timeline simulated;
  std::optional<Timeline> measured;
};

Drawing drawing_of(const plan::ResolvedRun& run, const std::string& trace) {
  Drawing drawing{plan::pipeline_program(run, run.microbatches_per_step), {}, {}};
  const schedule::Costs planned = plan::stage_costs(run.config, run.shape, run.parts);
  schedule::Costs costs{.activation_bytes = planned.activation_bytes,
                        .partial_activation_bytes = planned.partial_activation_bytes,
                        .weight_bytes = planned.weight_bytes};
  if (!trace.empty()) {
    drawing.measured = read_trace(trace, drawing.program);
    costs = schedule::measured_costs(*drawing.measured, planned);
  }
  drawing.simulated = schedule::simulate(drawing.program, costs);
  return drawing;
}

std::string picture_text(const Drawing& drawing, const std::string& name) {
  const int width = terminal_width();
  const bool colour = is_terminal(stdout);
  if (!drawing.measured)
    return "schedule " + name + "; forward, backward of inputs and of weights take one unit of time each\n" +
           schedule::draw_text(drawing.simulated, width, colour);
  return "schedule " + name + ", simulated with the mean measured time of each stage's operations\n" +
         schedule::draw_text(drawing.simulated, width, colour) + "schedule " + name + ", measured\n" +
         schedule::draw_text(*drawing.measured, width, colour);
}

}  // namespace

int plan(const Args& args) {
  const bool asks_for_help =
      std::ranges::find(args, "--help") != args.end() || std::ranges::find(args, "-h") != args.end();
  if (has_flag(args, "--megatron-args") && !asks_for_help) return plan_arguments(args);
  if (has_flag(args, "--search") && !asks_for_help) return plan_search(args);
  PlanOptions options;
  std::optional<recipe::RunAndTokenizer> resolved;
  config::parse_recipe_command(options, &PlanOptions::run, args, kUsage,
                               [&] { resolved = recipe::resolve_with_tokenizer(options.run, {}); });
  const SearchFlags usual;
  const SearchFlags& given = options.search;
  const bool hardware_unused = options.traffic.empty() && given.hardware != usual.hardware;
  if (hardware_unused || !given.fit.empty() || !given.svg.empty() || given.top != usual.top ||
      given.tokens != usual.tokens)
    throw ConfigError(
        rule_got_fix("--hardware, --fit, --top, --tokens and --svg belong to --search, --hardware also to --traffic.",
                     "no --search", "--search, or leave them out"));
  if (!options.traffic.empty() && !options.traffic.ends_with(".svg"))
    throw ConfigError(
        rule_got_fix("--traffic takes a file that ends in .svg.", options.traffic, "--traffic traffic.svg"));
  const plan::ResolvedRun& run = resolved->run;
  if (options.launches) {
    if (options.as_json || !options.draw.empty() || !options.traffic.empty() || !options.trace.empty())
      throw ConfigError(rule_got_fix("--launches prints a table alone.", "--json, --draw, --traffic or --trace with it",
                                     "leave --json, --draw, --traffic and --trace out"));
    const bool experts_differ =
        run.shape.experts && (run.shape.experts->capacity_factor > 0 || run.shape.experts->router.jitter > 0 ||
                              run.shape.experts->router.drawn ||
                              (run.config.parallel.etp > 0 && run.config.parallel.etp != run.config.parallel.tp));
    const bool sequence_of_experts = run.config.parallel.sp && run.shape.experts;
    if (sequence_of_experts || run.config.parallel.cp > 1 || run.shape.encoder_decoder() || run.shape.sentence_head ||
        experts_differ || run.shape.latents || run.shape.wide_stream ||
        (run.config.fp8.format != "none" && !plan::multiplies_in_8_bits(run)) ||
        !(run.config.model == config::LayerVariant{}) ||
        !(run.config.model == config::AttentionVariant{.add_qkv_bias = run.config.model.add_qkv_bias}))
      throw ConfigError(rule_got_fix(
          "--launches is for a GPT of GPT-2's, Llama's or Mixtral's layers without parallel.cp, a float32 "
          "residual stream, fp8.format of sizes that a GPU's units do not multiply and, of experts, parallel.sp, "
          "parallel.etp, capacities, jitter and random routing.",
          experts_differ ? "parallel.etp, a capacity, jitter or random routing of experts"
                         : "another model, or one of the other options",
          experts_differ ? "--etp 0 --moe-expert-capacity-factor 0 --moe-input-jitter-eps 0 "
                           "--moe-router-force-load-balancing false"
                         : "a GPT's recipe, --sp false --cp 1 --fp8-format none --fp32-residual-connection false"));
    print_text(plan::launch_text(plan::layer_launches(run)));
    return kDone;
  }
  const bool as_picture = draws_picture(options.draw);
  std::optional<Drawing> drawing;
  if (run.parts.size() > 1 || !options.draw.empty() || !options.trace.empty()) drawing = drawing_of(run, options.trace);
  const std::string text =
      options.as_json ? plan::report(run, options.processor).dump() + "\n" : plan::report_text(run, options.processor);
  if (!options.draw.empty()) {
    const std::string title = concat(plan::schedule_text(run), ", ", drawing->program.placement.num_ranks(), " ranks, ",
                                     drawing->program.placement.num_stages(), " stages, ",
                                     drawing->program.num_microbatches, " microbatches");
    write_file(options.draw, as_picture ? schedule::draw_svg(drawing->simulated, title,
                                                             drawing->measured ? &*drawing->measured : nullptr)
                                        : schedule::to_text(drawing->program));
  }
  if (!options.traffic.empty()) draw_traffic(run, given.hardware, options.traffic);
  print_text(text);
  if (drawing && !options.as_json) print_text(picture_text(*drawing, plan::schedule_text(run)));
  return kDone;
}

}  // namespace megatron::app
