#pragma once
#include <chrono>
#include <functional>
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
};
using Facts = std::vector<Fact>;

/// A ConfigError that every rank of the group throws alike, at the same place: no peer has to be told.
struct AgreedError : ConfigError {
  using ConfigError::ConfigError;
};

/// The text of every rank, by rank. Communicates the lengths, then the texts padded to the longest.
std::vector<std::string> gather_texts(const Group& group, const std::string& text);

/// Throws AgreedError on every rank where the facts of two ranks differ. The message names each fact that differs, its
/// values and the ranks that have them. One number per rank is communicated where all agree.
/// Call it before anything whose shapes depend on the facts is communicated.
void require_agreement(const Group& group, const Facts& facts);

/// The part of one rank in require_agreement() that has found out before it met the others that it cannot start: every
/// rank throws AgreedError with `problem`, and names the ranks that have it.
[[noreturn]] void report_problem(const Group& group, const std::string& problem);

/// Runs `work` on every rank, as run_on_every_rank() does. Where it throws on some, every rank throws what these say,
/// with their numbers: AgreedError for ConfigErrors alone, else std::runtime_error.
void run_together(const Group& group, const std::function<void()>& work,
                  std::chrono::milliseconds beat = std::chrono::seconds(1));

}  // namespace megatron::comm
