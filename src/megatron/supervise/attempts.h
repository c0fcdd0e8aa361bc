#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/machine/child_process.h"
#include "megatron/supervise/child.h"
#include "megatron/supervise/meeting.h"

// Attempts at a run whose ranks are a launcher's: each of its processes supervises one rank, a child of its own. That
// of rank 0 alone decides and counts; the others start and end their child when it says so.
namespace megatron::supervise {

struct RankLimits {
  double join_s = 600;  ///< how long the supervisors wait for one another at the start
  double hang_s = 660;  ///< how much later than rank 0 another may end
  double dump_s = 3;    ///< what run_child() gives a rank to write what it does
};

/// What has become of an attempt: the end of the rank that has failed, where several have the one with the highest exit
/// code, since those that follow another's failure exit with 1; of those that were ended because another had failed,
/// which `late` names, only where there is no other. Where none has failed, the highest code of all. `stopped` where it
/// is of any.
ChildEnd end_of(const std::vector<ChildEnd>& ranks, const std::set<int>& late);

/// A message of a rank's supervisor, and back; nothing where it is none.
std::string end_message(int attempt, const ChildEnd& end);
std::optional<std::pair<int, ChildEnd>> end_in(const std::string& message);

/// Rank 0's supervisor.
class Attempts {
 public:
  /// Throws as Meeting does.
  Attempts(const RendezvousAddress& place, const HeldSignals& signals, const RankLimits& limits);

  /// Lets all ranks start `program`, and waits until all have ended. Once one has failed the others have 10 s to end by
  /// themselves. `is_stuck`: of rank 0, as in run_child(). Throws std::runtime_error where a supervisor does not come,
  /// is gone or is silent: nobody can start that rank again then but the launcher.
  ChildEnd run(const ProgramStart& program, int attempt, const std::function<bool()>& is_stuck);
  /// All supervisors exit with this, and end what still runs.
  void finish(int code);

 private:
  std::optional<ChildEnd> gather();
  void hear(int wait_ms);
  void note(int rank, const ChildEnd& end);
  void stop();
  bool is_late() const;
  void wait_for_others();
  void require_all() const;
  std::set<int> running() const;

  Meeting meeting_;
  const HeldSignals& signals_;
  const RankLimits limits_;
  int attempt_ = 0;
  bool asked_to_end_ = false;  ///< by a signal after rank 0 had ended
  std::vector<std::optional<ChildEnd>> ends_;
  std::optional<std::chrono::steady_clock::time_point> stop_at_;  ///< when the ranks were told to end
};

/// The supervisor of another rank: what to exit with. Throws std::runtime_error where rank 0's does not come or is
/// gone.
int follow(const RendezvousAddress& place, const ProgramStart& program, const HeldSignals& signals,
           const RankLimits& limits);

}  // namespace megatron::supervise
