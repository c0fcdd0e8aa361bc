#pragma once
#include <set>
#include <vector>

#include "megatron/schedule/program.h"

namespace megatron::schedule {

/// What the operations of a program cost, in seconds (or any unit) and bytes. By stage; an empty vector: the default
/// named, for every stage.
struct Costs {
  std::vector<double> forward = {};                 ///< 1
  std::vector<double> backward_input = {};          ///< 1
  std::vector<double> partial_backward_input = {};  ///< as backward_input; of partial operations (Op::partial)
  std::vector<double> backward_weight = {};         ///< 1; a whole backward takes both
  /// 1: kept from a forward until its backward (or backward of weights) is done.
  std::vector<double> activation_bytes = {};
  std::vector<double> partial_activation_bytes = {};  ///< as activation_bytes; of partial operations
  std::vector<double> weight_bytes = {};          ///< 0: of these, what is kept from BackwardInput to BackwardWeight
  std::vector<double> partial_weight_bytes = {};  ///< as weight_bytes; of partial operations
  double latency = 0;                             ///< of a message
  double message_bytes = 0;                       ///< of a boundary's activation, and of its gradient
  double bandwidth = 0;                           ///< bytes per second of a link; 0: without bound
};

/// An op's time on its rank. Communication takes a slot only while the rank waits for it.
struct Slot {
  Op op;
  double start = 0, end = 0;
};

struct MemoryPoint {
  double time = 0, bytes = 0;
};

/// What a program's execution looks like: simulated, or measured in a run (pipeline/). Times from the program's start.
struct Timeline {
  Placement placement;
  int num_microbatches = 0;
  std::vector<std::vector<Slot>> ranks;  ///< in order of time
  double makespan = 0;
  double bubble = 0;               ///< share of all ranks' time in which nothing is computed
  std::vector<double> idle;        ///< by rank: seconds of the makespan without computation
  std::vector<int> peak_live;      ///< by rank: most activations (of one stage and microbatch) alive at once
  std::vector<double> peak_bytes;  ///< by rank
  std::vector<std::vector<MemoryPoint>> memory;  ///< by rank: activation bytes from each point of time on
};

/// Executes a valid program, lowered or not, on a virtual clock. A message sets out once both of its ends are posted
/// and arrives after latency + message_bytes / bandwidth; from one rank to another there is one at a time. Without
/// communication ops a dependency across ranks is a message posted as soon as it is made. A forward-only program keeps
/// an activation only while it is computed. Throws std::logic_error where it cannot continue; validate() says why.
Timeline simulate(const Program& program, const Costs& costs = {});

/// `costs` with the mean time of each stage's operations in a measured timeline, whose messages took no time of their
/// own. A whole backward counts half for its input, half for its weights.
Costs measured_costs(const Timeline& measured, Costs costs);

/// The stages of a rank all of whose microbatches are partial (Op::partial).
std::set<int> partial_stages(const Timeline& timeline, int rank);

/// Fills in everything that follows from `placement` and `ranks`: for timelines that were measured.
void summarize(Timeline& timeline, const Costs& costs);

}  // namespace megatron::schedule
