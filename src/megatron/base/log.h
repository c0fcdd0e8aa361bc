#pragma once
#include <cstdio>
#include <string>
#include <utility>

#include "megatron/base/error.h"

namespace megatron {

/// Writes lines to stderr, each with the name of who speaks, e.g. "rank 3 (tp 1, dp 1)". A value that is passed to
/// those who log; there is no global one. A line is one write, so lines of ranks that are threads do not mix.
class Logger {
 public:
  Logger() = default;
  explicit Logger(std::string name, std::FILE* stream = stderr) : name_(std::move(name)), stream_(stream) {}

  template <class... Args>
  void info(const Args&... args) const {
    line(concat(args...));
  }
  const std::string& name() const { return name_; }

 private:
  void line(const std::string& text) const;

  std::string name_;
  std::FILE* stream_ = stderr;
};

}  // namespace megatron
