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

/// Shows how far a job is. On a terminal one line is redrawn, a few times a second at most. A pipe or a file gets
/// nothing unless it is asked for, and then whole lines, 30 s apart: what else is written there stays readable.
/// update() costs a clock read. One thread at a time may call it.
class Progress {
 public:
  enum class Mode : std::uint8_t {
    Auto,  ///< redrawn on a terminal, silent elsewhere
    On,    ///< redrawn on a terminal, lines elsewhere, the last one however short the job is
    Off,   ///< silent
  };
  /// "auto", "on" or "off"; anything else is a ConfigError.
  static Mode mode_of(std::string_view text);

  /// `every_s`: seconds between lines where the stream is no terminal.
  Progress(std::string what, std::string unit, std::int64_t total, Mode mode = Mode::Auto, std::FILE* stream = stderr,
           double every_s = 30);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Work that is already done and took none of this run's time.
  void start_at(std::int64_t done);
  void update(std::int64_t done, std::string_view note = "");
  /// Shows the last state, unless the last line is of it, and ends the line. A finished progress stays silent.
  void finish();

 private:
  void show(bool last);

  ProgressState state_;
  std::FILE* stream_;
  double every_s_;
  bool redraws_;
  bool silent_;
  bool always_ends_;              ///< shows the last state of a job that was too short to show any
  std::int64_t shown_done_ = -1;  ///< what the last line said; -1: there is none
  Stopwatch since_start_;
  double next_show_s_ = 0;
};

}  // namespace megatron
