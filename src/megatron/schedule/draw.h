#pragma once
#include <string>

#include "megatron/schedule/simulate.h"

namespace megatron::schedule {

/// The timeline as text, one line a rank, at most `width` columns (0: one column a unit of time): a computation shows
/// its microbatch, by colour where `colour` is on; below, the time axis, and by rank bubble and peak of activations.
std::string draw_text(const Timeline& timeline, int width, bool colour);

/// The same as an SVG picture: colour by microbatch, time axis, memory curve and bubble of each rank. With `measured`,
/// both, one above the other on one time axis.
std::string draw_svg(const Timeline& timeline, const std::string& title, const Timeline* measured = nullptr);

/// Chrome's trace event format (about:tracing, Perfetto): one process a pipeline, one thread a rank. Times are seconds.
std::string chrome_trace(const Timeline& timeline);

}  // namespace megatron::schedule
