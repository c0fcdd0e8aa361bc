#include "megatron/supervise/restart.h"

#include <algorithm>
#include <cmath>

namespace megatron::supervise {

Decision RestartPolicy::failed(std::optional<std::int64_t> checkpoint) {
  const bool progress = checkpoint && (!newest_ || *checkpoint > *newest_);
  if (progress) {
    newest_ = checkpoint;
    without_progress_ = since_shrink_ = 0;
  }
  ++without_progress_;
  ++since_shrink_;
  Decision decision{.without_progress = without_progress_};
  if (restarts_ >= options_.max_restarts) {
    decision.what = Decision::What::GiveUp;
    return decision;
  }
  ++restarts_;
  const double doublings = std::min(without_progress_ - 1, 60);
  decision.delay_s = std::min(options_.max_backoff_s, options_.backoff_s * std::exp2(doublings));
  if (since_shrink_ >= options_.tries) {
    decision.what = Decision::What::Shrink;
    since_shrink_ = 0;
  }
  return decision;
}

}  // namespace megatron::supervise
