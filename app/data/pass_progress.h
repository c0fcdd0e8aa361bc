#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "megatron/base/progress.h"

namespace megatron::app {

/// Shows how far a job is, pass by pass.
class PassProgress {
 public:
  /// `unit`: what is counted (ProgressState::unit).
  PassProgress(std::string job, std::string unit, Progress::Mode mode)
      : job_(std::move(job)), unit_(std::move(unit)), mode_(mode) {}

  /// `pass`: its name, which a job of one pass does not need.
  void update(const std::string& pass, std::int64_t done, std::int64_t total) {
    if (!shown_ || pass != pass_) {
      shown_ = std::make_unique<Progress>(pass.empty() ? job_ : job_ + ": " + pass, unit_, total, mode_);
      pass_ = pass;
    }
    shown_->update(done);
  }
  void finish() { shown_.reset(); }

 private:
  std::string job_, unit_, pass_;
  Progress::Mode mode_;
  std::unique_ptr<Progress> shown_;
};

}  // namespace megatron::app
