#pragma once
#include <cstdint>

#include "megatron/plan/rules.h"

// The program that the ranks of a pipeline execute. With one rank it is accumulation: the runtime knows nothing else.
namespace megatron::plan {

/// The schedule that parallel.pp_schedule names, for a pipeline of run.parts. Reads a file where it names one and
/// validates it; simulates where it is auto, at the full batch. Sets run.schedule_name, run.schedule_file and
/// run.placement. Throws ConfigError where the schedule does not suit the run: stages a rank, ranks, stages or
/// microbatches.
void resolve_schedule(ResolvedRun& run);

/// A step's program of `num_microbatches` microbatches on each data-parallel rank: computation, messages as
/// parallel.pp_communication says, reduction of gradients. Validated. Throws ConfigError where a schedule file is of
/// another number of microbatches.
schedule::Program pipeline_program(const ResolvedRun& run, std::int64_t num_microbatches);

/// The same without backward, for evaluation.
schedule::Program evaluation_program(const ResolvedRun& run, std::int64_t num_microbatches);

}  // namespace megatron::plan
