#include <algorithm>
#include <cmath>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/charts/svg.h"
#include "megatron/schedule/pictures/draw.h"
#include "megatron/schedule/pictures/picture.h"

namespace megatron::schedule {
namespace {

using charts::svg::box;
using charts::svg::escaped;
using charts::svg::hex;
using charts::svg::px;
using charts::svg::text_at;

// In pixels.
constexpr double kLeft = 62, kPlot = 1000, kRight = 158, kWidth = kLeft + kPlot + kRight;
constexpr double kSize = 11, kNumberSize = 10;  // of the font, and of numbers in boxes
constexpr int kMaxTicks = 12;
constexpr double kMaxBoxes = 20'000;    // of a picture
constexpr std::size_t kMaxTips = 4000;  // more operations than this have no tooltips: they would be most of the file

/// Classes f0…, b0…, w0…: forward, backward and gradients of weights by hue.
std::string class_of(Kind kind, int hue) {
  return concat(kind == Kind::Forward ? 'f' : kind == Kind::BackwardWeight ? 'w' : 'b', hue);
}

std::string style() {
  std::string rules =
      "text{font:11px sans-serif;fill:#222}.h{font-size:16px;font-weight:bold}.s{font-weight:bold;font-size:12px}"
      ".e{text-anchor:end}.m{text-anchor:middle}.n{font-size:10px;text-anchor:middle}.d{fill:#fff}.g{fill:#666}"
      ".k{fill:#000;font-weight:bold}.i{fill:#e4e4e4}.c{fill:#a9a9a9}.a{fill:"
      "#d5dde8;stroke:#52698a;stroke-width:1}"
      ".p{fill:#b00020}.l{stroke:#000;stroke-opacity:.13}.x{stroke:#444}\n";
  std::string patterns;
  for (int hue = 0; hue < kNumHues; ++hue) {
    rules += concat(".f", hue, "{fill:", hex(colour(hue, Tone::Light)), "}.b", hue,
                    "{fill:", hex(colour(hue, Tone::Dark)), "}.w", hue, "{fill:url(#w", hue, ")}\n");
    patterns += concat("<pattern id=\"w", hue, "\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" ",
                       "patternTransform=\"rotate(45)\"><rect width=\"4\" height=\"4\" fill=\"",
                       hex(colour(hue, Tone::Light)), "\"/><rect width=\"1.6\" height=\"4\" fill=\"",
                       hex(colour(hue, Tone::Middle)), "\" fill-opacity=\".45\"/></pattern>\n");
  }
  return "<style>" + rules + "</style>\n<defs>" + patterns + "</defs>\n";
}

/// Sizes that follow from how many rows there are.
struct Rows {
  explicit Rows(const Timeline& timeline) {
    const int ranks = timeline.placement.num_ranks(), stages = timeline.placement.num_stages();
    for (int rank = 0; rank < ranks; ++rank)
      lanes = std::max(lanes, static_cast<int>(timeline.placement.stages_of(rank).size()));
    lane = ranks > 16 ? 12 : stages > ranks ? 15 : 20;
    curve = ranks > 16 ? 12 : 22;
    gap = ranks > 16 ? 5 : 9;
  }
  double row() const { return lanes * lane + curve + gap; }

  int lanes = 1;
  double lane, curve, gap;
};

/// One timeline: its rows under a heading, the axis below.
class Panel {
 public:
  Panel(const Timeline& timeline, double until, double most_bytes, double top, bool whole_units)
      : timeline_(timeline), rows_(timeline), axis_(until, kMaxTicks, whole_units) {
    scale_ = until > 0 ? kPlot / until : 0;
    most_bytes_ = most_bytes;
    rows_top_ = top + 12;
    bottom_ = rows_top_ + timeline.placement.num_ranks() * rows_.row();
    resolution_ = std::max(1.0, kPlot * timeline.placement.num_ranks() / kMaxBoxes);
    group_ = microbatches_a_sign(timeline, kPlot / resolution_, until, kNumHues);
    std::size_t slots = 0;
    for (const std::vector<Slot>& rank : timeline.ranks) slots += rank.size();
    with_tips_ = slots <= kMaxTips;
  }

  double bottom() const { return bottom_ + 34; }
  int microbatches_a_hue() const { return group_; }

  std::string draw(const std::string& heading, const std::string& remark = "") const {
    std::string out = text_at(kLeft, rows_top_ - 10, "s",
                              concat(heading, "makespan ", axis_.text(timeline_.makespan, true), ", bubble ",
                                     percent(timeline_.bubble, 1), remark));
    for (int rank = 0; rank < timeline_.placement.num_ranks(); ++rank) out += row(rank);
    return out + axis();
  }

 private:
  double x(double time) const { return kLeft + time * scale_; }
  double top(int rank) const { return rows_top_ + rank * rows_.row(); }

  std::string row(int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    const double y = top(rank), curve_bottom = y + rows_.lanes * rows_.lane + rows_.curve;
    const double idle = timeline_.makespan > 0 ? timeline_.idle[index] / timeline_.makespan : 0;
    const double side = kLeft + kPlot + 8, middle = y + rows_.lanes * rows_.lane / 2 + 4;
    const bool many = timeline_.placement.num_ranks() > 1000;  // the word has no room beside the number
    std::string out = text_at(kLeft - 8, middle, "e", concat(many ? "" : "rank ", rank));
    out += text_at(side, middle, "", percent(idle, 1) + " idle");
    out += text_at(side, curve_bottom - rows_.curve / 2 + 4, "g", "peak " + peak_text(timeline_, rank));
    out += box(kLeft, y, timeline_.makespan * scale_, rows_.lanes * rows_.lane, "i") + "/>\n";
    return out + boxes(rank) + curve(rank, curve_bottom);
  }

  /// Slots wide enough are boxes; narrower ones that begin within one step of the resolution are one box, as the
  /// longest of them. Where a rank has several stages each has a lane, white while the rank is
  /// busy.
  std::string boxes(int rank) const {
    std::string out;
    std::vector<std::pair<double, double>> busy;
    const std::vector<Slot>& slots = timeline_.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < slots.size();) {
      const Slot* shown = &slots[i];
      const double begin = slots[i].start, cell = std::floor(begin * scale_ / resolution_);
      double end = slots[i].end, computed = is_computation(slots[i].op.kind) ? end - begin : 0;
      ++i;
      while ((shown->end - shown->start) * scale_ < resolution_ && i < slots.size() &&
             std::floor(slots[i].start * scale_ / resolution_) == cell &&
             (slots[i].end - slots[i].start) * scale_ < resolution_) {
        if (is_computation(slots[i].op.kind)) computed += slots[i].end - slots[i].start;
        if (longer(slots[i], *shown)) shown = &slots[i];
        end = slots[i++].end;
      }
      if (is_computation(shown->op.kind) && computed < (end - begin) / 2) continue;  // mostly idle
      if (end <= begin) continue;
      if (is_computation(shown->op.kind)) {
        if (!busy.empty() && (begin - busy.back().second) * scale_ < 0.05)
          busy.back().second = end;
        else
          busy.emplace_back(begin, end);
      }
      out += slot_box(*shown, rank, begin, end);
    }
    std::string whitened;
    if (rows_.lanes > 1)
      for (const auto& [begin, end] : busy)
        whitened += box(x(begin), top(rank), (end - begin) * scale_, rows_.lanes * rows_.lane, "d") + "/>\n";
    return whitened + out;
  }

  static bool longer(const Slot& a, const Slot& b) {
    const bool computes = is_computation(a.op.kind);
    if (computes != is_computation(b.op.kind)) return computes;
    return a.end - a.start > b.end - b.start;
  }

  std::string slot_box(const Slot& slot, int rank, double begin, double end) const {
    const double left = x(begin), width = std::max((end - begin) * scale_, 0.3);
    if (!is_computation(slot.op.kind))
      return box(left, top(rank) + rows_.lanes * rows_.lane - 3, width, 3, "c") + tip(slot, begin, end);
    const double y = top(rank) + timeline_.placement.chunk_of(slot.op.stage) * rows_.lane;
    const int hue = slot.op.microbatch / group_ % kNumHues;
    const double drawn = width > 4 ? width - 0.5 : width;  // a gap between neighbours
    std::string out = box(left, y, drawn, rows_.lane, class_of(slot.op.kind, hue)) + tip(slot, begin, end);
    const std::string number = concat(slot.op.microbatch);
    if (group_ == 1 && rows_.lane >= 11 && width >= charts::svg::text_width(number, kNumberSize) + 3)
      out += text_at(left + drawn / 2, y + rows_.lane / 2 + 3.5, number_class(slot.op.kind), number);
    return out;
  }

  static const char* number_class(Kind kind) {
    return kind == Kind::Forward ? "n" : kind == Kind::BackwardWeight ? "n k" : "n d";
  }

  std::string tip(const Slot& slot, double begin, double end) const {
    if (!with_tips_) return "/>\n";
    return "><title>" +
           escaped(concat(to_string(slot.op), "  ", axis_.text(begin, false), " - ", axis_.text(end, true))) +
           "</title></rect>\n";
  }

  /// Activation bytes as steps; of the points within one step of the resolution, the highest and the last.
  std::string curve(int rank, double bottom) const {
    const auto index = static_cast<std::size_t>(rank);
    if (index >= timeline_.memory.size() || timeline_.memory[index].empty() || !(most_bytes_ > 0)) return "";
    const std::vector<MemoryPoint>& points = timeline_.memory[index];
    const double height = rows_.curve - 3;
    std::string path = concat("M", px(x(points[0].time)), " ", px(bottom));
    double peak_time = points[0].time, peak = -1;
    for (std::size_t i = 0; i < points.size();) {
      const double cell = std::floor(points[i].time * scale_ / resolution_);
      double highest = points[i].bytes;
      std::size_t last = i;
      for (; last + 1 < points.size() && std::floor(points[last + 1].time * scale_ / resolution_) == cell; ++last)
        highest = std::max(highest, points[last + 1].bytes);
      const auto step = [&](double time, double bytes) {
        path += concat("H", px(x(time)), "V", px(bottom - bytes / most_bytes_ * height));
      };
      step(points[i].time, highest);
      if (points[last].bytes != highest) step(points[last].time, points[last].bytes);
      if (highest > peak) {
        peak = highest;
        peak_time = points[i].time;
      }
      i = last + 1;
    }
    path += concat("H", px(x(timeline_.makespan)), "V", px(bottom), "Z");
    return "<path class=\"a\" d=\"" + path + "\"/>\n<circle class=\"p\" cx=\"" + px(x(peak_time)) + "\" cy=\"" +
           px(bottom - peak / most_bytes_ * height) + "\" r=\"2.5\"/>\n";
  }

  std::string axis() const {
    const double y = bottom_ + 2;
    std::string out = concat("<path class=\"x\" d=\"M", px(kLeft), " ", px(y), "h", px(kPlot), "\"/>\n");
    double right = kLeft + kPlot;  // of all that is written so far
    for (int i = 0; i <= axis_.num_ticks; ++i) {
      const double at = x(i * axis_.step);
      const std::string number = axis_.text(i * axis_.step, false);
      right = std::max(right, at + charts::svg::text_width(number, kSize) / 2);
      out += concat("<path class=\"l\" d=\"M", px(at), " ", px(rows_top_), "V", px(y + 4), "\"/>\n");
      out += text_at(at, y + 16, "m", number);
    }
    return out + text_at(right + 8, y + 16, "", concat("time in ", axis_.name));
  }

  const Timeline& timeline_;
  Rows rows_;
  Axis axis_;
  double scale_, most_bytes_, rows_top_, bottom_, resolution_;
  int group_;
  bool with_tips_;
};

/// What the signs mean, in one line.
std::string legend(double y, bool has_waits, int microbatches_a_hue) {
  std::string out;
  double x = kLeft;
  const auto entry = [&](const std::string& sample, const std::string& text, double width) {
    out += sample + text_at(x + 52, y + 4, "", text);
    x += 60 + width;
  };
  const auto hues = [&](Kind kind) {
    std::string sample;
    for (int hue = 0; hue < 3; ++hue) sample += box(x + 15 * hue, y - 7, 14, 14, class_of(kind, hue)) + "/>\n";
    return sample;
  };
  entry(hues(Kind::Forward), "forward", 52);
  entry(hues(Kind::Backward), "backward", 60);
  entry(hues(Kind::BackwardWeight), "gradients of weights", 122);
  entry(box(x + 15, y - 7, 29, 14, "i") + "/>\n", "idle", 28);
  if (has_waits) entry(box(x + 15, y + 1, 29, 3, "c") + "/>\n", "communication", 84);
  entry(concat("<path class=\"a\" d=\"M", px(x + 15), " ", px(y + 7), "V", px(y), "h10v-6h9v6h10v7Z\"/>\n"),
        "activations held, with their peak", 190);
  return out + text_at(x + 15, y + 4, "g",
                       microbatches_a_hue == 1 ? "number, hue: microbatch"
                                               : concat("a hue: ", microbatches_a_hue, " microbatches"));
}

bool has_waits(const Timeline& timeline) {
  for (const std::vector<Slot>& slots : timeline.ranks)
    for (const Slot& slot : slots)
      if (!is_computation(slot.op.kind) && slot.end > slot.start) return true;
  return false;
}

double most_bytes(const Timeline& timeline) {
  double most = 0;
  for (const double bytes : timeline.peak_bytes) most = std::max(most, bytes);
  return most;
}

}  // namespace

std::string draw_svg(const Timeline& timeline, const std::string& title, const Timeline* measured) {
  const double until = std::max(timeline.makespan, measured ? measured->makespan : 0);
  const bool whole = in_whole_units(timeline) && (measured == nullptr || in_whole_units(*measured));
  const bool waits = has_waits(timeline) || (measured && has_waits(*measured));
  const Panel first(timeline, until, most_bytes(timeline), 74, whole);
  std::string body = first.draw(measured ? "simulated: " : "");
  double height = first.bottom();
  if (measured) {
    const Panel second(*measured, until, most_bytes(*measured), height + 22, whole);
    body += second.draw("measured: ", "; bytes of activations as planned, at the measured times");
    height = second.bottom();
  }
  return charts::svg::document(kWidth, height, style(), title, kLeft,
                               legend(46, waits, first.microbatches_a_hue()) + body);
}

}  // namespace megatron::schedule
