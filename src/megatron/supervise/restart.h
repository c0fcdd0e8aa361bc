#pragma once
#include <cstdint>
#include <optional>

namespace megatron::supervise {

struct RestartOptions {
  int max_restarts = 100;  ///< in all
  int tries = 3;           ///< failures without a new checkpoint between them, after which fewer ranks are tried
  double backoff_s = 1;    ///< before the restart after the first of these; twice as long after each that follows
  double max_backoff_s = 300;
};

/// What follows a failure.
struct Decision {
  enum class What : std::uint8_t {
    Restart,
    Shrink,  ///< restart, with fewer ranks if there is a layout of fewer
    GiveUp
  };
  What what = What::Restart;
  double delay_s = 0;        ///< before the restart
  int without_progress = 0;  ///< failures in a row, this one included, since there was a new checkpoint
};

/// Decides when a job that fails is started again. Knows no clock and no process.
class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartOptions& options) : options_(options) {}

  /// The job has failed, and its newest checkpoint is that of `checkpoint`; nothing: it has none.
  Decision failed(std::optional<std::int64_t> checkpoint);
  int restarts() const { return restarts_; }

 private:
  RestartOptions options_;
  int restarts_ = 0;
  int without_progress_ = 0, since_shrink_ = 0;
  std::optional<std::int64_t> newest_;
};

}  // namespace megatron::supervise
