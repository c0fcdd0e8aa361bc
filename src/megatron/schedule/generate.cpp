#include "megatron/schedule/generate.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/schedule/schedules/turns.h"

namespace megatron::schedule {
namespace {

constexpr int kOpsOfMicrobatch = 12;  // on one stage at most: computations, posts, waits

void check_size(std::int64_t num_ranks, std::int64_t num_stages, std::int64_t num_microbatches) {
  if (num_ranks < 1 || num_stages < 1 || num_microbatches < 1)
    throw ConfigError(rule_got_fix(
        "a pipeline has at least one rank, one stage a rank and one microbatch.",
        concat(num_ranks, " ranks, ", num_stages, " stages, ", num_microbatches, " microbatches"), "--pp 1 --vpp 1"));
  if (num_ranks > kMaxRanks || num_stages > kMaxStages || num_microbatches > kMaxMicrobatches ||
      num_stages * num_microbatches > kMaxOps / kOpsOfMicrobatch)
    throw ConfigError(
        rule_got_fix(concat("a pipeline has at most ", kMaxRanks, " ranks, ", kMaxStages, " stages, ", kMaxMicrobatches,
                            " microbatches, and ", kMaxOps / kOpsOfMicrobatch, " pairs of stage and microbatch."),
                     concat(num_ranks, " ranks, ", num_stages, " stages, ", num_microbatches, " microbatches"),
                     "--global-batch-size 0 (one microbatch), or fewer stages"));
}

void check(const Shape& shape) {
  check_size(shape.num_ranks, static_cast<std::int64_t>(shape.num_ranks) * shape.num_chunks, shape.num_microbatches);
}

std::string of_stages(int count) { return concat(count, count == 1 ? " stage per rank" : " stages per rank"); }

/// Throws ConfigError where the schedule is for other shapes.
void check(const ScheduleInfo& info, const Shape& shape) {
  check(shape);
  if (!info.takes(shape.num_chunks))
    throw ConfigError(
        rule_got_fix(concat("schedule ", info.name, " has ", info.min_chunks == info.max_chunks ? "" : "at least ",
                            of_stages(info.min_chunks), "."),
                     of_stages(shape.num_chunks) + " (parallel.vpp)",
                     concat("--vpp ", info.min_chunks, ", or --schedule ", default_schedule(shape.num_chunks).name)));
  if (shape.num_microbatches < info.min_microbatches(shape.num_ranks))
    throw ConfigError(
        rule_got_fix(concat("schedule ", info.name, " has at least ", info.microbatches_per_rank,
                            " microbatches per pipeline rank in a step."),
                     concat(shape.num_microbatches, " microbatches, ", shape.num_ranks, " pipeline ranks"),
                     concat("--schedule ", default_schedule(shape.num_chunks).name)));
}

Program empty_program(Placement placement, int num_microbatches) {
  Program program;
  program.ranks.resize(static_cast<std::size_t>(placement.num_ranks()));
  program.placement = std::move(placement);
  program.num_microbatches = num_microbatches;
  return program;
}

/// The most activations that the rank holds at once.
int peak_live(const std::vector<Op>& ops) {
  int live = 0, peak = 0;
  for (const Op& op : ops) {
    if (op.kind == Kind::Forward) peak = std::max(peak, ++live);
    if (op.kind == Kind::Backward || op.kind == Kind::BackwardWeight) --live;
  }
  return peak;
}

}  // namespace

Program accumulate(const Shape& shape) {
  check(shape);
  if (shape.num_ranks != 1)
    throw ConfigError(
        rule_got_fix("accumulation without a pipeline is for one rank.", concat(shape.num_ranks, " ranks"), "--pp 1"));
  Program program = empty_program(Placement::looped(1, shape.num_chunks), shape.num_microbatches);
  program.max_live = {shape.num_chunks};
  for (int m = 0; m < shape.num_microbatches; ++m) {
    for (int stage = 0; stage < shape.num_chunks; ++stage) program.ranks[0].push_back({Kind::Forward, stage, m});
    for (int stage = shape.num_chunks - 1; stage >= 0; --stage) program.ranks[0].push_back({Kind::Backward, stage, m});
  }
  return program;
}

Program forward_only(const Shape& shape) {
  check(shape);
  Program program = empty_program(Placement::looped(shape.num_ranks, shape.num_chunks), shape.num_microbatches);
  program.forward_only = true;
  const std::vector<Turn> turns = turns_of(group_sizes(shape), shape.num_chunks);
  for (int rank = 0; rank < shape.num_ranks; ++rank)
    for (const Turn& turn : turns)
      program.ranks[static_cast<std::size_t>(rank)].push_back(
          {Kind::Forward, turn.chunk * shape.num_ranks + rank, turn.microbatch});
  return program;
}

Program forward_only(const Placement& placement, int num_microbatches) {
  check_size(placement.num_ranks(), placement.num_stages(), num_microbatches);
  const Shape shape{.num_ranks = placement.num_ranks(),
                    .num_chunks = placement.num_stages() / placement.num_ranks(),
                    .num_microbatches = num_microbatches};
  if (placement == Placement::looped(shape.num_ranks, shape.num_chunks)) return forward_only(shape);
  Program program = empty_program(placement, num_microbatches);
  program.forward_only = true;
  const auto num_stages = static_cast<std::size_t>(placement.num_stages());
  std::vector<int> arrived(num_stages, 0), done(num_stages, 0);  // microbatches, by stage
  arrived[0] = num_microbatches;
  // In each unit of time every rank takes the microbatch that has come furthest: it makes room, and others wait for it.
  std::vector<std::size_t> passed_on;
  for (int left = placement.num_stages() * num_microbatches; left > 0;) {
    passed_on.clear();
    for (int rank = 0; rank < placement.num_ranks(); ++rank) {
      const std::vector<int>& stages = placement.stages_of(rank);
      const auto ready = std::find_if(stages.rbegin(), stages.rend(), [&](int stage) {
        return done[static_cast<std::size_t>(stage)] < arrived[static_cast<std::size_t>(stage)];
      });
      if (ready == stages.rend()) continue;
      const auto stage = static_cast<std::size_t>(*ready);
      program.ranks[static_cast<std::size_t>(rank)].push_back({Kind::Forward, *ready, done[stage]++});
      if (stage + 1 < num_stages) passed_on.push_back(stage + 1);
      --left;
    }
    for (const std::size_t stage : passed_on) ++arrived[stage];
  }
  return program;
}

Program generate(const ScheduleInfo& info, const Shape& shape) {
  check(info, shape);
  Program program = empty_program(
      info.v_shaped ? Placement::v_shaped(shape.num_ranks) : Placement::looped(shape.num_ranks, shape.num_chunks),
      shape.num_microbatches);
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::vector<Op>& ops = program.ranks[static_cast<std::size_t>(rank)];
    ops = info.generator(shape, rank);
    program.max_live.push_back(peak_live(ops));
  }
  return program;
}

Program generate(const std::string& name, const Shape& shape) {
  if (name == kAuto) return choose(shape, {}, 0).program;
  const ScheduleInfo& info = schedule_named(name);
  return shape.num_ranks == 1 && shape.num_chunks == 1 ? accumulate(shape) : generate(info, shape);
}

namespace {

/// What choose() simulates: the default first, so that it wins among equals.
std::vector<const ScheduleInfo*> suitable(const Candidate& candidate) {
  const Shape& shape = candidate.shape;
  std::vector<const ScheduleInfo*> infos = {&default_schedule(shape.num_chunks)};
  if (shape.num_ranks == 1 && shape.num_chunks == 1) return infos;  // all of them accumulate
  const int fewest = candidate.fewest_microbatches > 0 ? candidate.fewest_microbatches : shape.num_microbatches;
  for (const ScheduleInfo& info : schedules())
    if (&info != infos.front() && info.takes(shape.num_chunks) && info.min_microbatches(shape.num_ranks) <= fewest)
      infos.push_back(&info);
  return infos;
}

/// The most bytes that a rank holds.
double peak_of(const Timeline& timeline, const Candidate& candidate) {
  double peak = 0;
  for (int rank = 0; rank < timeline.placement.num_ranks(); ++rank) {
    double beside = 0;
    const std::set<int> partial = partial_stages(timeline, rank);
    for (const int stage : timeline.placement.stages_of(rank)) {
      const std::vector<double>& bytes =
          partial.contains(stage) ? candidate.partial_backward_bytes : candidate.backward_bytes;
      if (!bytes.empty()) beside = std::max(beside, bytes[static_cast<std::size_t>(stage)]);
    }
    peak = std::max(peak, timeline.peak_bytes[static_cast<std::size_t>(rank)] + beside);
  }
  return peak;
}

std::string whole(double bytes) { return std::to_string(static_cast<std::int64_t>(std::ceil(bytes))); }

}  // namespace

Choice choose(const std::vector<Candidate>& candidates, Communication how, double memory_limit_bytes) {
  std::optional<Choice> best;
  std::vector<std::pair<double, std::string>> peaks;  // of bytes, with the schedule's name
  for (const Candidate& candidate : candidates) {
    check(candidate.shape);
    for (const ScheduleInfo* info : suitable(candidate)) {
      Choice choice{
          info->name, mark_partial(generate(info->name, candidate.shape), candidate.partial_microbatches), {}};
      choice.timeline = simulate(insert_communication(choice.program, how), candidate.costs);
      const double peak = peak_of(choice.timeline, candidate);
      peaks.emplace_back(peak, info->name);
      if (memory_limit_bytes > 0 && peak > memory_limit_bytes) continue;
      if (!best || choice.timeline.makespan < best->timeline.makespan * (1 - 1e-9)) best = std::move(choice);
    }
  }
  if (best) return *std::move(best);
  std::ranges::stable_sort(peaks, {}, &std::pair<double, std::string>::first);
  std::string listed;
  for (const auto& [peak, name] : peaks) listed += concat(listed.empty() ? "" : ", ", name, " ", whole(peak));
  throw ConfigError(rule_got_fix("activations must fit in parallel.pp_memory_limit with some schedule.",
                                 concat("limit ", whole(memory_limit_bytes), " bytes; peaks: ", listed),
                                 "--parallel.pp_memory_limit " + whole(peaks.empty() ? 0 : peaks.front().first)));
}

Choice choose(const Shape& shape, const Costs& costs, double memory_limit_bytes) {
  return choose({{shape, costs}}, Communication::Overlapped, memory_limit_bytes);
}

}  // namespace megatron::schedule
