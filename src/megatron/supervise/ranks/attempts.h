#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "megatron/base/machine/child_process.h"
#include "megatron/supervise/child.h"
#include "megatron/supervise/ranks/meeting.h"
#include "megatron/supervise/ranks/roster.h"

// Attempts at a run whose ranks are a launcher's: each of its processes supervises one rank, a child of its own. One,
// at first that of rank 0, decides and counts; the others start and end their child when it says so. Where others are
// gone it continues with those that are left; where it is gone itself, another takes its place.
namespace megatron::supervise {

struct RankLimits {
  double join_s = 600;  ///< how long the supervisors wait for one another at the start: parallel.timeout_s
  double hang_s = 660;  ///< how much later than the first rank another may end
  double dump_s = 3;    ///< what run_child() gives a rank to write what it does
};

/// What has become of an attempt: the end of the rank that has failed, where several have the one with the highest exit
/// code, since those that follow another's failure exit with 1; of those that were ended because another had failed,
/// which `late` names, only where there is no other, and one that is lost before all others. Where none has failed, the
/// highest code of all. `stopped` where it is of any: whose is to count is run()'s to say.
ChildEnd end_of(const std::map<int, ChildEnd>& ranks, const std::set<int>& late);

/// A message of a rank's supervisor, and back; nothing where it is none.
std::string end_message(int attempt, const ChildEnd& end);
std::optional<std::pair<int, ChildEnd>> end_in(const std::string& message);

/// What a supervisor needs that takes the place of another.
struct Inheritance {
  StartOrder last;      ///< what that one has told
  int from = 0;         ///< its rank
  bool is_dead = true;  ///< its host has said that it has ended; else it was silent
};

/// The supervisor that decides.
class Attempts {
 public:
  /// `place`: of this process, as the launcher has it. Throws as Meeting does.
  Attempts(const LaunchedRank& place, const HeldSignals& signals, const RankLimits& limits,
           const std::optional<Inheritance>& from = {});

  int rank() const { return place_.rank; }  ///< this supervisor's

  /// Waits for the supervisors: at the run's start for all, within RankLimits::join_s; where this one has taken
  /// another's place for those of the last attempt, for as long as they may need to notice; after a loss until whoever
  /// has only been cut off has ended its rank. Returns an end where a signal asked for that meanwhile, this process or
  /// another (is_asked_to_end()). Throws std::runtime_error where one is not there at the start, and where those who
  /// are there may not continue alone (may_continue()).
  std::optional<ChildEnd> gather();
  /// Ranks that an attempt may have now.
  int available() const;
  /// Later attempts are without this rank, unless it is this supervisor's own.
  void leave_out(int rank);
  /// Hears who comes and goes while a restart is waited for, for at most so long, or until there is a signal.
  void listen(int wait_ms);
  /// Whether a supervisor was asked to end, by a signal after its rank had ended, that of a host which has lost nobody.
  /// Another host's are asked by who started them, because of that loss: they are left instead.
  bool is_asked_to_end() const;

  /// Lets `ranks` ranks, at most available(), start `program` with `order.words`, and waits until all have ended. The
  /// caller fills in `attempt`, `restarts` and `words` of the order. Once a rank has failed the others have 10 s to end
  /// by themselves. `is_stuck`: of this rank, as in run_child().
  ChildEnd run(const ProgramStart& program, StartOrder order, int ranks, const std::function<bool()>& is_stuck);
  /// All supervisors exit with this, and end what still runs.
  void finish(int code);

 private:
  void hear(int wait_ms);
  void note(int rank, const ChildEnd& end);
  void note_losses();
  void stop();
  bool is_late() const;
  void wait_for_others();
  std::set<int> running() const;
  std::set<int> dead() const;
  std::set<int> awaited() const;
  bool has_asked(int rank) const;
  bool is_of_torn_host(int rank) const;
  void leave_torn_hosts();
  void require_majority();

  const LaunchedRank place_;
  Meeting meeting_;
  const HeldSignals& signals_;
  const RankLimits limits_;
  bool has_inherited_ = false, has_gathered_ = false;
  std::set<int> left_out_;
  Roster roster_;                                       ///< of the last attempt, or of what was inherited
  std::set<int> known_dead_;                            ///< besides those of whom the meeting knows
  std::chrono::steady_clock::time_point settled_at_{};  ///< by then ranks that were cut off have ended
  int attempt_ = 0;
  bool is_under_way_ = false;  ///< the attempt
  std::set<int> asked_;        ///< ranks whose supervisor was asked to end after its rank had ended, or while it waited
  std::set<int> left_;         ///< those that had no rank, were asked to end and have left: no loss of their hosts
  std::vector<int> seats_;     ///< of the attempt
  std::map<int, ChildEnd> ends_;
  std::optional<std::chrono::steady_clock::time_point> stop_at_;  ///< when the ranks were told to end
};

/// The supervisor of another rank: what to exit with, 0 where it was asked to end while it waited for a place; or that
/// it is the one to decide from now on, as an Attempts of its own. Throws std::runtime_error where the one that decides
/// does not come, or is gone with those that follow it.
std::variant<int, Inheritance> follow(const LaunchedRank& place, const ProgramStart& program,
                                      const HeldSignals& signals, const RankLimits& limits);

}  // namespace megatron::supervise
