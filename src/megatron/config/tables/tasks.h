#pragma once
#include <string>
#include <vector>

// What is known of each task of fine-tuning without reading one: the rows of tasks.def.
namespace megatron::config {

struct TaskRow {
  std::string name, about;
  int seq_length = 0, query_length = 0;
};
const std::vector<TaskRow>& task_rows();
std::vector<std::string> task_names();
/// The names as usage lines have them: "mnli|qqp|…".
std::string task_choices();
/// "128 for mnli and qqp, 384 for …": the usual length of a row, or of a question, of all tasks.
std::string usual_lengths(int TaskRow::*length);

}  // namespace megatron::config
