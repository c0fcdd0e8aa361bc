#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/schedule/program.h"

// The table of pipeline schedules. A new schedule is a generator, schedules/NAME.cpp, and a row in table.cpp: --help,
// errors, `auto`, docs/schedules, the benchmark and the tests ask the table.
namespace megatron::schedule {

struct Shape {
  int num_ranks = 1;
  int num_chunks = 1;  ///< stages per rank
  int num_microbatches = 1;
  int microbatch_group = 0;  ///< interleaved: microbatches that one chunk takes before the next does; 0: num_ranks
};

/// The computations of one rank, in order.
using Generator = std::vector<Op> (*)(const Shape& shape, int rank);

/// A row of the table: one schedule.
struct ScheduleInfo {
  const char* name;                    ///< of --schedule: "zb-v"
  const char* title;                   ///< "ZB-V"
  int min_chunks = 1, max_chunks = 1;  ///< stages per rank
  /// Stages lie on ranks as Placement::v_shaped(), which is for two per rank; otherwise as looped().
  bool v_shaped = false;
  int microbatches_per_rank = 0;  ///< a step has at least so many for each pipeline rank, and one in any case
  bool is_default = false;        ///< what runs its numbers of stages per rank where no schedule is named
  bool takes_groups = false;      ///< Shape::microbatch_group has an effect
  bool splits_backward = false;   ///< some BackwardInput and BackwardWeight instead of Backward
  Generator generator;
  const char* text;    ///< what it does, its bubble and memory: for docs/schedules
  const char* source;  ///< who published it

  bool takes(int num_chunks) const { return min_chunks <= num_chunks && num_chunks <= max_chunks; }
  int min_microbatches(int num_ranks) const {
    return microbatches_per_rank == 0 ? 1 : microbatches_per_rank * num_ranks;
  }
};

/// Every schedule, in the order of the documentation.
std::span<const ScheduleInfo> schedules();

/// The word that lets choose() pick a schedule.
inline constexpr const char* kAuto = "auto";

/// A schedule's name, or "auto".
bool is_name(std::string_view text);
/// The row of that name. Throws ConfigError that lists the names and "auto", with the nearest as the fix.
const ScheduleInfo& schedule_named(const std::string& name);
/// What runs `num_chunks` stages per rank, from 1 to kMaxStages, where no schedule is named.
const ScheduleInfo& default_schedule(int num_chunks);

/// "gpipe, 1f1b, …": the names of all schedules, for help and errors;
std::string schedule_names();
/// of those that take so many stages per rank;
std::string schedule_names(int num_chunks);
/// of those for which a member is true.
std::string schedule_names(bool ScheduleInfo::*property);

}  // namespace megatron::schedule
