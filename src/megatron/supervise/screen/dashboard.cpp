#include "megatron/supervise/screen/dashboard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/format.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"

namespace megatron::supervise {
namespace {

constexpr std::size_t kMaxEvents = 8;

/// The first `width` columns of a text whose characters take one each.
std::string cut_to(const std::string& text, int width) {
  int columns = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (begins && columns++ == width) return text.substr(0, i);
  }
  return text;
}

/// A line of parts, " · " between them, as up to three that break between parts where it is wider than `width`.
std::vector<std::string> wrapped(const std::string& line, int width) {
  constexpr std::string_view kBetween = " · ";
  constexpr std::size_t kMost = 3;
  std::vector<std::string> lines = {""};
  for (std::size_t begin = 0; begin <= line.size();) {
    const std::size_t end = std::min(line.find(kBetween, begin), line.size());
    const std::string part = line.substr(begin, end - begin);
    const std::string longer = lines.back().empty() ? part : concat(lines.back(), kBetween, part);
    if (lines.back().empty() || lines.size() == kMost || cut_to(longer, width) == longer)
      lines.back() = longer;
    else
      lines.push_back(part);
    begin = end + kBetween.size();
  }
  return lines;
}

/// "12:01:07 supervisor: failed exit_code 1 signal 9".
std::string event_text(const nlohmann::json& object) {
  const auto text = [&](const char* name) {
    const auto found = object.find(name);
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
  };
  const std::string time = text("time");
  std::string line = concat(time.size() >= 19 ? time.substr(11, 8) : time, " ", text("source"), ": ", text("event"));
  for (const auto& [name, value] : object.items()) {
    if (name == "time" || name == "source" || name == "event" || value.is_structured() || value.is_null()) continue;
    if (value.is_string() && value.get<std::string>().empty()) continue;
    line += concat(" · ", name, " ", value.is_string() ? value.get<std::string>() : value.dump());
  }
  return printable(line.substr(0, 400));
}

double mean_of_last(const std::vector<StepPoint>& steps, double StepPoint::*member, std::size_t count) {
  double sum = 0;
  std::size_t counted = 0;
  for (std::size_t i = steps.size(); i > 0 && steps.size() - i < count; --i)
    if (const double value = steps[i - 1].*member; std::isfinite(value)) {
      sum += value;
      ++counted;
    }
  return counted > 0 ? sum / static_cast<double>(counted) : std::numeric_limits<double>::quiet_NaN();
}

std::vector<double> values_of(const std::vector<StepPoint>& steps, double StepPoint::*member) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const StepPoint& step : steps) values.push_back(step.*member);
  return values;
}

std::pair<double, double> range_of(const std::vector<double>& values) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values)
    if (std::isfinite(value)) {
      low = std::min(low, value);
      high = std::max(high, value);
    }
  return {low, high};
}

/// What a run is doing, by its heartbeat.
std::string state_of(const WatchedRun& run, double now_unix_s) {
  if (!run.heartbeat()) return run.has_folder() ? "no heartbeat (log.heartbeat_s)" : "waiting for its folder";
  const Heartbeat& beat = *run.heartbeat();
  for (const char* end : {"done", "interrupted", "left early", "failed"})
    if (beat.phase == end) return end;
  const double age_s = now_unix_s - beat.unix_s;
  return concat(beat.phase, age_s > 10 ? concat(", last heartbeat ", human_duration(age_s), " ago") : "");
}

std::string head_line(const WatchedRun& run, double now_unix_s) {
  const std::vector<StepPoint>& steps = run.curves().steps();
  std::string line = printable(run.name());
  const std::int64_t iteration = steps.empty() ? 0 : steps.back().iteration, total = run.train_iters();
  line += concat(" · iteration ", iteration);
  if (total > 0) {
    line +=
        fmt::format(" of {} ({:.0f} %)", total, 100.0 * static_cast<double>(iteration) / static_cast<double>(total));
    const double step_ms = mean_of_last(steps, &StepPoint::step_ms, 50);
    if (iteration < total && std::isfinite(step_ms))
      line +=
          " · ETA " + human_duration(step_ms / 1000 * (static_cast<double>(total) - static_cast<double>(iteration)));
  }
  return line + " · " + state_of(run, now_unix_s);
}

std::string figures_line(const WatchedRun& run) {
  const std::vector<StepPoint>& steps = run.curves().steps();
  if (steps.empty()) return "no steps yet";
  const StepPoint& last = steps.back();
  const auto less = [](const StepPoint& a, const StepPoint& b) {
    return std::isfinite(a.loss) && (!std::isfinite(b.loss) || a.loss < b.loss);
  };
  const StepPoint& lowest = *std::ranges::min_element(steps, less);
  const auto skipped = std::ranges::count_if(steps, &StepPoint::skipped);
  std::string line = fmt::format("loss {:.4f} (lowest {:.4f} at {})", last.loss, lowest.loss, lowest.iteration);
  if (!run.curves().validations().empty()) {
    const ValidationPoint& valid = run.curves().validations().back();
    line += fmt::format(" · valid {:.4f} at {}", valid.loss, valid.iteration);
  }
  line += fmt::format(" · lr {:.3e} · grad norm {:.3f}", last.learning_rate, last.grad_norm);
  const double tokens = mean_of_last(steps, &StepPoint::tokens_per_s, 20),
               step_ms = mean_of_last(steps, &StepPoint::step_ms, 20);
  if (std::isfinite(tokens)) line += concat(" · ", human_count(tokens), " tokens/s");
  if (std::isfinite(step_ms)) line += fmt::format(" · {:.0f} ms", step_ms);
  if (std::isfinite(last.memory_bytes))
    line += concat(" · ", human_bytes(last.memory_bytes), " (peak ", human_bytes(last.peak_memory_bytes), ")");
  if (skipped > 0) line += fmt::format(" · {} skipped", skipped);
  return line;
}

/// An expert that has more, or fewer, of its layer's copies than all others.
struct LoadedExpert {
  std::size_t layer = 0, expert = 0;
  double share = 0;

  std::string text() const { return fmt::format("{:.3g} % (layer {}, expert {})", 100 * share, layer, expert); }
};

/// How unevenly the experts are used; "" of a dense model.
std::string experts_line(const WatchedRun& run) {
  const std::optional<ExpertPoint>& experts = run.curves().experts();
  if (!experts) return "";
  LoadedExpert most{.share = -1}, least{.share = 2};
  for (std::size_t l = 0; l < experts->copies.size(); ++l) {
    const std::vector<double>& layer = experts->copies[l];
    const double total = std::accumulate(layer.begin(), layer.end(), 0.0);
    if (!(total > 0) || !std::isfinite(total)) continue;
    for (std::size_t e = 0; e < layer.size(); ++e) {
      const LoadedExpert one{.layer = l, .expert = e, .share = layer[e] / total};
      if (one.share > most.share) most = one;
      if (one.share < least.share) least = one;
    }
  }
  std::string line;
  if (most.share >= 0)
    line = fmt::format("most {} · least {} · even {:.3g} %", most.text(), least.text(),
                       100.0 / static_cast<double>(experts->copies.front().size()));
  else if (std::isfinite(experts->imbalance))
    line = fmt::format("most {:.3g} x the mean of its layer", experts->imbalance);
  if (std::isfinite(experts->dropped))
    line += fmt::format("{}dropped {:.3g} %", line.empty() ? "" : " · ", 100 * experts->dropped);
  return line.empty() ? "" : "expert load: " + line;
}

/// One curve as a line: its name, its blocks, where it is lowest and highest.
std::string spark_line(const char* name, const std::vector<double>& values, int width) {
  const auto [low, high] = range_of(values);
  if (!(low <= high)) return concat(name, " none");
  constexpr int kLabels = 40;
  return fmt::format("{:<10} {}  {:.3g} … {:.3g}", name, block_chart(values, std::max(8, width - kLabels), 1).front(),
                     low, high);
}

std::vector<std::string> run_lines(const WatchedRun& run, int width, int height, double now_unix_s) {
  const std::vector<StepPoint>& steps = run.curves().steps();
  std::vector<std::string> lines = {head_line(run, now_unix_s)};
  for (const std::string& figures : wrapped(figures_line(run), width - 2)) lines.push_back("  " + figures);
  if (const std::string experts = experts_line(run); !experts.empty())
    for (const std::string& part : wrapped(experts, width - 2)) lines.push_back("  " + part);
  const std::size_t events = std::min<std::size_t>(run.events().size(), height >= 14 ? 3 : 1);
  // The lines above the chart, its axis, three lines of other curves.
  const int of_others = static_cast<int>(lines.size() + 1 + 3 + events);
  if (!steps.empty()) {
    const std::vector<double> losses = values_of(steps, &StepPoint::loss);
    const auto [low, high] = range_of(losses);
    constexpr int kLabel = 11;
    const int chart_lines = std::clamp(height - of_others, 2, 12), columns = std::max(8, width - kLabel - 2);
    const auto chart = block_chart(losses, columns, chart_lines);
    for (std::size_t i = 0; i < chart.size(); ++i) {
      const std::string label = !(low <= high)          ? ""
                                : i == 0                ? fmt::format("{:.4g}", high)
                                : i + 1 == chart.size() ? fmt::format("{:.4g}", low)
                                                        : "";
      lines.push_back(fmt::format("{:>{}} {}", label, kLabel, chart[i]));
    }
    lines.push_back(fmt::format("{:>{}} {} … {}", "loss", kLabel, steps.front().iteration, steps.back().iteration));
    lines.push_back("  " + spark_line("grad norm", values_of(steps, &StepPoint::grad_norm), width));
    lines.push_back("  " + spark_line("tokens/s", values_of(steps, &StepPoint::tokens_per_s), width));
    lines.push_back("  " + spark_line("lr", values_of(steps, &StepPoint::learning_rate), width));
  }
  for (std::size_t i = run.events().size() - events; i < run.events().size(); ++i)
    lines.push_back("  " + run.events()[i]);
  if (static_cast<int>(lines.size()) > height) lines.resize(static_cast<std::size_t>(std::max(height, 1)));
  for (std::string& line : lines) line = cut_to(line, width);
  return lines;
}

}  // namespace

std::vector<std::string> block_chart(const std::vector<double>& values, int width, int height) {
  constexpr const char* kBlocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::vector<double> columns;
  const auto count = static_cast<std::int64_t>(values.size());
  for (std::int64_t c = 0; c < std::min<std::int64_t>(width, count); ++c) {
    double sum = 0;
    int finite = 0;
    const std::int64_t used = std::min<std::int64_t>(width, count);
    for (std::int64_t i = c * count / used; i < (c + 1) * count / used; ++i)
      if (std::isfinite(values[static_cast<std::size_t>(i)])) {
        sum += values[static_cast<std::size_t>(i)];
        ++finite;
      }
    columns.push_back(finite > 0 ? sum / finite : std::numeric_limits<double>::quiet_NaN());
  }
  const auto [low, high] = range_of(columns);
  const int most = 8 * height;
  std::vector<std::string> lines(static_cast<std::size_t>(height));
  for (const double value : columns) {
    int eighths = 0;
    if (std::isfinite(value))
      eighths = high > low ? 1 + static_cast<int>(std::lround((value - low) / (high - low) * (most - 1))) : 4;
    for (int line = 0; line < height; ++line)
      lines[static_cast<std::size_t>(line)] += kBlocks[std::clamp(eighths - 8 * (height - 1 - line), 0, 8)];
  }
  return lines;
}

WatchedRun::WatchedRun(std::string name, const std::filesystem::path& out)
    : name_(std::move(name)), out_(out), curves_(out), event_lines_(out / "events.jsonl") {}

void WatchedRun::read_recipe() {
  const auto recipe = out_ / "recipe.toml";
  if (iters_of_recipe_ >= 0 || !std::filesystem::is_regular_file(recipe)) return;
  iters_of_recipe_ = 0;
  try {
    config::RunConfig config;
    config::set_from_toml_file(config::fields_of(config), recipe.string());
    iters_of_recipe_ = config.train.train_iters;
  } catch (const ConfigError&) {  // only how far the run is to go is not known
  }
}

bool WatchedRun::has_folder() const { return std::filesystem::is_directory(out_); }

std::int64_t WatchedRun::train_iters() const {
  return heartbeat_ && heartbeat_->train_iters > 0 ? heartbeat_->train_iters
                                                   : std::max<std::int64_t>(0, iters_of_recipe_);
}

void WatchedRun::update() {
  read_recipe();
  curves_.update();
  const LineTail::Lines news = event_lines_.next();
  if (news.again) events_.clear();
  for (const std::string& line : news.lines)
    if (const auto object = try_parse_json(line); object && object->is_object()) events_.push_back(event_text(*object));
  if (events_.size() > kMaxEvents) events_.erase(events_.begin(), events_.end() - kMaxEvents);
  heartbeat_ = read_heartbeat(out_ / "heartbeat.json");
}

std::string dashboard(const std::vector<WatchedRun>& runs, int width, int height, double now_unix_s) {
  std::string text;
  const int each = std::max(4, height / std::max(1, static_cast<int>(runs.size())));
  int left = height;
  for (const WatchedRun& run : runs)
    for (const std::string& line : run_lines(run, width, std::min(each, left), now_unix_s)) {
      if (left-- <= 0) return text;
      text += line + "\n";
    }
  return text;
}

}  // namespace megatron::supervise
