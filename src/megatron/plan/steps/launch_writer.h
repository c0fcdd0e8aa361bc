#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "megatron/plan/steps/launches.h"

// How the launches of a layer are written down (layer_launches.cpp, expert_launches.cpp).
namespace megatron::plan {

/// Sizes of a rank's layer, in elements.
struct LaunchSizes {
  explicit LaunchSizes(const ResolvedRun& run);
  double tokens, hidden;
  int tp;
  double stream_tokens;  ///< of the residual stream and its norms: with parallel.sp a rank's share of them
  double qkv, heads, ffn, fc1;
  double element;  ///< bytes of one
  double wide;     ///< bytes of sums and of a router's numbers: float32 or wider
  double
      gradient_uses;  ///< how often one of a matrix is read or written: by a step's first microbatch once, then twice
};

/// Sizes of the kernel that computes a norm's gradients (kernels/phases/norms/norm_gradient.h), with which
/// tests/train/launches_test.cpp compares them: the rows over which a block sums, and the most bytes of sums that it
/// keeps.
inline constexpr std::int64_t kRowsOfSums = 16, kMostBytesOfSums = 78 * 1024;

/// Adds launches in the host's order.
class LaunchWriter {
 public:
  /// Streams of a plan, by their numbers.
  enum Stream : int { kCompute, kTensorParallel, kReduction, kExperts };

  explicit LaunchWriter(const ResolvedRun& run);

  const ResolvedRun& run() const { return run_; }
  const LaunchSizes& size() const { return size_; }
  int last() const { return static_cast<int>(plan.launches.size()) - 1; }

  /// `call`: as of Launch.
  void add_bytes(const std::string& call, const std::string& name, std::vector<std::string> reads,
                 std::vector<std::string> writes, double bytes);
  /// `features`: elements per token that are read and written.
  void add(const std::string& call, const std::string& name, std::vector<std::string> reads,
           std::vector<std::string> writes, double features) {
    add_bytes(call, name, std::move(reads), std::move(writes), features * size_.tokens * size_.element);
  }
  /// add() for the residual stream, of which a rank may have a share of the tokens.
  void add_to_stream(const std::string& call, const std::string& name, std::vector<std::string> reads,
                     std::vector<std::string> writes, double features) {
    add_bytes(call, name, std::move(reads), std::move(writes), features * size_.stream_tokens * size_.element);
  }
  /// The next launch waits for `launch` of another stream, where there is one.
  void wait_for(int launch) {
    if (launch >= 0) after_.push_back(launch);
  }
  /// `weights`: elements of the matrix; 0: of `in` times `out`.
  void product(const std::string& call, const std::string& name, const std::string& from, const std::string& to,
               double in, double out, double weights = 0);
  /// A weight's gradient: sums in float32 or wider; bytes are the average over a step's microbatches.
  /// `bias`: with the gradient of a bias, in the product where 16 bits allow it.
  void weight_gradient(const std::string& name, const std::string& dy, const std::string& x, double out, double in,
                       bool bias = false);
  /// The norm of what a column-parallel layer reads: it is not kept for its weight's gradient.
  void norm_again(const std::string& x, const std::string& y);
  /// Sends `buffer`, of so many bytes there and back, on a stream that begins once it is written. -> its number.
  int message(Stream stream, const std::string& name, const std::string& from, const std::string& to, double bytes);
  /// All-reduce over the ranks that split the layer, with parallel.sp reduce-scatter. -> its number; the next launch on
  /// the compute stream waits for it unless it is a gradient's, for which wait_for() says so. -1: there is one rank.
  int sum_over_ranks(const std::string& buffer);
  /// With parallel.sp all-gather of a buffer of the stream. -> the launch, and what has all tokens; -1 and the buffer
  /// itself where a rank has them.
  std::pair<int, std::string> gather(const std::string& buffer);
  /// gather(), for which the next launch waits. -> the buffer that has all tokens.
  std::string gathered(const std::string& buffer);

  LaunchPlan plan;

 private:
  LaunchSizes size_;
  const ResolvedRun& run_;
  std::vector<int> after_;
};

/// A layer's experts from y2, what they read, to "branch2", with the sum over ranks (model/experts/expert_layer.h).
void experts_forward(LaunchWriter& to);
/// From `dbranch` to "dy2", with the sum over ranks, which the next launch waits for.
void experts_backward(LaunchWriter& to, const std::string& dbranch);

}  // namespace megatron::plan
