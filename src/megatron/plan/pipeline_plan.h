#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "megatron/plan/rules.h"

// The program that the ranks of a pipeline execute. With one rank it is accumulation: the runtime knows nothing else.
namespace megatron::plan {

/// Whether parallel.pp_schedule stands for `file`, what a schedule file says, and not for a schedule's name.
bool is_from_file(const std::string& pp_schedule, const std::optional<std::string>& file);

/// The schedule that parallel.pp_schedule names, for a pipeline of run.parts; that of `file` where it names one, which
/// is validated. Where it is auto, simulates at the full batch what suits parallel.vpp stages per rank and, where that
/// is 1 and the layers divide, what suits two; the same options always give the same choice. Sets run.parts,
/// run.schedule_name, run.schedule_file and run.placement. Throws ConfigError where the schedule does not suit the run:
/// stages per rank, ranks, stages, microbatches or parallel.pp_memory_limit.
void resolve_schedule(ResolvedRun& run, const std::optional<std::string>& file);

/// What to call the run's schedule: its name, its file, or "none" for a single stage, which accumulates.
std::string schedule_text(const ResolvedRun& run);

/// What a schedule's generator makes of a step of `num_microbatches` microbatches on each data-parallel rank. Throws
/// ConfigError where there are none, or too many.
schedule::Shape pipeline_shape(const ResolvedRun& run, std::int64_t num_microbatches);

/// A step's program of `num_microbatches` microbatches on each data-parallel rank: computation, messages as
/// parallel.pp_communication says, reduction of gradients. Validated. Throws ConfigError where a schedule file is of
/// another number of microbatches.
schedule::Program pipeline_program(const ResolvedRun& run, std::int64_t num_microbatches);

/// pipeline_program() without backward, for evaluation.
schedule::Program evaluation_program(const ResolvedRun& run, std::int64_t num_microbatches);

}  // namespace megatron::plan
