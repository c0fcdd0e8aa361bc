#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace megatron::tasks {

/// SQuAD 1.1, where every question has an answer in its context, and 2.0, where some have none.
enum class SquadVersion : std::uint8_t { V1, V2 };

/// An answer as the official scores of SQuAD compare it: lower case, without ASCII punctuation and the words a, an and
/// the, words separated by one space. Letters, digits and white space are those of Unicode, as Python's are. A byte
/// that is no UTF-8 counts as U+FFFD.
std::string normalize_answer(std::string_view text);

struct AnswerMatch {
  double exact = 0;  ///< 1 where the normalized answers are equal, else 0
  double f1 = 0;     ///< of their words, 0 … 1
};

/// An answer compared with one that is right. Two answers without any word have an F1 of 1 in version 2, of 0 in
/// version 1.
AnswerMatch match_answer(std::string_view gold, std::string_view answer, SquadVersion version);

/// Exact and F1 of the right answer that gives most, for each of the two. Version 2 leaves out right answers without
/// any word; where none is left, only an answer without words is right. Version 1 gives 0 where there are none.
AnswerMatch match_answer(std::span<const std::string_view> golds, std::string_view answer, SquadVersion version);

}  // namespace megatron::tasks
