#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tasks/answers.h"

namespace megatron::tasks {

struct SquadAnswer {
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
  std::string text;
  std::size_t begin = kNowhere;  ///< Byte of the context; kNowhere where the text does not stand where the file says.
};

struct SquadQuestion {
  std::string id, text;
  std::int32_t context = 0;          ///< In SquadExamples::contexts.
  std::vector<SquadAnswer> answers;  ///< In the order of the file; none where the context has no answer.
};

struct SquadExamples {
  SquadVersion version = SquadVersion::V1;
  bool labelled = true;  ///< The questions have answers; not so in a test set.
  std::vector<std::string> contexts = {};
  std::vector<SquadQuestion> questions = {};
  std::int64_t misplaced = 0;  ///< Answers that are not where the file says: they can be scored, not learned.
};

/// Reads a SQuAD (Rajpurkar et al. 2016, 2018) file: {"data": [{"paragraphs": [{"context": …, "qas": [{"id": …,
/// "question": …, "answers": [{"text": …, "answer_start": characters}]}]}]}]}. Throws ConfigError naming file and place
/// for what is not so, for an id that occurs twice, an answer that begins outside of its context, a question of 1.1
/// without answer, and where only some questions have "answers".
SquadExamples read_squad(const std::filesystem::path& path, SquadVersion version);

/// read_squad() of a file in memory, which messages call `name`.
SquadExamples parse_squad(std::string_view text, const std::string& name, SquadVersion version);

}  // namespace megatron::tasks
