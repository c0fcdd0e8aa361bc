#pragma once
#include <cstdint>
#include <optional>
#include <vector>

// The steps that Megatron-LM makes of a number of samples, and the samples for which it orders the data.
namespace megatron::config {

/// Steps of --train-samples, as its update_train_iters() counts them: with `ramp` (--rampup-batch-size) steps until the
/// growth's samples are exceeded, then whole batches of `full`, floored also where that is below zero. Where the
/// numbers of `ramp` are no growth, whole batches alone.
std::int64_t steps_of_samples(std::int64_t samples, std::int64_t full, const std::vector<std::int64_t>& ramp);

/// data.index_samples of a run: Megatron-LM orders the data for all of --train-samples, `samples`, or, where these are
/// not given, for full batches of `steps`. 0 where that is what the run takes, and where its last step may go beyond.
std::int64_t index_samples_of(std::optional<std::int64_t> samples, std::int64_t steps, std::int64_t full,
                              const std::vector<std::int64_t>& ramp);

}  // namespace megatron::config
