#pragma once
#include <string>

#include "megatron/schedule/simulate.h"

// Timelines as pictures, and as files that other programs draw.
namespace megatron::schedule {

/// The timeline as text, one line a rank, a line a stage where ranks hold several:
///
///   rank 0 |012....aa3bb.cc.dd|
///   memory |▃▆██████████▆▆▆▃▃▃|
///
/// A forward shows its microbatch as a digit, a backward as a letter, the gradients of weights are w; '.' is an idle
/// rank, a blank one that is busy with another of its stages. At the right, the rank's share of idle time and its peak
/// of live activations; below, the time axis, makespan, bubble and what the signs mean. At most `width` columns (less
/// than 64 counts as 64; 0: one column a unit of time, at most 4096). Where that is too narrow for single operations a
/// sign stands for a run of microbatches. A timeline in whole units of time that fits has one column a unit.
/// `colour`: the microbatch by background too, for terminals of 256 colours. `memory`: below each rank the activation
/// bytes that it holds, as planned, against the most that any holds.
std::string draw_text(const Timeline& timeline, int width, bool colour, bool memory = true);

/// draw_text() as a picture: one SVG file that needs no other. With `measured`, both, one above the other on one time
/// axis; its memory curve is then what the plan says of activations (summarize()), at the measured times: the bytes
/// themselves are not measured. What is narrower than a pixel is drawn together, so that a file of any
/// schedule has a few MB at most.
std::string draw_svg(const Timeline& timeline, const std::string& title, const Timeline* measured = nullptr);

/// Chrome's trace event format (Perfetto, about:tracing): one process per pipeline, one thread per rank, a counter of
/// activation bytes, as planned, a rank. Times, which the format has in microseconds, are kept to the nanosecond.
std::string chrome_trace(const Timeline& timeline);

/// Reads back what chrome_trace() wrote. `name`: the file, for errors. Throws ConfigError where it is no such trace, or
/// one of operations that no pipeline can have executed.
Timeline parse_chrome_trace(const std::string& text, const std::string& name);

}  // namespace megatron::schedule
