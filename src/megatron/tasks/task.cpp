#include "megatron/tasks/task.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"
#include "megatron/config/tables/tasks.h"
#include "megatron/tasks/task_info.h"

namespace megatron::tasks {

#define TASK(name, id, ...) extern const TaskInfo k##id;
#include "megatron/config/tables/tasks.def"

TaskKind task_kind_of(std::string_view name) {
  const std::vector<std::string> names = config::task_names();
  const auto found = std::ranges::find(names, name);
  if (found == names.end())
    throw ConfigError(not_a_choice("the task", name, names, "--task", "--task " + names.front()));
  return static_cast<TaskKind>(found - names.begin());
}

const TaskInfo& task_info(TaskKind kind) {
  static constexpr const TaskInfo* kInfos[] = {
#define TASK(name, id, ...) &k##id,
#include "megatron/config/tables/tasks.def"
  };
  return *kInfos[static_cast<std::size_t>(kind)];
}

TaskForm task_form(TaskKind kind) { return task_info(kind).form; }

std::vector<std::string> task_labels(TaskKind kind) {
  const auto labels = task_info(kind).labels;
  return labels == nullptr ? std::vector<std::string>() : labels();
}

int usual_seq_length(TaskKind kind) { return config::task_rows()[static_cast<std::size_t>(kind)].seq_length; }

int usual_query_length(TaskKind kind) { return config::task_rows()[static_cast<std::size_t>(kind)].query_length; }

std::unique_ptr<const Task> open_task(const std::filesystem::path& path, const text::Tokenizer& tokenizer,
                                      const TaskOptions& options) {
  auto task = task_info(options.kind).open(path, tokenizer, options);
  if (task->size() == 0)
    throw ConfigError(rule_got_fix(path.string() + " must hold examples.", "none", "name the published file"));
  if (options.to_learn && !task->labelled())
    throw ConfigError(rule_got_fix(path.string() + " must have a label for each example.", "some have none",
                                   "name the file to train on: test files have no labels"));
  return task;
}

}  // namespace megatron::tasks
