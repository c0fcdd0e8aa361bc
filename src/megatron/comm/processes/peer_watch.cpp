#include "megatron/comm/processes/peer_watch.h"

#include <algorithm>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/comm/group.h"

namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kBeat{200};
constexpr milliseconds kLateRanks{20'000};  ///< how long those are waited for that start when one has refused to

std::string key(const char* kind, int rank) { return concat("megatron/", kind, "/", rank); }
const std::string kFailure = "megatron/failure";
std::string failure_text(int rank, const std::string& reason) { return concat("rank ", rank, " failed: ", reason); }

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += concat(i ? ", " : "", ranks[i]);
  return text;
}

}  // namespace

std::string not_arrived(const std::vector<int>& missing, int size, milliseconds timeout) {
  return concat("rendezvous of ", size, " ranks: ", list_ranks(missing), " did not arrive within ",
                std::chrono::duration<double>(timeout).count(), " s, or with another MEGATRON_RUN_SECRET");
}

std::optional<std::string> told_failure(KeyStore& keys) { return keys.get(kFailure); }

PeerWatch::PeerWatch(std::shared_ptr<KeyStore> keys, int rank, int size, bool keeps_store)
    : keys_(std::move(keys)), rank_(rank), size_(size), keeps_store_(keeps_store), thread_([this] { watch(); }) {}

PeerWatch::~PeerWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
  try {
    keys_->set(key("ended", rank_), "1");
    const bool some_are_gone = !refused_ && (troubled() || gave_up_);
    const auto deadline = Clock::now() + (some_are_gone ? milliseconds(500) : milliseconds(5000));
    for (int r = 0; keeps_store_ && r < size_; ++r)
      while (!keys_->get(key("ended", r)) && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(5));
  } catch (const std::exception&) {  // the store is gone, and with it everybody who could read this
  }
}

std::vector<std::string> PeerWatch::meet(const std::string& mine, milliseconds timeout, const PeerCheck& check) {
  return come({.problem = {}, .says = mine}, timeout, check);
}

void PeerWatch::refuse(const Problem& problem, milliseconds timeout, const PeerCheck& check) {
  // A launcher that keeps the store asks there who failed first.
  if (!problem.is_config) keys_->set_once(kFailure, failure_text(rank_, problem.text));
  come({.problem = problem, .says = {}}, timeout, check);
  throw std::logic_error("PeerWatch::refuse: a problem must have a text");
}

std::vector<std::string> PeerWatch::come(const Word& mine, milliseconds timeout, const PeerCheck& check) {
  constexpr char kStarts = '+', kConfig = '2', kFails = '1';  // before what a rank says
  const auto start = Clock::now();
  auto deadline = start + timeout;
  const char kind = mine.problem.text.empty() ? kStarts : mine.problem.is_config ? kConfig : kFails;
  keys_->set(key("here", rank_), kind + (kind == kStarts ? mine.says : mine.problem.text));
  std::vector<std::string> said(static_cast<std::size_t>(size_));
  std::vector<Problem> problems(said.size());
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r) missing.push_back(r);
  const auto look = [&] {
    std::erase_if(missing, [&](int r) {
      const auto word = keys_->get(key("here", r));
      if (!word || word->empty()) return false;
      const auto place = static_cast<std::size_t>(r);
      (word->front() == kStarts ? said[place] : problems[place].text) = word->substr(1);
      problems[place].is_config = word->front() != kFails;
      if (word->front() == kStarts || refused_) return true;
      refused_ = true;
      // Those that start later find the store as long as its keeper waits for them.
      if (!keeps_store_) deadline = std::min(deadline, Clock::now() + kLateRanks);
      return true;
    });
  };
  while (true) {
    try {
      look();
      if (!missing.empty() && check) check();
    } catch (const PeerError&) {  // the keeper of the store has ended, as all do where one cannot start; or a rank has
      if (refused_) throw_problems(problems);
      gave_up_ = true;
      if (check) check();
      throw;
    }
    const bool is_late = Clock::now() > deadline;
    if (refused_ && (missing.empty() || is_late)) throw_problems(problems);
    if (missing.empty()) return said;
    if (is_late) throw PeerError(not_arrived(missing, size_, timeout));
    std::this_thread::sleep_for(milliseconds(10));
  }
}

std::size_t PeerWatch::add_group(std::string id, std::vector<int> world_ranks) {
  const std::lock_guard lock(mutex_);
  groups_.push_back({std::move(id), std::move(world_ranks), 0});
  return groups_.size() - 1;
}

std::uint64_t PeerWatch::enter(std::size_t group) {
  const std::lock_guard lock(mutex_);
  return groups_[group].entered++;
}

void PeerWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_changed_.wait_for(lock, kBeat, [&] { return stop_; })) {
    lock.unlock();
    try {
      publish();
      look_for_trouble();
    } catch (const std::exception&) {  // the store is gone or cut off: explain() finds out, if anybody asks
    }
    lock.lock();
  }
}

void PeerWatch::publish() {
  std::ostringstream text;
  {
    const std::lock_guard lock(mutex_);
    text << ++beat_;
    for (const GroupState& g : groups_) text << ' ' << g.id << ' ' << g.entered;
  }
  keys_->set(key("progress", rank_), text.str());
}

void PeerWatch::look_for_trouble() {
  if (troubled()) return;
  const auto failure = told_failure(*keys_);
  if (!failure) return;
  const std::lock_guard lock(mutex_);
  trouble_ = *failure;
  troubled_ = true;
}

void PeerWatch::fail(const std::string& reason) {
  gave_up_ = true;
  try {
    keys_->set_once(kFailure, failure_text(rank_, reason));
  } catch (const std::exception&) {  // nobody left to tell
  }
}

std::string PeerWatch::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

std::optional<PeerWatch::Progress> PeerWatch::progress_of(int rank) {
  const auto text = keys_->get(key("progress", rank));
  if (!text) return std::nullopt;
  std::istringstream in(*text);
  Progress p;
  in >> p.beat;
  std::string id;
  std::uint64_t entered = 0;
  while (in >> id >> entered) p.entered[id] = entered;
  return p;
}

std::vector<int> PeerWatch::silent(const std::vector<int>& ranks) {
  std::map<int, std::string> before;
  for (const int r : ranks)
    if (const auto p = progress_of(r)) before[r] = p->beat;
  std::this_thread::sleep_for(5 * kBeat / 2);
  std::vector<int> result;
  for (const int r : ranks) {
    const auto p = progress_of(r);
    if (r != rank_ && (!p || p->beat == before[r])) result.push_back(r);
  }
  return result;
}

std::string PeerWatch::describe_missing(const std::vector<int>& ranks, const GroupState& group) {
  const std::vector<int> dead = silent(ranks);
  std::string text;
  for (const int r : ranks) {
    const auto p = progress_of(r);
    const auto entered = p && p->entered.contains(group.id) ? p->entered.at(group.id) : 0;
    text += concat(text.empty() ? "" : "; ", "rank ", r, " did not arrive");
    if (keys_->get(key("ended", r))) {
      text += ": it has ended";
    } else if (std::find(dead.begin(), dead.end(), r) != dead.end()) {
      text += ": its process is gone or stopped";
    } else {
      text += concat(": it is alive and has started ", entered, " collectives of this group");
    }
  }
  return text;
}

std::string PeerWatch::explain_message(std::size_t group_index, int peer) {
  std::vector<int> ranks;
  {
    const std::lock_guard lock(mutex_);
    ranks = groups_[group_index].world_ranks;
  }
  try {
    look_for_trouble();
    if (troubled()) return trouble();
    if (keys_->get(key("ended", peer))) return concat("rank ", peer, " has ended");
    const std::vector<int> dead = silent(ranks);
    if (std::find(dead.begin(), dead.end(), peer) != dead.end())
      return concat("rank ", peer, "'s process is gone or stopped");
    const std::string alive = concat("rank ", peer, " is alive and did not come: it computes, or waits itself");
    return dead.empty() ? alive
                        : concat(list_ranks(dead), dead.size() == 1 ? "'s process is" : ": their processes are",
                                 " gone or stopped; ", alive);
  } catch (const std::exception& e) {
    return concat(
        "the rendezvous store is gone or cut off, and so, most likely, is rank 0 or the launcher that keeps it (",
        e.what(), ")");
  }
}

std::string PeerWatch::explain(std::size_t group_index, std::uint64_t sequence, milliseconds waited) {
  GroupState group;
  {
    const std::lock_guard lock(mutex_);
    group = groups_[group_index];
  }
  try {
    publish();
    // What peers have published lags behind by up to a beat.
    for (auto left = milliseconds(1000) - waited; left > milliseconds(0); left -= kBeat / 2) {
      look_for_trouble();
      if (troubled()) return trouble();
      std::this_thread::sleep_for(kBeat / 2);
    }
    look_for_trouble();
    if (troubled()) return trouble();
    std::vector<int> missing;
    for (const int r : group.world_ranks) {
      const auto p = progress_of(r);
      if (!p || !p->entered.contains(group.id) || p->entered.at(group.id) <= sequence) missing.push_back(r);
    }
    std::erase(missing, rank_);
    if (!missing.empty()) return describe_missing(missing, group);
    const std::vector<int> dead = silent(group.world_ranks);
    return dead.empty() ? "every rank arrived, but the connection broke"
                        : list_ranks(dead) + " arrived, but the process is gone or stopped";
  } catch (const std::exception& e) {
    return concat(
        "the rendezvous store is gone or cut off, and so, most likely, is rank 0 or the launcher that keeps it (",
        e.what(), ")");
  }
}

}  // namespace megatron::comm
