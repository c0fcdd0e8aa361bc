#include "megatron/supervise/ranks/roster.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "megatron/base/text/json.h"

namespace megatron::supervise {
namespace {

using Json = nlohmann::json;

bool has_any(const std::set<int>& of, const RosterHost& host) {
  return std::ranges::any_of(host.ranks, [&](int rank) { return of.contains(rank); });
}

const RosterHost& host_of(const Roster& roster, int rank) {
  return *std::ranges::find_if(roster, [&](const RosterHost& host) { return has_any({rank}, host); });
}

constexpr int kMostRanks = 1 << 20;

/// Ranks in as few numbers as go: those of a host are consecutive, or each n-th, as a launcher counts them. Each entry
/// is the first of a row, how many it has, and what the next is more.
Json rows_of(const std::vector<int>& ranks) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < ranks.size();) {
    const int step = i + 1 < ranks.size() ? ranks[i + 1] - ranks[i] : 0;
    int count = 1;
    for (std::size_t j = i + 1; j < ranks.size() && ranks[j] - ranks[j - 1] == step; ++j) ++count;
    rows.push_back({ranks[i], count, step});
    i += static_cast<std::size_t>(count);
  }
  return rows;
}

std::vector<int> ranks_in(const Json& rows) {
  std::vector<int> ranks;
  for (const Json& row : rows) {
    const int count = row.at(1);
    if (count > kMostRanks - static_cast<int>(ranks.size())) throw std::runtime_error("no ranks of a run");
    for (int i = 0; i < count; ++i) ranks.push_back(row.at(0).get<int>() + i * row.at(2).get<int>());
  }
  return ranks;
}

}  // namespace

Roster roster_of(const std::vector<std::pair<int, std::string>>& ranks, int keeper) {
  Roster roster;
  for (const auto& [rank, address] : ranks) {
    auto host = std::ranges::find(roster, address, &RosterHost::address);
    if (host == roster.end()) host = roster.insert(roster.end(), {address, {}});
    host->ranks.push_back(rank);
  }
  const auto order = [keeper](int rank) { return rank == keeper ? -1 : rank; };
  for (RosterHost& host : roster) std::ranges::sort(host.ranks, {}, order);
  std::ranges::sort(roster, {}, [&](const RosterHost& host) { return order(host.ranks.front()); });
  return roster;
}

std::vector<std::pair<int, std::string>> heirs_of(const Roster& roster) {
  constexpr std::size_t kMost = 3;
  std::vector<std::pair<int, std::string>> heirs;
  for (std::size_t h = 1; h < roster.size(); ++h) heirs.emplace_back(roster[h].ranks.front(), roster[h].address);
  for (std::size_t r = 1; r < roster.front().ranks.size(); ++r)
    heirs.emplace_back(roster.front().ranks[r], roster.front().address);
  heirs.resize(std::min(heirs.size(), kMost));
  return heirs;
}

bool may_continue(const Roster& before, const std::set<int>& present, const std::set<int>& dead) {
  const int keeper = before.front().ranks.front();
  int here = 0, all = 0;
  for (const RosterHost& host : before) {
    const bool is_here = has_any(present, host);
    const bool has_died = std::ranges::all_of(host.ranks, [&](int rank) { return dead.contains(rank); });
    const bool has_lost_keeper = host.ranks.front() == keeper && dead.contains(keeper);  // of the others nobody knows
    if (!is_here && (has_died || has_lost_keeper)) continue;
    ++all;
    here += is_here ? 1 : 0;
  }
  return 2 * here > all || (2 * here == all && present.contains(keeper));
}

std::vector<int> seats_of(const Roster& roster, const std::set<int>& left_out, int count) {
  std::vector<int> seats;
  for (const RosterHost& host : roster)
    std::ranges::remove_copy_if(host.ranks, std::back_inserter(seats), [&](int r) { return left_out.contains(r); });
  seats.resize(std::min(seats.size(), static_cast<std::size_t>(count)));
  return seats;
}

LaunchedRank seat_at(const Roster& roster, const std::vector<int>& seats, int index, const LaunchedRank& store) {
  LaunchedRank seat = store;
  seat.rank = index;
  seat.world_size = static_cast<int>(seats.size());
  seat.local_rank = seat.local_size = 0;
  const RosterHost& host = host_of(roster, seats[static_cast<std::size_t>(index)]);
  for (int i = 0; i < seat.world_size; ++i) {
    if (!has_any({seats[static_cast<std::size_t>(i)]}, host)) continue;
    ++seat.local_size;
    if (i < index) ++seat.local_rank;
  }
  return seat;
}

std::string order_message(const StartOrder& order) {
  Json object = {{"start", order.attempt},
                 {"restarts", order.restarts},
                 {"hosts", Json::array()},
                 {"spare", order.is_spare},
                 {"words", order.words}};
  for (const RosterHost& host : order.roster) object["hosts"].push_back({host.address, rows_of(host.ranks)});
  if (order.seat) {
    const LaunchedRank& seat = *order.seat;
    object["seat"] = {seat.rank, seat.world_size, seat.local_rank, seat.local_size, seat.port};
    object["address"] = seat.address;
    object["store_is_kept"] = seat.store_is_kept;
  }
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<StartOrder> order_in(const std::string& message) {
  const auto object = try_parse_json(message);
  if (!object || !object->is_object()) return std::nullopt;
  try {
    StartOrder order{.attempt = object->at("start"), .restarts = object->at("restarts")};
    for (const Json& host : object->at("hosts")) order.roster.push_back({host.at(0), ranks_in(host.at(1))});
    order.is_spare = object->at("spare");
    order.words = object->at("words").get<std::vector<std::string>>();
    if (!object->contains("seat")) return order;
    const std::vector<int> numbers = object->at("seat");
    LaunchedRank seat;
    seat.rank = numbers.at(0);
    seat.world_size = numbers.at(1);
    seat.local_rank = numbers.at(2);
    seat.local_size = numbers.at(3);
    seat.port = numbers.at(4);
    seat.address = object->at("address");
    seat.store_is_kept = object->at("store_is_kept");
    order.seat = seat;
    return order;
  } catch (const std::exception&) {  // another type, or a member that is missing
    return std::nullopt;
  }
}

}  // namespace megatron::supervise
