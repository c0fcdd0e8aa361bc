#pragma once
#include <vector>

#include "megatron/config/log_config.h"
#include "megatron/train/log/event_file.h"
#include "megatron/train/log/metrics.h"

// The curves of a run under Megatron-LM's names: each value is that of a field in metrics.jsonl (docs/logging.md).
namespace megatron::train {

/// Of one iteration. A skipped one has neither loss nor gradient norm.
std::vector<Scalar> scalars_of(const IterationMetrics& metrics, const config::LogConfig& log);
/// Its timers: seconds of the rank that took longest.
std::vector<Scalar> time_scalars_of(const IterationMetrics& metrics, const config::LogConfig& log);
/// Of a validation, or of the test set.
std::vector<Scalar> scalars_of(const ValidationMetrics& metrics, const config::LogConfig& log);
std::vector<Scalar> scalars_of(const TaskMetrics& metrics);

}  // namespace megatron::train
