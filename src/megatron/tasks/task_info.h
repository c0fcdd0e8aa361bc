#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "megatron/tasks/task.h"

namespace megatron::tasks {

/// What BERT reads of a task's examples, row by row.
struct TaskRows {
  std::int64_t examples = 0;
  std::size_t count = 0;
  /// Writes a row padded to the size of `ids` and `types`. Returns its length.
  std::function<std::int32_t(std::size_t row, std::span<std::int32_t> ids, std::span<std::int32_t> types)> fill = {};
  std::function<nlohmann::ordered_json(std::size_t row)> describe = {};  ///< its id and what is to be learned
  double read_s = 0, encode_s = 0;                                       ///< seconds that it took
};

/// Finished predictions and what they are compared with.
struct PredictionPaths {
  std::string data;         ///< the task's file
  std::string predictions;  ///< PredictionFile::name
  std::string null_odds;    ///< of tasks that have them; empty: none
  double null_threshold = 1;
  std::int64_t limit = 0;  ///< the first examples alone; 0: all
};

/// A row of config/tables/tasks.def, defined in tasks/families/FAMILY.cpp.
struct TaskInfo {
  TaskForm form;
  std::vector<std::string> (*labels)() = nullptr;  ///< names of its classes; null: it has none
  /// As open_task(), without its checks of what is opened.
  std::unique_ptr<const Task> (*open)(const std::filesystem::path& path, const text::Tokenizer& tokenizer,
                                      const TaskOptions& options);
  /// Of `options` the lengths and the threads.
  TaskRows (*rows)(const std::filesystem::path& path, const text::Tokenizer& tokenizer, const TaskOptions& options);
  /// What predictions score, as JSON: of SQuAD as the official scripts report it. Throws ConfigError where a file is
  /// not what it should be. `note` is told what is worth a line, and is no error.
  std::string (*report)(const PredictionPaths& paths, const std::function<void(const std::string&)>& note);
  bool has_null_odds = false;  ///< a prediction may be that there is no answer
};
const TaskInfo& task_info(TaskKind kind);

}  // namespace megatron::tasks
