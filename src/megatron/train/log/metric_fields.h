#pragma once
#include <string_view>

namespace megatron::train {

/// Whether MetricsFile (metrics.h) has a field of its own of that name, or with "valid_" or "test_" before it: then no
/// figure of a loss of one's own (ForwardStep::figures) may be called so, for it would replace that field.
bool is_metrics_field(std::string_view name);

}  // namespace megatron::train
