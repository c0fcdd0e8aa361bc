#pragma once
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/base/ranks/launched_rank.h"

// Who takes part in a run whose ranks have a supervisor each, and what rank 0's supervisor, or the one that has taken
// its place, tells the others. Pure: knows no connection. A rank's number here is always the one that the launcher
// gave.
namespace megatron::supervise {

/// Supervisors of one host.
struct RosterHost {
  std::string address;     ///< as others reach it
  std::vector<int> ranks;  ///< that of the meeting's keeper first, the others ascending
  bool operator==(const RosterHost&) const = default;
};

/// All supervisors that take part, the keeper's host first.
using Roster = std::vector<RosterHost>;

/// The roster of `ranks`, each with the address of its host, where `keeper` keeps the meeting.
Roster roster_of(const std::vector<std::pair<int, std::string>>& ranks, int keeper);

/// Who keeps the meeting next where the keeper is gone, in this order: the first of each other host, then the others of
/// its own; at most three. Each with its host's address.
std::vector<std::pair<int, std::string>> heirs_of(const Roster& roster);

/// Whether the supervisors that are `present` may continue the run without the others: at most one part of a divided
/// network may. They need more than half of the hosts of `before`, or half of them with the one that decides, which
/// keeps the meeting. Hosts all of whose supervisors are `dead`, which a host that answers has said, do not count; of
/// that of a keeper that is dead it is enough that none is present, since the others know of no other death.
bool may_continue(const Roster& before, const std::set<int>& present, const std::set<int>& dead);

/// The first `count` ranks of the roster without those in `left_out`: rank r of the next attempt is entry r.
std::vector<int> seats_of(const Roster& roster, const std::set<int>& left_out, int count);

/// The place that entry `index` of `seats` has among them: its rank, and which of its host's it is. The store is at
/// `store`'s address and port.
LaunchedRank seat_at(const Roster& roster, const std::vector<int>& seats, int index, const LaunchedRank& store);

/// What a supervisor is told to do next.
struct StartOrder {
  int attempt = -1;
  int restarts = 0;                       ///< so far
  Roster roster = {};                     ///< who takes part, spares included
  bool is_spare = false;                  ///< the rank waits for another attempt
  std::optional<LaunchedRank> seat = {};  ///< nothing: the one that its launcher has given
  std::vector<std::string> words = {};    ///< to be added to the job's: the layout
};

/// An order as a message, and back; nothing where it is none.
std::string order_message(const StartOrder& order);
std::optional<StartOrder> order_in(const std::string& message);

}  // namespace megatron::supervise
