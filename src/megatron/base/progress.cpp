#include "megatron/base/progress.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"

namespace megatron {
namespace {

constexpr double kRedrawInterval_s = 0.2;

template <std::size_t N>
std::string scaled(double value, const std::array<const char*, N>& units) {
  std::size_t unit = 0;
  while (unit + 1 < N && std::abs(value) >= 999.5) {
    value /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}{}", value, decimals, *units[unit] ? " " : "", units[unit]);
}

std::string rate_text(double value, const std::string& unit) {
  if (unit == "bytes" || value >= 9.995) return unit == "bytes" ? human_bytes(value) : human_count(value);
  return fmt::format("{:.2f}", value);  // steps can take seconds each
}

std::string amount(double value, const std::string& unit) {
  return unit == "bytes" ? human_bytes(value) : human_count(value);
}

}  // namespace

bool is_terminal(std::FILE* stream) { return isatty(fileno(stream)) == 1; }

std::string human_bytes(double bytes) { return scaled(bytes, std::array<const char*, 5>{"B", "kB", "MB", "GB", "TB"}); }

std::string human_count(double count) {
  return scaled(count, std::array<const char*, 7>{"", "k", "M", "G", "T", "P", "E"});
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "unknown";
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  if (total < 60) return concat(total, " s");
  if (total < 3600) return fmt::format("{}:{:02}", total / 60, total % 60);
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

std::string progress_line(const ProgressState& state) {
  const auto done = static_cast<double>(state.done), total = static_cast<double>(state.total);
  std::string line = state.what;
  if (state.total > 0) line += concat("  ", std::floor(100 * done / total), " %");
  line += "  " + amount(done, state.unit);
  if (state.total > 0) line += " of " + amount(total, state.unit);
  if (state.unit != "bytes") line += " " + state.unit;
  const double worked = done - static_cast<double>(state.first);
  if (worked > 0 && state.elapsed_s > 0) {
    const double rate = worked / state.elapsed_s;
    line += "  " + rate_text(rate, state.unit) + "/s";
    if (state.total > state.done) line += "  ETA " + human_duration((total - done) / rate);
  }
  if (!state.note.empty()) line += "  " + state.note;
  return line;
}

Progress::Mode Progress::mode_of(std::string_view text) {
  if (text == "auto") return Mode::Auto;
  if (text == "on") return Mode::On;
  if (text == "off") return Mode::Off;
  throw ConfigError(
      rule_got_fix("progress is auto, on or off.", concat("'", text, "'"), "--progress auto (the default)"));
}

Progress::Progress(std::string what, std::string unit, std::int64_t total, Mode mode, std::FILE* stream, double every_s)
    : state_{.what = std::move(what), .unit = std::move(unit), .total = total, .note = {}},
      stream_(stream),
      every_s_(is_terminal(stream) ? kRedrawInterval_s : every_s),
      redraws_(is_terminal(stream)),
      silent_(mode == Mode::Off || (mode == Mode::Auto && !redraws_)),
      always_ends_(mode == Mode::On),
      next_show_s_(every_s_) {}

void Progress::start_at(std::int64_t done) {
  state_.first = state_.done = done;
  since_start_.restart();
}

void Progress::update(std::int64_t done, std::string_view note) {
  state_.done = done;
  if (silent_) return;
  const double now = since_start_.seconds();
  state_.note = note;
  if (now >= next_show_s_) show(false);
}

void Progress::show(bool last) {
  state_.elapsed_s = since_start_.seconds();
  next_show_s_ = state_.elapsed_s + every_s_;
  const std::string line = concat(redraws_ ? kEraseLine : "", progress_line(state_), last || !redraws_ ? "\n" : "");
  std::fwrite(line.data(), 1, line.size(), stream_);
  std::fflush(stream_);
  shown_done_ = state_.done;
}

void Progress::finish() {
  const bool shown = shown_done_ >= 0, repeats = !redraws_ && shown_done_ == state_.done;
  if (!silent_ && (shown || always_ends_) && !repeats) show(true);
  silent_ = true;
}

}  // namespace megatron
