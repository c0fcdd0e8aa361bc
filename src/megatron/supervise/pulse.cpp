#include "megatron/supervise/pulse.h"

#include <string_view>
#include <utility>

namespace megatron::supervise {
namespace {

/// Of a rank that opens data, builds an index of it, or loads a checkpoint: it has no operations that could be counted.
bool reads_files(std::string_view phase) {
  return phase == "starting" || phase == "loading" || phase == "rolling back";
}

}  // namespace

void Pulse::start(const std::optional<Heartbeat>& heartbeat, Clock::time_point now) {
  before_unix_s_ = heartbeat ? heartbeat->unix_s : 0;
  operations_ = -1;
  since_ = now;
}

bool Pulse::has_stopped(const std::optional<Heartbeat>& heartbeat, Clock::time_point now) {
  constexpr double kLongerWhereItReads = 10;
  const bool beats = heartbeat && heartbeat->unix_s != before_unix_s_;
  if (beats && std::exchange(operations_, heartbeat->operations) != heartbeat->operations) since_ = now;
  const bool reads = !beats || reads_files(heartbeat->phase);
  const double limit_s = reads ? kLongerWhereItReads * limit_s_ : limit_s_;
  return std::chrono::duration<double>(now - since_).count() > limit_s;
}

}  // namespace megatron::supervise
