#pragma once
#include <functional>
#include <vector>

#include "megatron/finetune/batches.h"
#include "megatron/plan/rules.h"
#include "megatron/train/engine.h"

namespace megatron::finetune {

/// What a model says of a task.
struct TaskLogits {
  std::vector<float> values;  ///< [samples, Task::width()], the same on every rank
  double loss = 0;            ///< mean over the samples that have targets
};

/// Told how many samples of all are done.
using Done = std::function<void(std::int64_t samples)>;

/// The logits of all samples of the task of `batches`, each computed once, without dropout. Samples of like length are
/// computed together, whatever the layout. Collective over the engine's world.
TaskLogits evaluate(train::Engine& engine, const plan::ResolvedRun& run, const TaskBatches& batches,
                    const Done& done = {});

}  // namespace megatron::finetune
