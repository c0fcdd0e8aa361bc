#include "megatron/schedule/pictures/picture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/format.h"

namespace megatron::schedule {
namespace {

constexpr double kTiny = 1e-9;  // of what it is compared with: rounding, no time

}  // namespace

Rgb colour(int hue, Tone tone) {
  static constexpr std::array<Rgb, kNumHues> kBright = {{{0x44, 0x77, 0xAA},
                                                         {0xEE, 0x66, 0x77},
                                                         {0x22, 0x88, 0x33},
                                                         {0xCC, 0xBB, 0x44},
                                                         {0x66, 0xCC, 0xEE},
                                                         {0xAA, 0x33, 0x77}}};
  Rgb result = kBright[static_cast<std::size_t>(hue % kNumHues)];
  for (int& channel : result) {
    if (tone == Tone::Light) channel += (255 - channel) * 60 / 100;  // towards white
    if (tone == Tone::Dark) channel = channel * 62 / 100;            // towards black
  }
  return result;
}

Tone tone_of(Kind kind) {
  return kind == Kind::Forward ? Tone::Light : kind == Kind::BackwardWeight ? Tone::Middle : Tone::Dark;
}

std::vector<const Slot*> cells_of(const Timeline& timeline, int rank, int columns, double until) {
  std::vector<const Slot*> cells(static_cast<std::size_t>(columns), nullptr);
  std::vector<double> most(cells.size(), 0), busy(cells.size(), 0);
  const double width = until / columns;
  if (!(width > 0)) return cells;
  for (const Slot& slot : timeline.ranks[static_cast<std::size_t>(rank)]) {
    if (!is_computation(slot.op.kind)) continue;
    const auto first = static_cast<std::size_t>(std::clamp(std::floor(slot.start / width), 0.0, columns - 1.0));
    for (std::size_t i = first; i < cells.size() && static_cast<double>(i) * width < slot.end; ++i) {
      const double left = static_cast<double>(i) * width;
      const double covered = std::min(slot.end, left + width) - std::max(slot.start, left);
      busy[i] += std::max(covered, 0.0);
      if (covered <= std::max(most[i], kTiny * width)) continue;
      most[i] = covered;
      cells[i] = &slot;
    }
  }
  for (std::size_t i = 0; i < cells.size(); ++i)
    if (busy[i] < (0.5 - kTiny) * width) cells[i] = nullptr;
  return cells;
}

int microbatches_a_sign(const Timeline& timeline, double columns, double until, int signs) {
  double busy = 0;
  std::size_t count = 0;
  for (const std::vector<Slot>& slots : timeline.ranks)
    for (const Slot& slot : slots)
      if (is_computation(slot.op.kind)) {
        busy += slot.end - slot.start;
        ++count;
      }
  const bool fits = count == 0 || busy / static_cast<double>(count) * columns >= (1 - kTiny) * until;
  return fits ? 1 : std::max(1, (timeline.num_microbatches + signs - 1) / signs);
}

bool in_whole_units(const Timeline& timeline) {
  const auto whole = [](double time) { return std::abs(time - std::round(time)) < 1e-6; };
  for (const std::vector<Slot>& slots : timeline.ranks)
    for (const Slot& slot : slots)
      if (!whole(slot.start) || !whole(slot.end)) return false;
  return timeline.makespan >= 1;
}

Axis::Axis(double until, int most_ticks, bool whole_units) : whole(whole_units) {
  name = "units";
  if (!whole_units) {
    unit = until >= 1 ? 1 : until >= 1e-3 ? 1e-3 : 1e-6;
    name = until >= 1 ? "s" : until >= 1e-3 ? "ms" : "µs";
  }
  if (!(until > 0) || !std::isfinite(until)) return;
  const double least = until / unit / std::max(most_ticks, 1);
  double nice = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {2.0, 2.5, 2.0})  // 1, 2, 5, 10
    if (nice < least * (1 - kTiny)) nice *= factor;
  if (whole_units) nice = std::max(nice, 1.0);
  step = nice * unit;
  num_ticks = static_cast<int>(std::floor(until / step * (1 + kTiny)));
}

std::string Axis::text(double time, bool with_unit) const {
  const double value = time / unit;
  const std::string text = value < 9999.5 ? fmt::format("{:.4g}", value) : fmt::format("{:.0f}", value);
  return text + (with_unit ? std::string(" ") + (whole && value == 1 ? "unit" : name) : "");
}

std::string percent(double share, int decimals) { return fmt::format("{:.{}f} %", 100 * share, decimals); }

std::string peak_text(const Timeline& timeline, int rank) {
  const auto index = static_cast<std::size_t>(rank);
  const int live = timeline.peak_live[index];
  const double bytes = index < timeline.peak_bytes.size() ? timeline.peak_bytes[index] : 0;
  if (bytes <= live) return concat(live);  // counted in activations
  return concat(live, " = ", human_bytes(bytes));
}

}  // namespace megatron::schedule
