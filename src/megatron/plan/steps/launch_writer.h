#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/plan/parameters/fp8.h"
#include "megatron/plan/steps/launches.h"

// How the launches of a layer are written down (layer_launches.cpp, expert_launches.cpp, fp8_launches.cpp).
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
  /// What linear layers multiply, and whose scales; nothing: numbers of train.dtype.
  const std::optional<Fp8Recipe>& fp8() const { return fp8_; }
  /// `weights`: elements of the matrix; 0: of `in` times `out`.
  void product(const std::string& call, const std::string& name, const std::string& from, const std::string& to,
               double in, double out, double weights = 0);
  /// In place of product(), with fp8(): y = x w^T. `row_parallel`: ranks have parts of x, else of y.
  void fp8_product(const std::string& name, const std::string& x, const std::string& y, double in, double out,
                   bool row_parallel);
  /// dx = dy w, and what of dy the weight's gradient reads.
  void fp8_input_gradient(const std::string& name, const std::string& dy, const std::string& dx, double out, double in,
                          bool row_parallel);
  /// The weight's gradient, after fp8_input_gradient() of the same dy.
  void fp8_weight_gradient(const std::string& name, const std::string& dy, const std::string& x, double out, double in);
  /// By a launch of its own.
  void bias_gradient(const std::string& name, const std::string& dy, double out);
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
  /// Where tensors have scales of their own: finds that of `numbers` numbers, or ranks with parts do. `times`: how
  /// often in a microbatch.
  void fp8_scale(const std::string& from, const std::string& name, double numbers, bool in_parts, double times = 1);
  /// Makes 8-bit numbers of `numbers` numbers: as they are, turned, or both.
  void fp8_numbers(const std::string& from, const std::string& name, double numbers, bool rows, bool turned);

  LaunchSizes size_;
  const ResolvedRun& run_;
  std::optional<Fp8Recipe> fp8_;
  std::vector<int> after_;
};

/// A layer's experts from y2, what they read, to "branch2", with the sum over ranks (model/experts/expert_layer.h).
void experts_forward(LaunchWriter& to);
/// From `dbranch` to "dy2", with the sum over ranks, which the next launch waits for.
void experts_backward(LaunchWriter& to, const std::string& dbranch);

}  // namespace megatron::plan
