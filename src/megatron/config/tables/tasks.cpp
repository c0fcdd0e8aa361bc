#include "megatron/config/tables/tasks.h"

namespace megatron::config {

const std::vector<TaskRow>& task_rows() {
  static const std::vector<TaskRow> rows = {
#define TASK(name, id, seq_length, query_length, about) {#name, about, seq_length, query_length},
#include "megatron/config/tables/tasks.def"
  };
  return rows;
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const TaskRow& row : task_rows()) names.push_back(row.name);
  return names;
}

std::string task_choices() {
  std::string text;
  for (const TaskRow& row : task_rows()) text += (text.empty() ? "" : "|") + row.name;
  return text;
}

std::string usual_lengths(int TaskRow::*length) {
  std::string text;
  for (const TaskRow& row : task_rows()) {
    const int tokens = row.*length;
    std::string names;
    bool said = false;
    for (const TaskRow& other : task_rows()) {
      if (other.*length != tokens) continue;
      if (names.empty()) said = &other != &row;  // with the first of the same length
      names += (names.empty() ? "" : " and ") + other.name;
    }
    if (tokens == 0 || said) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(tokens) + " for " + names;
  }
  return text;
}

}  // namespace megatron::config
