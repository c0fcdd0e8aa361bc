#pragma once
#include "megatron/config/run_config.h"
#include "megatron/config/task_config.h"

namespace megatron::config {

/// The options of `megatron finetune`: those of a run, and its task.
struct FinetuneRecipe : RunConfig {
  TaskConfig task;

  template <class Visitor>
  void visit(Visitor& v);
};

template <class Visitor>
void FinetuneRecipe::visit(Visitor& v) {
  v("task", task, "What is learned, and on what.");
  RunConfig::visit(v);
}

extern template void FinetuneRecipe::visit(FieldCollector& v);

}  // namespace megatron::config
