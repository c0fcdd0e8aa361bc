#include "megatron/supervise/restart.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace megatron::supervise {

Decision RestartPolicy::failed(const Failure& failure) {
  const bool had_shrunk = std::exchange(has_just_shrunk_, false);
  if (failure.refused && !had_shrunk) return {.what = Decision::What::Refused};
  const bool progress = failure.checkpoint && (!newest_ || *failure.checkpoint > *newest_);
  if (progress) {
    newest_ = failure.checkpoint;
    without_progress_ = since_shrink_ = 0;
  }
  ++without_progress_;
  ++since_shrink_;
  if (restarts_ >= options_.max_restarts) return {.what = Decision::What::GiveUp};
  ++restarts_;
  Decision decision;
  const double doublings = std::min(without_progress_ - 1, 60);
  decision.delay_s = std::min(options_.max_backoff_s, options_.backoff_s * std::exp2(doublings));
  if (since_shrink_ >= options_.tries || failure.refused || failure.lost) {
    decision.what = Decision::What::Shrink;
    has_just_shrunk_ = true;
    since_shrink_ = 0;
  }
  return decision;
}

}  // namespace megatron::supervise
