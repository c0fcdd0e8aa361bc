#pragma once
#include <chrono>
#include <exception>
#include <functional>
#include <string>

namespace megatron::comm {

/// Runs body(rank) on `size` threads, each with `cores / size` (at least one) OpenMP threads. `on_end(rank, error)`
/// runs on the rank's thread when its body has returned (no error) or thrown. When all have ended, the error that came
/// first is rethrown. Where a rank still runs `patience` after the first error, on_stuck (if any) is called once.
void run_rank_threads(int size, const std::function<void(int rank)>& body,
                      const std::function<void(int rank, const std::exception_ptr& error)>& on_end,
                      std::chrono::milliseconds patience, const std::function<void(const std::string&)>& on_stuck);

/// What the exception says.
std::string message_of(const std::exception_ptr& error);

}  // namespace megatron::comm
