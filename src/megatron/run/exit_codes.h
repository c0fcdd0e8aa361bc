#pragma once

// What `megatron` exits with, and what a rank's body returns (ranks.h).
namespace megatron::run {

inline constexpr int kDone = 0;         ///< the job is done
inline constexpr int kFailed = 1;       ///< the run failed
inline constexpr int kWrong = 2;        ///< the command or the configuration is wrong: nothing was started or written
inline constexpr int kInterrupted = 3;  ///< interrupted and saved
inline constexpr int kDifference = 4;   ///< a check found a difference
inline constexpr int kFaulty = 17;      ///< ranks compute wrongly (guard.rerun_interval); Megatron-LM's code too

}  // namespace megatron::run
