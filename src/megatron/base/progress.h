#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "megatron/base/timer.h"

namespace megatron {

/// Return to the start of a terminal's line and erase it.
inline constexpr const char* kEraseLine = "\r\x1b[K";

bool is_terminal(std::FILE* stream);

/// "831 B", "12.3 MB", "4.05 GB": decimal units, three digits.
std::string human_bytes(double bytes);
/// "831", "12.3 k", "4.05 M".
std::string human_count(double count);
/// "42 s", "3:07", "1:02:09".
std::string human_duration(double seconds);

/// What a progress line says: "preprocess  41 %  31.2 MB of 76.1 MB  62.4 MB/s  ETA 0:42  note". Without a total it
/// leaves out the share and the ETA; without work done in this run, the rate and the ETA.
struct ProgressState {
  std::string what;
  std::string unit;        ///< "bytes", or what is counted: "documents", "steps"
  std::int64_t first = 0;  ///< done before this run started (a resumed training)
  std::int64_t done = 0;
  std::int64_t total = 0;  ///< 0: not known
  double elapsed_s = 0;
  std::string note;  ///< e.g. the loss
};
std::string progress_line(const ProgressState& state);

/// Shows how far a job is. On a terminal one line is redrawn, a few times a second at most; elsewhere a plain line is
/// written every 30 s, so that a log stays readable. update() costs a clock read. One thread at a time may call it.
class Progress {
 public:
  enum class Mode : std::uint8_t {
    Auto,  ///< redrawn on a terminal, rare lines elsewhere
    On,    ///< redrawn wherever it goes
    Off,   ///< silent
  };
  /// "auto", "on" or "off"; anything else is a ConfigError.
  static Mode mode_of(std::string_view text);

  Progress(std::string what, std::string unit, std::int64_t total, Mode mode = Mode::Auto, std::FILE* stream = stderr);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Work that is already done and took none of this run's time.
  void start_at(std::int64_t done);
  void update(std::int64_t done, std::string_view note = "");
  /// Shows the last state and ends the line. A finished progress stays silent.
  void finish();

 private:
  void show(bool last);

  ProgressState state_;
  std::FILE* stream_;
  bool silent_;
  bool redraws_;
  bool shown_ = false;
  Stopwatch since_start_;
  double next_show_s_ = 0;
};

}  // namespace megatron
