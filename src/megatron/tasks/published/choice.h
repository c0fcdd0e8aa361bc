#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Multiple choice out of JSON lines {"context": "…", "choices": ["…", …], "label": 0}.
namespace megatron::tasks {

struct ChoiceQuestion {
  std::string context;
  std::vector<std::string> choices;  ///< two or more
  std::int64_t label = 0;            ///< the right one, from 0

  bool operator==(const ChoiceQuestion&) const = default;
};

/// What is read before an answer and the answer: white space at the end of the context begins the answer, and where
/// neither has any a space does.
struct Continuation {
  std::string context, answer;
};
Continuation continuation(std::string_view context, std::string_view choice);

/// One line. The label may also be a string of digits. Throws ConfigError, without the place, for anything else.
ChoiceQuestion parse_choice(std::string_view line);

/// The first `limit` questions; 0: all. Compressed files are read as they are. Throws ConfigError naming file and line.
std::vector<ChoiceQuestion> read_choices(const std::string& path, std::int64_t limit);

}  // namespace megatron::tasks
