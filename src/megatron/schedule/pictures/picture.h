#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/charts/svg.h"
#include "megatron/schedule/simulate.h"

// What both pictures of a timeline share: colours, axis, and which operation stands for a stretch of time.
namespace megatron::schedule {

/// Hues that stay apart for the colour-blind (P. Tol, Colour schemes, 2021: "bright"), one after the other by
/// microbatch.
inline constexpr int kNumHues = 6;
enum class Tone : std::uint8_t { Light, Middle, Dark };  // forward, gradients of weights, backward
inline constexpr int kNumTones = 3;

using charts::svg::Rgb;
Rgb colour(int hue, Tone tone);
Tone tone_of(Kind kind);

/// The timeline of `rank` in `columns` columns of equal time from 0 to `until`: the computation that takes most of
/// each, nullptr where less than half of it is computation.
std::vector<const Slot*> cells_of(const Timeline& timeline, int rank, int columns, double until);

/// How many neighbouring microbatches share a sign or colour in a picture of `columns` columns up to `until`: 1 where
/// operations have a column each, otherwise as many as make `signs` runs of all microbatches.
int microbatches_a_sign(const Timeline& timeline, double columns, double until, int signs);

/// Times are whole numbers: units of cost rather than seconds.
bool in_whole_units(const Timeline& timeline);

/// A time axis up to `until` with at most `most_ticks` ticks after 0.
struct Axis {
  Axis(double until, int most_ticks, bool whole_units);
  /// A time in the axis' unit, to four digits: "12.5", or with `with_unit` "12.5 ms".
  std::string text(double time, bool with_unit) const;

  bool whole;             ///< units of cost
  double step = 1;        ///< between ticks: 1, 2 or 5 times a power of ten (of the axis' unit)
  int num_ticks = 0;      ///< after 0
  double unit = 1;        ///< what 1 on the axis is in the timeline's time
  const char* name = "";  ///< "s", "ms", "µs"; "units" for whole units
};

/// "27 %", of a share.
std::string percent(double share, int decimals = 0);

/// The peak of a rank's activations: "4", or "4 = 1.2 GB" where they are counted in bytes.
std::string peak_text(const Timeline& timeline, int rank);

}  // namespace megatron::schedule
