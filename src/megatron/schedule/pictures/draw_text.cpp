#include <algorithm>
#include <array>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/schedule/pictures/draw.h"
#include "megatron/schedule/pictures/picture.h"

namespace megatron::schedule {
namespace {

constexpr int kLeastWidth = 64, kMaxColumns = 4096;
constexpr int kSigns = 10;  // 0..9, a..j: w stays free

std::string right_aligned(const std::string& text, std::size_t width) {
  return std::string(text.size() < width ? width - text.size() : 0, ' ') + text;
}

/// Words in lines of at most `width` columns; those that follow are indented.
std::string wrapped(const std::string& text, std::size_t width) {
  std::string out, line;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      out += line + "\n";
      line = " ";
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return out + line + "\n";
}

class TextPicture {
 public:
  TextPicture(const Timeline& timeline, int width, bool colour, bool memory)
      : timeline_(timeline), coloured_(colour), whole_(in_whole_units(timeline)) {
    if (memory)
      for (const std::vector<MemoryPoint>& points : timeline.memory)
        for (const MemoryPoint& point : points) most_bytes_ = std::max(most_bytes_, point.bytes);
    const int ranks = timeline.placement.num_ranks();
    rank_digits_ = concat(ranks - 1).size();
    stage_digits_ = concat(timeline.placement.num_stages() - 1).size();
    lanes_named_ = timeline.placement.num_stages() > ranks;
    prefix_ = head(0, 0).size();
    for (int rank = 0; rank < ranks; ++rank) peak_width_ = std::max(peak_width_, peak_text(timeline, rank).size());
    const double units = std::ceil(timeline.makespan - 1e-6);
    columns_ = kMaxColumns;
    if (width > 0) columns_ = std::max(width, kLeastWidth) - static_cast<int>(prefix_ + 1 + side_width());
    total_width_ = static_cast<std::size_t>(width > 0 ? std::max(width, kLeastWidth) : kMaxColumns);
    if ((whole_ || width == 0) && units <= columns_) columns_ = std::max(static_cast<int>(units), 1);
    until_ = timeline.makespan;
    group_ = microbatches_a_sign(timeline, columns_, until_, kSigns);
  }

  std::string draw() const {
    std::string out;
    for (int rank = 0; rank < timeline_.placement.num_ranks(); ++rank) out += rows_of(rank);
    return out + axis() + legend();
  }

 private:
  std::size_t side_width() const { return 7 + 2 + peak_width_; }  // "| 100 %" follows the row's own bar

  /// What precedes the row of a rank's chunk.
  std::string head(int rank, std::size_t chunk) const {
    const std::string name = "rank " + right_aligned(concat(rank), rank_digits_);
    if (!lanes_named_) return name + " |";
    const std::vector<int>& stages = timeline_.placement.stages_of(rank);
    const std::string stage = right_aligned(concat(stages[chunk]), stage_digits_);
    return (chunk == 0 ? name : std::string(name.size(), ' ')) + " stage " + stage + " |";
  }

  std::string side(int rank) const {
    const double idle =
        timeline_.makespan > 0 ? timeline_.idle[static_cast<std::size_t>(rank)] / timeline_.makespan : 0;
    return right_aligned(percent(idle), 7) + "  " + right_aligned(peak_text(timeline_, rank), peak_width_);
  }

  std::string rows_of(int rank) const {
    const std::vector<const Slot*> cells = cells_of(timeline_, rank, columns_, until_);
    const std::vector<int>& stages = timeline_.placement.stages_of(rank);
    std::string out;
    for (std::size_t chunk = 0; chunk < stages.size(); ++chunk)
      out += head(rank, chunk) + row(cells, stages[chunk]) + "|" + (chunk == 0 ? side(rank) : "") + "\n";
    if (most_bytes_ > 0 && static_cast<std::size_t>(rank) < timeline_.memory.size())
      out += right_aligned("memory |", prefix_) + memory_row(rank) + "|\n";
    return out;
  }

  /// The most that the rank holds in each column, in eighths of what any holds; blank: nothing.
  std::string memory_row(int rank) const {
    static constexpr std::array<const char*, 9> kBars = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    const auto index = static_cast<std::size_t>(rank);
    const std::vector<MemoryPoint>& points = timeline_.memory[index];
    const double width = until_ / columns_, rounding = 1e-9 * width;
    std::string out;
    double held = 0;  // at the column's end
    std::size_t next = 0;
    for (int column = 0; column < columns_; ++column) {
      for (; next < points.size() && points[next].time <= column * width + rounding; ++next) held = points[next].bytes;
      double most = held;
      for (; next < points.size() && points[next].time < (column + 1) * width - rounding; ++next)
        most = std::max(most, held = points[next].bytes);
      const double eighths = std::ceil(8 * most / most_bytes_ - 1e-9);
      out += kBars[static_cast<std::size_t>(std::clamp(eighths, 0.0, 8.0))];
    }
    return out;
  }

  std::string row(const std::vector<const Slot*>& cells, int stage) const {
    std::string out, style;
    for (const Slot* slot : cells) {
      const bool here = slot != nullptr && slot->op.stage == stage;
      const std::string wanted = here && coloured_ ? style_of(slot->op) : "";
      if (wanted != style) out += wanted.empty() ? "\x1b[0m" : wanted;
      style = wanted;
      out += here ? sign(slot->op) : slot == nullptr ? '.' : ' ';
    }
    return style.empty() ? out : out + "\x1b[0m";
  }

  char sign(const Op& op) const {
    if (op.kind == Kind::BackwardWeight) return 'w';
    return static_cast<char>((op.kind == Kind::Forward ? '0' : 'a') + op.microbatch / group_ % kSigns);
  }

  /// The nearest colour of the 6 x 6 x 6 cube that terminals of 256 colours have.
  std::string style_of(const Op& op) const {
    const Tone tone = tone_of(op.kind);
    int cube = 0;
    for (const int channel : colour(op.microbatch / group_, tone))
      cube = cube * 6 + (channel < 48 ? 0 : channel < 115 ? 1 : (channel - 35) / 40);
    return concat("\x1b[", tone == Tone::Dark ? 97 : 30, ";48;5;", 16 + cube, "m");
  }

  std::string axis() const {
    const Axis axis(until_, std::max(columns_ / 8, 2), whole_);
    std::string line(static_cast<std::size_t>(columns_) + 1, ' ');
    for (int i = 0; i <= axis.num_ticks && until_ > 0; ++i) {
      const auto at = static_cast<std::size_t>(std::lround(i * axis.step / until_ * columns_));
      const std::string label = axis.text(i * axis.step, false);
      if (at + label.size() <= line.size()) line.replace(at, label.size(), label);
    }
    return std::string(prefix_, ' ') + line + right_aligned("idle", 7) + "  " + right_aligned("peak", peak_width_) +
           "\n";
  }

  std::string legend() const {
    const Axis axis(until_, std::max(columns_ / 8, 2), whole_);
    std::string out =
        wrapped(concat("makespan ", axis.text(timeline_.makespan, true), ", bubble ", percent(timeline_.bubble, 1),
                       ", a column is ", axis.text(until_ / columns_, true)),
                total_width_);
    std::string signs = "0 forward, a backward";
    const bool splits = splits_backward();
    if (group_ > 1)
      signs += concat(" of microbatches 0-", std::min(group_, timeline_.num_microbatches) - 1, ", 1 and b of the next ",
                      group_, " and so on");
    else
      signs += timeline_.num_microbatches > kSigns ? concat(" of microbatch 0, ", kSigns, ", …") : " of microbatch 0";
    if (splits) signs += ", w gradients of weights";
    signs += ", . idle";
    signs += "; idle: share of the rank's time; peak: live activations";
    if (most_bytes_ > 0) signs += "; memory: planned bytes of activations, █ the most that a rank holds";
    return out + wrapped(signs, total_width_);
  }

  bool splits_backward() const {
    for (const std::vector<Slot>& slots : timeline_.ranks)
      for (const Slot& slot : slots)
        if (slot.op.kind == Kind::BackwardWeight) return true;
    return false;
  }

  const Timeline& timeline_;
  bool coloured_, whole_;
  bool lanes_named_ = false;
  std::size_t rank_digits_ = 1, stage_digits_ = 1, prefix_ = 0, peak_width_ = 4, total_width_ = 0;
  int columns_ = 1, group_ = 1;
  double until_ = 0, most_bytes_ = 0;
};

}  // namespace

std::string draw_text(const Timeline& timeline, int width, bool colour, bool memory) {
  return TextPicture(timeline, width, colour, memory).draw();
}

}  // namespace megatron::schedule
