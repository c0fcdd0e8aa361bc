#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/tasks/task.h"

// What `megatron finetune` and `megatron eval TASK` ask of the options of a task.
namespace megatron::app {

struct TaskNumber {
  const char* option;  ///< as messages call it
  std::int64_t value;
  std::int64_t least;
  std::int64_t unset = 0;       ///< the value of an option that is not given
  std::string_view heads = {};  ///< TaskForm::head of the tasks that read it, between spaces; empty: all do
};

/// Throws ConfigError for a number that is out of range, or that was given to a task which does not read it.
inline void check_task_numbers(const std::string& task, const char* head, std::initializer_list<TaskNumber> numbers) {
  constexpr std::int64_t kMaxCount = 1 << 24;
  for (const TaskNumber& number : numbers) {
    const std::string option(number.option), flag = option.starts_with("--") ? option : concat("--", option);
    if (number.value < number.least || number.value > kMaxCount)
      throw ConfigError(rule_got_fix(concat(number.option, " must be from ", number.least, " to ", kMaxCount, "."),
                                     concat(number.value), concat("leave ", flag, " out")));
    if (number.value != number.unset && !number.heads.empty() &&
        number.heads.find(concat(" ", head, " ")) == std::string_view::npos)
      throw ConfigError(rule_got_fix(concat(number.option, " has no effect on ", task, "."), concat(number.value),
                                     concat("leave ", flag, " out")));
  }
}

}  // namespace megatron::app
