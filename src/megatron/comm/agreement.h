#pragma once
#include <chrono>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/group.h"

// Ranks that were started apart agree on what they are about to do. All calls are collective over the group.
namespace megatron::comm {

/// What every rank must have in common: a name as the user knows it ("schedule.lr") and its value as text. The
/// value of a file, which is too long to compare, is a digest.
struct Fact {
  std::string name, value;
  bool is_unread = false;  ///< `value` says why this rank cannot read what the fact is of
  bool is_config = true;   ///< of one that is unread: Problem::is_config
};
using Facts = std::vector<Fact>;

/// A ConfigError that every rank of the group throws alike, at the same place: no peer has to be told.
struct AgreedError : ConfigError {
  using ConfigError::ConfigError;
};
/// What every rank throws, with the same message, where a rank has found wrong what is no matter of the command: a disk
/// that fails, memory that runs out. Exit code 1.
struct AgreedFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What a rank has found wrong.
struct Problem {
  std::string text = {};  ///< "": nothing
  bool is_config = true;  ///< of the command or the files that it names; exit code 2
};

/// A ConfigError, and what std::filesystem throws of a path that cannot be looked at, are of the command.
Problem problem_of(const std::exception& error);

/// Throws what the ranks have found wrong, of which each must know the same: AgreedError where all is of the command,
/// else AgreedFailure. The text has each problem once, with the ranks that have it unless all do. Returns where no rank
/// has one. `by_rank`: of each rank.
void throw_problems(const std::vector<Problem>& by_rank);

/// The text of every rank, by rank. Communicates the lengths, then the texts padded to the longest.
std::vector<std::string> gather_texts(const Group& group, const std::string& text);

/// Throws AgreedError on every rank where the facts of two ranks differ. The message names each fact that differs, its
/// values and the ranks that have them; where ranks could not read some, it is what these say of that instead. One
/// number per rank is communicated where all agree. Call it before anything whose shapes depend on the facts is
/// communicated.
void require_agreement(const Group& group, const Facts& facts);

/// Runs `work` on every rank, as run_on_every_rank() does. Where it throws on some, every rank throws what these say,
/// as throw_problems() does.
void run_together(const Group& group, const std::function<void()>& work,
                  std::chrono::milliseconds beat = std::chrono::seconds(1));

}  // namespace megatron::comm
