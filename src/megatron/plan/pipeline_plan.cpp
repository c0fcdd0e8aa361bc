#include "megatron/plan/pipeline_plan.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/plan/cost/memory.h"
#include "megatron/schedule/passes.h"
#include "megatron/schedule/text.h"
#include "megatron/schedule/validate.h"

namespace megatron::plan {
namespace {

using schedule::Kind;
using schedule::Program;

/// The program that the file of parallel.pp_schedule says.
Program program_of(const ResolvedRun& run, const std::string& text) {
  const std::string& path = run.config.parallel.pp_schedule;
  Program program = schedule::parse_program(text, path);
  if (program.forward_only)
    throw ConfigError(rule_got_fix(
        "a schedule file must have the backward of every microbatch.",
        path + ", which is forward-only: a run would train nothing",
        "without the line forward-only, with backward operations, as `megatron plan --draw schedule.txt` writes them"));
  const auto equal = [&](const char* what, std::int64_t in_file, std::int64_t wanted, const char* option) {
    if (in_file != wanted)
      throw ConfigError(rule_got_fix(concat("the schedule file ", path, " must have the run's ", what, "."),
                                     concat(in_file, " in the file, ", wanted, " in the run (", option, ")"),
                                     "megatron plan RECIPE … --draw schedule.txt writes one for the run"));
  };
  equal("pipeline ranks", program.placement.num_ranks(), run.config.parallel.pp, "parallel.pp");
  equal("stages", program.placement.num_stages(), static_cast<std::int64_t>(run.parts.size()),
        "parallel.pp x vpp, or parallel.pp_layout");
  equal("microbatches", program.num_microbatches, run.microbatches_per_step,
        "train.global_batch_size / (micro_batch_size x dp)");
  schedule::validate(program);
  return program;
}

bool has(const Program& program, Kind kind) {
  return std::any_of(program.ranks.begin(), program.ranks.end(), [kind](const std::vector<schedule::Op>& ops) {
    return std::any_of(ops.begin(), ops.end(), [kind](const schedule::Op& op) { return op.kind == kind; });
  });
}

Program lowered(const ResolvedRun& run, Program program) {
  program =
      schedule::mark_partial(std::move(program), static_cast<int>(run.config.train.recompute_partial_microbatches));
  if (!schedule::has_communication(program))
    program = schedule::insert_communication(program, schedule::communication_of(run.config.parallel.pp_communication));
  if (!program.forward_only && !has(program, Kind::ReduceGradients))
    program = schedule::insert_gradient_reduction(std::move(program));
  schedule::validate(program);
  return program;
}

/// Makes the program of every batch that the run will have, the smallest first, as long as that takes no time: what
/// generators make is valid for any number of microbatches, a file is for one.
void check_programs(const ResolvedRun& run) {
  constexpr std::int64_t kMaxPairs = 1 << 16;  // of stage and microbatch
  const auto num_stages = static_cast<std::int64_t>(run.parts.size());
  const std::int64_t unit = run.config.train.micro_batch_size * run.grid.sample_shares();
  std::int64_t pairs = 0;
  for (std::int64_t k = 0; k < run.batch_schedule.num_sizes(); ++k) {
    const std::int64_t microbatches = run.batch_schedule.size(k) / unit;
    pairs += num_stages * microbatches;
    if (pairs > kMaxPairs) break;
    pipeline_program(run, microbatches);
  }
}

/// The model in `chunks` stages per rank; nothing where its layers do not divide so.
std::optional<std::vector<StageSpec>> parts_in(const config::RunConfig& config, const ModelShape& shape, int chunks) {
  config::ParallelConfig parallel = config.parallel;
  parallel.vpp = chunks;
  try {
    return stage_parts(parallel, shape.num_layers, split_costs(config, shape, parallel.pp * chunks));
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

/// Of a data-parallel rank in the smallest step of the run.
int fewest_microbatches(const ResolvedRun& run) {
  const std::int64_t unit = run.config.train.micro_batch_size * run.grid.sample_shares();
  std::int64_t fewest = run.microbatches_per_step;
  for (std::int64_t k = 0; k < run.batch_schedule.num_sizes(); ++k)
    fewest = std::min(fewest, run.batch_schedule.size(k) / unit);
  return static_cast<int>(fewest);
}

/// Some schedules need a number of microbatches: fewer are refused with the batch that has enough.
void check_microbatches(const ResolvedRun& run) {
  const int pp = run.config.parallel.pp, fewest = fewest_microbatches(run);
  const schedule::ScheduleInfo& info = schedule::schedule_named(run.schedule_name);
  const int needed = info.min_microbatches(pp);
  if (fewest >= needed) return;
  const std::string other =
      concat("--schedule ", schedule::default_schedule(static_cast<int>(run.parts.size()) / pp).name);
  const bool grows = !run.config.schedule.rampup_batch_size.empty();
  const std::int64_t batch = needed * run.config.train.micro_batch_size * run.grid.sample_shares();
  throw ConfigError(
      rule_got_fix(concat("schedule ", info.name, " has at least ", info.microbatches_per_rank,
                          " microbatches per pipeline rank in every step."),
                   concat(fewest, " microbatches", grows ? " in the smallest step" : "", ", ", pp, " pipeline ranks"),
                   grows ? other : concat("--global-batch-size ", batch, ", or ", other)));
}

void choose_schedule(ResolvedRun& run) {
  const config::ParallelConfig& parallel = run.config.parallel;
  std::vector<std::vector<StageSpec>> cuts = {run.parts};
  // Where the options leave it open, two stages per rank as well, of which the teacher must have a layer for each: less
  // bubble for more messages.
  if (static_cast<int>(run.parts.size()) == parallel.pp && parallel.pp > 1 && parallel.layers_per_virtual_stage == 0 &&
      parallel.pipeline_split_rank == 0)
    if (auto two = parts_in(run.config, run.shape, 2);
        two && (!run.teacher || std::ssize(*two) <= run.teacher->shape.num_layers))
      cuts.push_back(std::move(*two));
  std::vector<schedule::Candidate> candidates;
  for (const std::vector<StageSpec>& parts : cuts) {
    schedule::Shape shape = pipeline_shape(run, run.microbatches_per_step);
    shape.num_chunks = static_cast<int>(parts.size()) / parallel.pp;
    schedule::Candidate candidate{shape,
                                  stage_costs(run.config, run.shape, parts),
                                  {},
                                  {},
                                  static_cast<int>(run.config.train.recompute_partial_microbatches),
                                  fewest_microbatches(run)};
    for (const StageSpec& part : parts) {
      candidate.backward_bytes.push_back(static_cast<double>(recomputed_bytes(run.config, run.shape, part)));
      candidate.partial_backward_bytes.push_back(
          static_cast<double>(recomputed_bytes(run.config, run.shape, part, true)));
    }
    candidates.push_back(std::move(candidate));
  }
  schedule::Choice choice = schedule::choose(candidates, schedule::communication_of(parallel.pp_communication),
                                             static_cast<double>(parallel.pp_memory_limit));
  run.schedule_name = choice.name;
  run.placement = std::move(choice.program.placement);
  for (std::vector<StageSpec>& parts : cuts)
    if (static_cast<int>(parts.size()) == run.placement.num_stages()) run.parts = std::move(parts);
}

}  // namespace

namespace {

/// parallel.first_stage_layers and last_stage_layers count the layers of ranks; stage_parts() takes ranks to hold each
/// pp-th stage.
void check_ends_given(const ResolvedRun& run) {
  const config::ParallelConfig& parallel = run.config.parallel;
  if (parallel.first_stage_layers == 0 && parallel.last_stage_layers == 0) return;
  const int pp = run.grid.size(Axis::Pp), stages = run.placement.num_stages();
  if (stages % pp == 0 && run.placement == schedule::Placement::looped(pp, stages / pp)) return;
  throw ConfigError(rule_got_fix(
      "parallel.first_stage_layers and last_stage_layers need a schedule that gives ranks each pp-th stage.",
      schedule_text(run), "--parallel.pp-layout with the layers of each stage"));
}

}  // namespace

schedule::Shape pipeline_shape(const ResolvedRun& run, std::int64_t num_microbatches) {
  if (num_microbatches < 1 || num_microbatches > schedule::kMaxMicrobatches)
    throw ConfigError(rule_got_fix(
        concat("a step must have from 1 to ", schedule::kMaxMicrobatches, " microbatches on each data-parallel rank."),
        concat(num_microbatches), "--global-batch-size 0 (one microbatch)"));
  const int pp = run.config.parallel.pp;
  return {.num_ranks = pp,
          .num_chunks = static_cast<int>(run.parts.size()) / pp,
          .num_microbatches = static_cast<int>(num_microbatches),
          .microbatch_group = run.config.parallel.microbatch_group_size};
}

bool is_from_file(const std::string& pp_schedule, const std::optional<std::string>& file) {
  return file && !pp_schedule.empty() && !schedule::is_name(pp_schedule);
}

void resolve_schedule(ResolvedRun& run, const std::optional<std::string>& file) {
  const schedule::Shape shape = pipeline_shape(run, run.microbatches_per_step);
  if (is_from_file(run.config.parallel.pp_schedule, file)) {
    run.schedule_file = program_of(run, *file);
    run.placement = run.schedule_file->placement;
  } else if (run.schedule_name == schedule::kAuto) {
    choose_schedule(run);
  } else {
    check_microbatches(run);
  }
  check_ends_given(run);
  if (shape.num_ranks > 1 || run.schedule_file) check_programs(run);
}

std::string schedule_text(const ResolvedRun& run) {
  if (run.schedule_file) return run.config.parallel.pp_schedule;
  return run.parts.size() == 1 ? "none" : run.schedule_name;
}

Program pipeline_program(const ResolvedRun& run, std::int64_t num_microbatches) {
  const schedule::Shape shape = pipeline_shape(run, num_microbatches);
  if (!run.schedule_file) return lowered(run, schedule::generate(run.schedule_name, shape));
  if (run.schedule_file->num_microbatches != num_microbatches)
    throw ConfigError(
        rule_got_fix("every step must have the number of microbatches of the schedule file.",
                     concat(run.schedule_file->num_microbatches, " in ", run.config.parallel.pp_schedule, ", ",
                            num_microbatches, " in a step of the growing batch (schedule.rampup_batch_size)"),
                     "leave --rampup-batch-size out, or --schedule auto"));
  return lowered(run, *run.schedule_file);
}

Program evaluation_program(const ResolvedRun& run, std::int64_t num_microbatches) {
  const schedule::Shape shape = pipeline_shape(run, num_microbatches);
  return lowered(run, schedule::forward_only(run.placement, shape.num_microbatches));
}

}  // namespace megatron::plan
