#include "megatron/comm/processes/start_name.h"

#include <algorithm>
#include <map>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/ranks/run_key.h"
#include "megatron/comm/group.h"
#include "megatron/comm/processes/peer_watch.h"

namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string word_of(int rank) { return concat("start/word of ", rank); }
std::string answer_to(int rank, const std::string& word) { return concat("start/answer to ", rank, " ", word); }
std::string heard_by(int rank, const std::string& name) { return concat("start/heard by ", rank, " ", name); }
const std::string kNewest = "start/newest";
std::string heard_by_all(const std::string& name) { return "start/heard by all " + name; }

/// Calls done() until it is true.
template <class Done>
bool within(milliseconds timeout, const Done& done) {
  const auto deadline = Clock::now() + timeout;
  for (milliseconds pause{1}; !done(); pause = std::min(2 * pause, milliseconds(20))) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

std::string tell(KeyStore& keys, int size, milliseconds timeout) {
  const std::string name = random_secret();
  std::map<int, std::string> answered;  // of those that have not said that they heard: the last word
  for (int r = 1; r < size; ++r) answered[r];
  const auto all_heard = [&] {
    for (auto waiting = answered.begin(); waiting != answered.end();) {
      auto& [rank, last] = *waiting;
      if (keys.get(heard_by(rank, name))) {
        waiting = answered.erase(waiting);
        continue;
      }
      // A word of a process that is gone is answered too, and replaced when another comes.
      const auto word = keys.get(word_of(rank));
      if (word && *word != last) keys.set(answer_to(rank, last = *word), name);
      ++waiting;
    }
    return answered.empty();
  };
  if (within(timeout, all_heard)) {
    keys.set(kNewest, name);
    keys.set(heard_by_all(name), "1");
    return name;
  }
  std::vector<int> missing;
  for (const auto& [rank, word] : answered) missing.push_back(rank);
  throw PeerError(not_arrived(missing, size, timeout));
}

std::string ask(KeyStore& keys, int rank, int size, milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  std::vector<int> missing;
  const auto add_those_without = [&](const auto& key_of) {
    for (int r = 1; r < size; ++r)
      if (!keys.get(key_of(r))) missing.push_back(r);
  };
  const std::string word = random_secret();
  keys.set(word_of(rank), word);
  std::optional<std::string> name;
  if (!within(timeout, [&] { return (name = keys.get(answer_to(rank, word))).has_value(); })) {
    missing.push_back(0);
    add_those_without(word_of);
    throw PeerError(not_arrived(missing, size, timeout));
  }
  keys.set(heard_by(rank, *name), "1");
  const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
  if (!within(left, [&] { return keys.get(heard_by_all(*name)).has_value(); })) {
    add_those_without([&](int r) { return heard_by(r, *name); });
    if (missing.empty()) missing.push_back(0);  // gone before it could say so
    throw PeerError(not_arrived(missing, size, timeout));
  }
  return *name;
}

}  // namespace

std::string name_of_start(KeyStore& keys, int rank, int size, milliseconds timeout) {
  return rank == 0 ? tell(keys, size, timeout) : ask(keys, rank, size, timeout);
}

std::optional<std::string> newest_start(KeyStore& keys) { return keys.get(kNewest); }

}  // namespace megatron::comm
