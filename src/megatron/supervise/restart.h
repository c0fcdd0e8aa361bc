#pragma once
#include <cstdint>
#include <optional>

namespace megatron::supervise {

struct RestartOptions {
  int max_restarts = 100;  ///< in all
  int tries = 3;           ///< failures without a new checkpoint between them, after which fewer ranks are tried
  double backoff_s = 1;    ///< before the restart after the first of these; twice as long after each that follows
  double max_backoff_s = 300;
  int restarts = 0;  ///< that another supervisor has counted before
};

/// What follows a failure.
struct Decision {
  enum class What : std::uint8_t {
    Restart,
    Shrink,  ///< restart, with fewer ranks if there is a layout of fewer
    GiveUp,  ///< the budget is spent
    Refused  ///< the job's command is wrong: another start would say the same
  };
  What what = What::Restart;
  double delay_s = 0;  ///< before the restart
};

/// How a job has failed.
struct Failure {
  std::optional<std::int64_t> checkpoint = {};  ///< the newest; nothing: there is none
  bool refused = false;                         ///< the job has not begun: its command is wrong
  bool lost = false;                            ///< a rank is gone with its supervisor: fewer are left
};

/// Decides when a job that fails is started again. Knows no clock and no process.
class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartOptions& options) : options_(options), restarts_(options.restarts) {}

  /// The job has failed. One that is refused with fewer ranks than before may be taken with fewer still.
  Decision failed(const Failure& failure);
  int restarts() const { return restarts_; }

 private:
  RestartOptions options_;
  int restarts_;
  int without_progress_ = 0, since_shrink_ = 0;
  bool has_just_shrunk_ = false;
  std::optional<std::int64_t> newest_;
};

}  // namespace megatron::supervise
