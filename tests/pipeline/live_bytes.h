#pragma once
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "megatron/schedule/program.h"
#include "megatron/schedule/simulate.h"

// Counts the bytes of tensors that a rank, a thread of the test, has alive.
namespace megatron::pipeline::testing {

class AllocationCounter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override { bytes_ += size; }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

/// While it lives, this thread's tensors are counted.
class CountAllocations {
 public:
  explicit CountAllocations(const std::shared_ptr<AllocationCounter>& counter)
      : guard_(c10::DebugInfoKind::PROFILER_STATE, counter) {}

 private:
  c10::DebugInfoGuard guard_;
};

/// Compares after each operation what is alive with what should be: the activations that the simulator counts, the
/// messages under way, and the losses.
class LiveBytes {
 public:
  LiveBytes(const schedule::Program& program, int rank, schedule::Costs costs, double message_bytes)
      : program_(program), rank_(rank), costs_(std::move(costs)), message_(message_bytes) {}

  const std::shared_ptr<AllocationCounter>& counter() const { return counter_; }
  /// Most bytes of activations at once, as measured.
  double peak() const { return peak_; }

  void after(const schedule::Op& op) {
    using schedule::Kind;
    const auto stage = static_cast<std::size_t>(op.stage);
    const bool first = op.stage == 0, last = op.stage + 1 == program_.placement.num_stages();
    const double activation = (op.partial ? costs_.partial_activation_bytes : costs_.activation_bytes)[stage];
    const double weight = (op.partial ? costs_.partial_weight_bytes : costs_.weight_bytes)[stage];
    switch (op.kind) {
      case Kind::Forward:  // the input becomes part of the activations
        activations_ += activation;
        messages_ += last ? 0 : message_;
        messages_ -= first ? 0 : message_;
        losses_ += last ? 8 : 0;
        break;
      case Kind::Backward:
      case Kind::BackwardInput:
        activations_ -= activation - (op.kind == Kind::BackwardInput ? weight : 0);
        messages_ += first ? 0 : message_;
        messages_ -= last ? 0 : message_;
        break;
      case Kind::BackwardWeight:
        activations_ -= weight;
        break;
      case Kind::RecvActivation:
      case Kind::RecvGradient:
        messages_ += message_;
        break;
      case Kind::WaitSendActivation:
      case Kind::WaitSendGradient:
        messages_ -= message_;
        break;
      default:
        break;
    }
    const auto measured = static_cast<double>(counter_->bytes()) - messages_ - losses_;
    EXPECT_EQ(measured, activations_) << "rank " << rank_ << " after " << schedule::to_string(op);
    peak_ = std::max(peak_, measured);
  }

 private:
  const schedule::Program& program_;
  int rank_;
  schedule::Costs costs_;
  double message_, activations_ = 0, messages_ = 0, losses_ = 0, peak_ = 0;
  std::shared_ptr<AllocationCounter> counter_ = std::make_shared<AllocationCounter>();
};

}  // namespace megatron::pipeline::testing
