#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/timer.h"
#include "megatron/comm/group.h"

namespace megatron::train {

/// What is timed, under Megatron-LM's names (timer_name()).
enum class TimerId : std::uint8_t {
  // Level 1: parts of a step, in its order.
  ForwardBackward,
  AllGradsSync,
  LayernormGradsAllReduce,
  EmbeddingGradsAllReduce,
  ParamsAllGather,
  OptimizerClipMainGrad,
  OptimizerCountZeros,
  OptimizerInnerStep,
  Optimizer,
  // Level 2: within ForwardBackward.
  BatchGenerator,
  ForwardCompute,
  BackwardCompute,
  ForwardRecv,
  ForwardSend,
  BackwardRecv,
  BackwardSend,
  // Level 1 too, but timed and printed where they happen.
  ModelAndOptimizerSetup,
  DataSetup,
  Evaluate,
  SaveCheckpoint,
};
inline constexpr std::size_t kNumTimers = 20, kNumStepTimers = 16;

const char* timer_name(TimerId id);

/// Seconds by timer and rank; 0 where a rank has none.
struct TimesOverRanks {
  std::vector<TimerId> timers;
  std::vector<std::vector<double>> seconds;  ///< [timer][rank]

  /// Shortest and longest of the ranks that have a time.
  struct MinMax {
    double min = 0, max = 0;
  };
  std::optional<MinMax> of(std::size_t timer) const;
};

/// Megatron-LM's message: "(min, max) time across ranks (ms):" and a line for each timer that any rank has a time of.
/// `option`: of log.timing_option. Seconds are divided by `steps`. "" where there is none.
std::string timer_text(const TimesOverRanks& times, const std::string& option, double steps);

/// One rank's named timers. Below a timer's level nothing is measured: not even a clock is read.
class Timers {
 public:
  /// `barrier`: ranks of `world` meet before each timer of level 1 starts, of which they then have the same in the same
  /// order. `straggler`: how long a rank computes is measured at any level.
  Timers(std::int64_t level, bool barrier, bool straggler, comm::Group world);

  /// Adds the time until its end.
  class Scope {
   public:
    explicit Scope(double* total_s) : total_s_(total_s) {
      if (total_s_ != nullptr) watch_.emplace();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { stop(); }
    void stop() {
      if (watch_) *total_s_ += watch_->seconds();
      watch_.reset();
    }

   private:
    double* total_s_;
    std::optional<Stopwatch> watch_;
  };
  [[nodiscard]] Scope time(TimerId id);
  bool measures(TimerId id) const;
  /// Where something else has measured.
  void add(TimerId id, double seconds);

  /// What the ranks of `world` have measured since this was last asked of the same timers. Collective over it.
  TimesOverRanks take(const comm::Group& world, const std::vector<TimerId>& timers);
  /// A step's timers, those of this level: gathered as take() does.
  TimesOverRanks take_step(const comm::Group& world);

 private:
  std::int64_t level_;
  bool barrier_, straggler_;
  comm::Group world_;
  std::array<double, kNumTimers> seconds_{};
};

/// `values` of every rank of `world`, one after the other: [rank][value]. Collective over it.
std::vector<std::vector<double>> gathered(const comm::Group& world, const std::vector<double>& values);

}  // namespace megatron::train
