#pragma once
#include <string>
#include <vector>

#include "megatron/schedule/passes.h"
#include "megatron/schedule/program.h"
#include "megatron/schedule/simulate.h"
#include "megatron/schedule/table.h"

// Shape -> Program of computations alone, by the generators of the table and a few that no name asks for. Pure
// functions. Those of training declare the peak of live activations (Program::max_live).
namespace megatron::schedule {

/// The program of a schedule. Throws ConfigError where the shape does not suit it: stages per rank, microbatches,
/// groups of them.
Program generate(const ScheduleInfo& info, const Shape& shape);
/// generate() by name; one rank of one stage accumulates, "auto" is choose(shape). Throws ConfigError for other names.
Program generate(const std::string& name, const Shape& shape);

/// No pipeline: forward and backward of each microbatch in turn.
Program accumulate(const Shape& shape);
/// Evaluation, looped placement.
Program forward_only(const Shape& shape);
/// Evaluation of a model that lies on ranks in another way, such as V-shaped.
Program forward_only(const Placement& placement, int num_microbatches);

/// A way to cut the model that choose() may take.
struct Candidate {
  Shape shape;
  Costs costs;
  /// By stage: bytes besides the activations while its backward runs (recomputed layers); empty: none. A rank needs the
  /// most of its stages' at its peak; of a stage all of whose microbatches are partial, the second.
  std::vector<double> backward_bytes = {}, partial_backward_bytes = {};
  int partial_microbatches = 0;  ///< for mark_partial()
  int fewest_microbatches = 0;   ///< of a step of the run; 0: as many as the shape has
};

struct Choice {
  std::string name;
  Program program;    ///< computations alone
  Timeline timeline;  ///< of the program with its messages
};
/// "auto": of the schedules that take a candidate's stages per rank and its fewest microbatches, the one with the least
/// simulated makespan with messages as `how` says, among those whose peak of bytes on every rank is at most
/// `memory_limit_bytes` (0: no limit); of equals that of the first candidate, and there the default, or the first of
/// the table. Throws ConfigError that lists the peaks, and the least as the fix, where none fits.
Choice choose(const std::vector<Candidate>& candidates, Communication how, double memory_limit_bytes);
/// Of one shape, with overlapped messages.
Choice choose(const Shape& shape, const Costs& costs, double memory_limit_bytes);

}  // namespace megatron::schedule
