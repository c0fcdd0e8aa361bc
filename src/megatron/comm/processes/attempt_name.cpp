#include "megatron/comm/processes/attempt_name.h"

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

std::string word_of(int rank) { return concat("attempt/word of ", rank); }
std::string answer_to(int rank, const std::string& word) { return concat("attempt/answer to ", rank, " ", word); }
std::string heard_by(int rank, const std::string& name) { return concat("attempt/heard by ", rank, " ", name); }

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
  if (within(timeout, all_heard)) return name;
  std::vector<int> missing;
  for (const auto& [rank, word] : answered) missing.push_back(rank);
  throw PeerError(not_arrived(missing, size, timeout));
}

std::string ask(KeyStore& keys, int rank, int size, milliseconds timeout) {
  const std::string word = random_secret();
  keys.set(word_of(rank), word);
  std::optional<std::string> name;
  const auto answered = [&] { return (name = keys.get(answer_to(rank, word))).has_value(); };
  if (!within(timeout, answered)) throw PeerError(not_arrived({0}, size, timeout));
  keys.set(heard_by(rank, *name), "1");
  return *name;
}

}  // namespace

std::string name_of_attempt(KeyStore& keys, int rank, int size, milliseconds timeout) {
  return rank == 0 ? tell(keys, size, timeout) : ask(keys, rank, size, timeout);
}

}  // namespace megatron::comm
