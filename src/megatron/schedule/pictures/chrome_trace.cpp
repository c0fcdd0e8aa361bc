#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/schedule/pictures/draw.h"
#include "megatron/schedule/pictures/picture.h"

// The format: "Trace Event Format", Google 2016. "M" events name threads, "X" events are slots, "C" events counters.
namespace megatron::schedule {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 8;  // a trace needs 4
constexpr double kMaxTime_s = 1e9;    // of a time
constexpr double kOverlap_s = 2e-9;   // what rounding to nanoseconds makes of slots that touch

/// Seconds as microseconds, to the nanosecond.
double microseconds(double seconds) { return std::round(seconds * 1e9) / 1e3; }

const char* category(Kind kind) {
  switch (kind) {
    case Kind::Forward:
      return "forward";
    case Kind::Backward:
    case Kind::BackwardInput:
      return "backward";
    case Kind::BackwardWeight:
      return "weight gradients";
    default:
      return "communication";
  }
}

/// Reads a trace that anyone may have written.
class TraceReader {
 public:
  TraceReader(const std::string& text, const std::string& name) : name_(name) {
    const json root = parse(text);
    read_pipeline(root);
    read_events(root.at("traceEvents"));
    check_order();
    check_complete();
  }

  Timeline timeline() {
    const std::vector<std::vector<MemoryPoint>> measured = std::move(timeline_.memory);
    timeline_.memory.clear();
    summarize(timeline_, {});
    for (std::size_t rank = 0; rank < measured.size(); ++rank) {
      if (measured[rank].empty()) continue;
      timeline_.memory[rank] = measured[rank];
      timeline_.peak_bytes[rank] = 0;
      for (const MemoryPoint& point : measured[rank])
        timeline_.peak_bytes[rank] = std::max(timeline_.peak_bytes[rank], point.bytes);
    }
    return std::move(timeline_);
  }

 private:
  [[noreturn]] void wrong(const std::string& got) const {
    throw ConfigError(rule_got_fix(concat(name_, ": must be a pipeline's trace as --log.trace writes it."), got,
                                   "name the .json that a run with --log.trace has written"));
  }

  json parse(const std::string& text) const {
    json root;
    try {
      root = parse_json(text, kMaxDepth);
    } catch (const JsonError& error) {
      wrong(error.what());
    }
    if (!root.is_object() || !root.contains("traceEvents") || !root["traceEvents"].is_array())
      wrong("no \"traceEvents\"");
    return root;
  }

  /// The whole number `value[key]` from 0 to below `bound`.
  int whole(const json& value, const char* key, std::size_t bound) const {
    if (!value.is_object() || !value.contains(key) || !value[key].is_number_unsigned() ||
        value[key].template get<std::uint64_t>() >= bound)
      wrong(concat("a \"", key, "\" that is no whole number below ", bound));
    return static_cast<int>(value[key].template get<std::uint64_t>());
  }

  double number(const json& value, const char* key, double bound) const {
    if (!value.is_object() || !value.contains(key) || !value[key].is_number()) wrong(concat("an event without ", key));
    const double result = value[key];
    if (!(result >= 0 && result <= bound)) wrong(concat("a \"", key, "\" of ", result));
    return result;
  }

  void read_pipeline(const json& root) {
    const json pipeline = root.value("pipeline", json());
    if (!pipeline.is_object() || !pipeline.contains("rank_of_stage") || !pipeline["rank_of_stage"].is_array())
      wrong("no \"pipeline\" with \"rank_of_stage\"");
    const json& ranks = pipeline["rank_of_stage"];
    if (ranks.empty() || static_cast<std::int64_t>(ranks.size()) > kMaxStages) wrong(concat(ranks.size(), " stages"));
    std::vector<int> rank_of_stage;
    for (const json& rank : ranks) {
      if (!rank.is_number_unsigned() || rank.get<std::uint64_t>() >= ranks.size()) wrong("a stage on no rank");
      rank_of_stage.push_back(rank.get<int>());
    }
    std::vector<bool> used(static_cast<std::size_t>(*std::max_element(rank_of_stage.begin(), rank_of_stage.end())) + 1);
    for (const int rank : rank_of_stage) used[static_cast<std::size_t>(rank)] = true;
    if (std::find(used.begin(), used.end(), false) != used.end()) wrong("a rank without a stage");
    timeline_.placement = Placement(std::move(rank_of_stage));
    // Every microbatch has an event on every stage, so their number is bounded by what the file holds.
    const std::size_t stages = ranks.size(), events = root["traceEvents"].size();
    timeline_.num_microbatches = whole(pipeline, "num_microbatches", events / stages + 1);
    if (timeline_.num_microbatches == 0) wrong("no microbatch");
    timeline_.ranks.resize(static_cast<std::size_t>(timeline_.placement.num_ranks()));
    timeline_.memory.resize(timeline_.ranks.size());
  }

  void read_events(const json& events) {
    for (const json& event : events) {
      const std::string phase = event.is_object() ? text_of(event, "ph") : "";
      if (phase == "X")
        read_slot(event);
      else if (phase == "C")
        read_memory(event);
      else if (phase != "M")
        wrong("an event of phase \"" + phase.substr(0, 8) + "\"");
    }
  }

  static std::string text_of(const json& value, const char* key) {
    const auto found = value.find(key);
    return found != value.end() && found->is_string() ? found->get<std::string>() : "";
  }

  void read_slot(const json& event) {
    const std::size_t rank = static_cast<std::size_t>(whole(event, "tid", timeline_.ranks.size()));
    const json args = event.value("args", json());
    Slot slot;
    slot.op.stage = whole(args, "stage", static_cast<std::size_t>(timeline_.placement.num_stages()));
    slot.op.microbatch = whole(args, "microbatch", static_cast<std::size_t>(timeline_.num_microbatches));
    const std::string kind = text_of(args, "kind");
    int number_of_kind = 0;
    while (number_of_kind < kNumKinds && to_string(static_cast<Kind>(number_of_kind)) != kind) ++number_of_kind;
    if (number_of_kind == kNumKinds) wrong("an operation of kind \"" + kind.substr(0, 8) + "\"");
    slot.op.kind = static_cast<Kind>(number_of_kind);
    if (const auto partial = args.find("partial"); partial != args.end()) {
      if (!partial->is_boolean()) wrong("an operation whose \"partial\" is no boolean");
      slot.op.partial = partial->get<bool>();
    }
    if (timeline_.placement.rank_of(slot.op.stage) != static_cast<int>(rank))
      wrong(concat(to_string(slot.op), " on rank ", rank, ", which does not hold its stage"));
    const double start = number(event, "ts", kMaxTime_s * 1e6), length = number(event, "dur", kMaxTime_s * 1e6);
    slot.start = start / 1e6;
    slot.end = (start + length) / 1e6;
    timeline_.ranks[rank].push_back(slot);
  }

  void read_memory(const json& event) {
    const json args = event.value("args", json());
    const std::size_t rank = static_cast<std::size_t>(whole(event, "tid", timeline_.ranks.size()));
    timeline_.memory[rank].push_back({number(event, "ts", kMaxTime_s * 1e6) / 1e6, number(args, "bytes", 1e18)});
  }

  void check_order() {
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank) {
      std::vector<Slot>& slots = timeline_.ranks[rank];
      const auto earlier = [](const auto& a, const auto& b) { return a.start < b.start; };
      std::stable_sort(slots.begin(), slots.end(), earlier);
      for (std::size_t i = 1; i < slots.size(); ++i)
        if (slots[i].start < slots[i - 1].end - kOverlap_s)
          wrong(
              concat("rank ", rank, " does ", to_string(slots[i - 1].op), " and ", to_string(slots[i].op), " at once"));
      const auto before = [](const MemoryPoint& a, const MemoryPoint& b) { return a.time < b.time; };
      std::stable_sort(timeline_.memory[rank].begin(), timeline_.memory[rank].end(), before);
    }
  }

  /// Each forward once, each backward at most once and after it: what counting live activations relies on.
  void check_complete() {
    enum : std::uint8_t { Nothing, Forwarded, InputDone, Done };
    const auto microbatches = static_cast<std::size_t>(timeline_.num_microbatches);
    std::vector<std::uint8_t> state(static_cast<std::size_t>(timeline_.placement.num_stages()) * microbatches, Nothing);
    for (const std::vector<Slot>& slots : timeline_.ranks)
      for (const Slot& slot : slots) {
        if (!is_computation(slot.op.kind)) continue;
        std::uint8_t& at = state[static_cast<std::size_t>(slot.op.stage) * microbatches +
                                 static_cast<std::size_t>(slot.op.microbatch)];
        const std::uint8_t needed = slot.op.kind == Kind::Forward          ? Nothing
                                    : slot.op.kind == Kind::BackwardWeight ? InputDone
                                                                           : Forwarded;
        if (at != needed) wrong(concat(to_string(slot.op), " twice, or before what it needs"));
        at = slot.op.kind == Kind::Forward ? Forwarded : slot.op.kind == Kind::BackwardInput ? InputDone : Done;
      }
    for (std::size_t i = 0; i < state.size(); ++i)
      if (state[i] == Nothing)
        wrong(concat("stage ", i / microbatches, " without a forward of microbatch ", i % microbatches));
  }

  std::string name_;
  Timeline timeline_;
};

json metadata(const char* what, int rank, json args) {
  return {{"name", what}, {"ph", "M"}, {"pid", 0}, {"tid", rank}, {"args", std::move(args)}};
}

}  // namespace

std::string chrome_trace(const Timeline& timeline) {
  json events = json::array();
  events.push_back(metadata("process_name", 0, {{"name", "pipeline"}}));
  json rank_of_stage = json::array();
  for (int stage = 0; stage < timeline.placement.num_stages(); ++stage)
    rank_of_stage.push_back(timeline.placement.rank_of(stage));
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const std::string name = concat("rank ", rank);
    events.push_back(metadata("thread_name", static_cast<int>(rank), {{"name", name}}));
    events.push_back(metadata("thread_sort_index", static_cast<int>(rank), {{"sort_index", rank}}));
    for (const Slot& slot : timeline.ranks[rank])
      events.push_back({{"name", to_string(slot.op)},
                        {"cat", category(slot.op.kind)},
                        {"ph", "X"},
                        {"pid", 0},
                        {"tid", rank},
                        {"ts", microseconds(slot.start)},
                        {"dur", microseconds(microseconds(slot.end) / 1e6 - microseconds(slot.start) / 1e6)},
                        {"args",
                         {{"kind", to_string(slot.op.kind)},
                          {"stage", slot.op.stage},
                          {"microbatch", slot.op.microbatch},
                          {"partial", slot.op.partial}}}});
    if (rank >= timeline.memory.size()) continue;
    for (const MemoryPoint& point : timeline.memory[rank])
      events.push_back({{"name", "activations of " + name},
                        {"ph", "C"},
                        {"pid", 0},
                        {"tid", rank},
                        {"ts", microseconds(point.time)},
                        {"args", {{"bytes", point.bytes}}}});
  }
  return json{{"displayTimeUnit", "ms"},
              {"pipeline", {{"rank_of_stage", rank_of_stage}, {"num_microbatches", timeline.num_microbatches}}},
              {"traceEvents", std::move(events)}}
      .dump();
}

Timeline parse_chrome_trace(const std::string& text, const std::string& name) {
  return TraceReader(text, name).timeline();
}

}  // namespace megatron::schedule
