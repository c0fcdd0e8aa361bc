#include "megatron/schedule/generate.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/nearest.h"

namespace megatron::schedule {
namespace {

constexpr std::array<std::pair<Name, const char*>, 6> kNames = {{{Name::Auto, "auto"},
                                                                 {Name::GPipe, "gpipe"},
                                                                 {Name::OneFOneB, "1f1b"},
                                                                 {Name::Interleaved, "interleaved"},
                                                                 {Name::ZeroBubbleH1, "zb-h1"},
                                                                 {Name::ZeroBubbleV, "zb-v"}}};
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

void check_chunks(const Shape& shape, int num_chunks, const char* name) {
  check(shape);
  if (shape.num_chunks != num_chunks)
    throw ConfigError(
        rule_got_fix(concat("schedule ", name, " has ", num_chunks, " stage", num_chunks == 1 ? "" : "s", " a rank."),
                     concat(shape.num_chunks, " stages a rank (parallel.vpp)"),
                     concat("--vpp ", num_chunks, num_chunks == 1 ? ", or --schedule interleaved" : "")));
}

Program empty_program(Placement placement, int num_microbatches) {
  Program program;
  program.ranks.resize(static_cast<std::size_t>(placement.num_ranks()));
  program.placement = std::move(placement);
  program.num_microbatches = num_microbatches;
  return program;
}

/// Microbatches 0, 1, 2, … of one kind of op on one stage.
class Counter {
 public:
  Counter(std::vector<Op>& ops, int num_microbatches) : ops_(ops), num_microbatches_(num_microbatches) {}

  /// Past the last microbatch an op is counted and left out.
  void next(Kind kind, int stage) {
    if (done < num_microbatches_) ops_.push_back({kind, stage, done});
    ++done;
  }

  int done = 0;

 private:
  std::vector<Op>& ops_;
  int num_microbatches_;
};

/// The sizes of the groups of microbatches that pass through a chunk before the next chunk takes them. What does not
/// fill a group of its own that keeps all ranks busy is spread over the groups: with fewer microbatches than ranks in
/// a group, ranks would wait for one another in a ring.
std::vector<int> group_sizes(const Shape& shape) {
  const int group = shape.microbatch_group == 0 ? shape.num_ranks : shape.microbatch_group;
  if (group < shape.num_ranks)
    throw ConfigError(
        rule_got_fix("a group of microbatches is at least as large as the pipeline.",
                     concat("parallel.microbatch_group_size=", shape.microbatch_group, ", ", shape.num_ranks, " ranks"),
                     concat("--parallel.microbatch_group_size ", shape.num_ranks)));
  if (shape.num_microbatches <= group) return {shape.num_microbatches};
  std::vector<int> sizes(static_cast<std::size_t>(shape.num_microbatches / group), group);
  const int rest = shape.num_microbatches % group;
  if (rest >= shape.num_ranks)
    sizes.push_back(rest);
  else
    for (int i = 0; i < rest; ++i) ++sizes[static_cast<std::size_t>(i) % sizes.size()];
  return sizes;
}

/// The order in which a rank takes chunks and microbatches.
struct Turn {
  int chunk = 0, microbatch = 0;
};

std::vector<Turn> turns_of(const std::vector<int>& sizes, int num_chunks) {
  std::vector<Turn> turns;
  int first = 0;
  for (const int size : sizes) {
    for (int chunk = 0; chunk < num_chunks; ++chunk)
      for (int i = 0; i < size; ++i) turns.push_back({chunk, first + i});
    first += size;
  }
  return turns;
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

Program gpipe(const Shape& shape) {
  check_chunks(shape, 1, "gpipe");
  Program program = empty_program(Placement::looped(shape.num_ranks, 1), shape.num_microbatches);
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::vector<Op>& ops = program.ranks[static_cast<std::size_t>(rank)];
    for (int m = 0; m < shape.num_microbatches; ++m) ops.push_back({Kind::Forward, rank, m});
    for (int m = 0; m < shape.num_microbatches; ++m) ops.push_back({Kind::Backward, rank, m});
    program.max_live.push_back(shape.num_microbatches);
  }
  return program;
}

Program one_f_one_b(const Shape& shape) {
  check_chunks(shape, 1, "1f1b");
  Program program = empty_program(Placement::looped(shape.num_ranks, 1), shape.num_microbatches);
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::vector<Op>& ops = program.ranks[static_cast<std::size_t>(rank)];
    const int warm_up = std::min(shape.num_ranks - rank - 1, shape.num_microbatches);
    Counter forward(ops, shape.num_microbatches), backward(ops, shape.num_microbatches);
    while (forward.done < warm_up) forward.next(Kind::Forward, rank);
    while (forward.done < shape.num_microbatches) {
      forward.next(Kind::Forward, rank);
      backward.next(Kind::Backward, rank);
    }
    while (backward.done < shape.num_microbatches) backward.next(Kind::Backward, rank);
    program.max_live.push_back(std::min(shape.num_ranks - rank, shape.num_microbatches));
  }
  return program;
}

Program interleaved(const Shape& shape) {
  check(shape);
  const std::vector<int> sizes = group_sizes(shape);
  const std::vector<Turn> turns = turns_of(sizes, shape.num_chunks);
  const int total = static_cast<int>(turns.size());
  const int largest = *std::max_element(sizes.begin(), sizes.end());
  Program program = empty_program(Placement::looped(shape.num_ranks, shape.num_chunks), shape.num_microbatches);
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::vector<Op>& ops = program.ranks[static_cast<std::size_t>(rank)];
    ops.reserve(2 * turns.size());
    const auto forward = [&](int turn) {
      const Turn& t = turns[static_cast<std::size_t>(turn)];
      ops.push_back({Kind::Forward, t.chunk * shape.num_ranks + rank, t.microbatch});
    };
    const auto backward = [&](int turn) {  // the last chunk first
      const Turn& t = turns[static_cast<std::size_t>(turn)];
      ops.push_back({Kind::Backward, (shape.num_chunks - 1 - t.chunk) * shape.num_ranks + rank, t.microbatch});
    };
    const int warm_up = std::min(2 * (shape.num_ranks - rank - 1) + (shape.num_chunks - 1) * largest, total);
    for (int turn = 0; turn < warm_up; ++turn) forward(turn);
    for (int turn = warm_up; turn < total; ++turn) {
      forward(turn);
      backward(turn - warm_up);
    }
    for (int turn = total - warm_up; turn < total; ++turn) backward(turn);
    program.max_live.push_back(std::min(warm_up + 1, total));
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

Program zero_bubble_h1(const Shape& shape) {
  check_chunks(shape, 1, "zb-h1");
  Program program = empty_program(Placement::looped(shape.num_ranks, 1), shape.num_microbatches);
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::vector<Op>& ops = program.ranks[static_cast<std::size_t>(rank)];
    const int warm_up = std::min(shape.num_ranks - rank - 1, shape.num_microbatches);
    Counter forward(ops, shape.num_microbatches), input(ops, shape.num_microbatches),
        weight(ops, shape.num_microbatches);
    while (forward.done < warm_up) forward.next(Kind::Forward, rank);
    while (forward.done < shape.num_microbatches) {
      forward.next(Kind::Forward, rank);
      input.next(Kind::BackwardInput, rank);
      // As many as the warm-up is shorter than rank 0's are put off: then each rank keeps as much as rank 0 does.
      if (input.done - weight.done > rank) weight.next(Kind::BackwardWeight, rank);
    }
    while (input.done < shape.num_microbatches) {
      input.next(Kind::BackwardInput, rank);
      weight.next(Kind::BackwardWeight, rank);
    }
    while (weight.done < shape.num_microbatches) weight.next(Kind::BackwardWeight, rank);
    program.max_live.push_back(std::min(shape.num_ranks, shape.num_microbatches));
  }
  return program;
}

namespace {

/// One rank of ZB-V: a warm-up that fills it to 2p - 1 stage activations, a steady state in which each takes the place
/// of one that has just gone, and a cool-down with weight gradients in the gaps.
void rank_of_zero_bubble_v(std::vector<Op>& ops, int rank, int num_ranks, int num_microbatches) {
  const int down = rank, up = 2 * num_ranks - 1 - rank;  // its two stages
  const int rounds = std::max(num_microbatches, 2 * num_ranks - 1);
  Counter forward_down(ops, num_microbatches), forward_up(ops, num_microbatches), input_down(ops, num_microbatches),
      input_up(ops, num_microbatches), weight_down(ops, num_microbatches), weight_up(ops, num_microbatches);
  const auto backward_up = [&] {
    input_up.next(Kind::BackwardInput, up);
    weight_up.next(Kind::BackwardWeight, up);
  };
  const auto backward_down = [&] {
    input_down.next(Kind::BackwardInput, down);
    weight_down.next(Kind::BackwardWeight, down);
  };
  while (forward_down.done < 2 * (num_ranks - rank) - 1) forward_down.next(Kind::Forward, down);
  for (int i = 0; i < rank; ++i) {
    forward_up.next(Kind::Forward, up);
    forward_down.next(Kind::Forward, down);
  }
  for (int i = rank; i < num_ranks; ++i) {
    forward_up.next(Kind::Forward, up);
    backward_up();
  }
  while (forward_up.done < rounds) {
    if (forward_down.done < rounds) forward_down.next(Kind::Forward, down);
    backward_down();
    forward_up.next(Kind::Forward, up);
    backward_up();
  }
  for (int i = 0; i < rank; ++i) {
    input_down.next(Kind::BackwardInput, down);
    input_up.next(Kind::BackwardInput, up);
  }
  while (input_down.done < rounds) backward_down();
  while (weight_up.done < rounds) weight_up.next(Kind::BackwardWeight, up);
  while (weight_down.done < rounds) weight_down.next(Kind::BackwardWeight, down);
}

/// At most 2p; fewer where the microbatches end before ranks are full.
int most_live(const std::vector<Op>& ops) {
  int live = 0, most = 0;
  for (const Op& op : ops) {
    if (op.kind == Kind::Forward) most = std::max(most, ++live);
    if (op.kind == Kind::BackwardWeight) --live;
  }
  return most;
}

}  // namespace

Program zero_bubble_v(const Shape& shape) {
  check_chunks(shape, 2, "zb-v");
  Program program = empty_program(Placement::v_shaped(shape.num_ranks), shape.num_microbatches);
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::vector<Op>& ops = program.ranks[static_cast<std::size_t>(rank)];
    rank_of_zero_bubble_v(ops, rank, shape.num_ranks, shape.num_microbatches);
    program.max_live.push_back(most_live(ops));
  }
  return program;
}

Name name_of(const std::string& text) {
  std::vector<std::string> known_names;
  for (const auto& [name, known] : kNames) {
    if (text == known) return name;
    known_names.emplace_back(known);
  }
  std::string plain;  // as ours are written
  for (const char c : text) plain += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string near = nearest_name(plain, known_names);
  throw ConfigError(
      rule_got_fix("a pipeline schedule is one of: auto, gpipe, 1f1b, interleaved, zb-h1, zb-v; or a file that exists.",
                   "'" + text + "'", "--schedule " + (near.empty() ? "auto" : near)));
}

bool is_name(const std::string& text) {
  return std::any_of(kNames.begin(), kNames.end(), [&](const auto& known) { return text == known.second; });
}

std::string to_string(Name name) {
  for (const auto& [known, text] : kNames)
    if (name == known) return text;
  return "";
}

Program generate(Name name, const Shape& shape) {
  if (name != Name::Auto && shape.num_ranks == 1 && shape.num_chunks == 1) return accumulate(shape);
  switch (name) {
    case Name::Auto:
      break;
    case Name::GPipe:
      return gpipe(shape);
    case Name::OneFOneB:
      return one_f_one_b(shape);
    case Name::Interleaved:
      if (shape.num_chunks == 1)
        throw ConfigError(rule_got_fix("schedule interleaved has at least 2 stages a rank.",
                                       "1 stage a rank (parallel.vpp)", "--vpp 2, or --schedule 1f1b"));
      return interleaved(shape);
    case Name::ZeroBubbleH1:
      return zero_bubble_h1(shape);
    case Name::ZeroBubbleV:
      return zero_bubble_v(shape);
  }
  return choose(shape, {}, 0).program;
}

namespace {

std::vector<Name> names_for(const Shape& shape) {
  if (shape.num_ranks == 1 && shape.num_chunks == 1) return {Name::OneFOneB};
  if (shape.num_chunks == 1) return {Name::OneFOneB, Name::ZeroBubbleH1, Name::GPipe};
  if (shape.num_chunks == 2) return {Name::Interleaved, Name::ZeroBubbleV};
  return {Name::Interleaved};
}

/// The most bytes that a rank holds.
double peak_of(const Timeline& timeline, const std::vector<double>& backward_bytes) {
  double peak = 0;
  for (int rank = 0; rank < timeline.placement.num_ranks(); ++rank) {
    double beside = 0;
    if (!backward_bytes.empty())
      for (const int stage : timeline.placement.stages_of(rank))
        beside = std::max(beside, backward_bytes[static_cast<std::size_t>(stage)]);
    peak = std::max(peak, timeline.peak_bytes[static_cast<std::size_t>(rank)] + beside);
  }
  return peak;
}

std::string whole(double bytes) { return std::to_string(static_cast<std::int64_t>(std::ceil(bytes))); }

}  // namespace

Choice choose(const std::vector<Candidate>& candidates, Communication how, double memory_limit_bytes) {
  std::optional<Choice> best;
  std::optional<double> least_peak;
  std::string peaks;
  for (const Candidate& candidate : candidates) {
    check(candidate.shape);
    for (const Name name : names_for(candidate.shape)) {
      Choice choice{name, generate(name, candidate.shape), {}};
      choice.timeline = simulate(insert_communication(choice.program, how), candidate.costs);
      const double peak = peak_of(choice.timeline, candidate.backward_bytes);
      peaks += concat(peaks.empty() ? "" : ", ", to_string(name), " ", whole(peak));
      least_peak = std::min(least_peak.value_or(peak), peak);
      if (memory_limit_bytes > 0 && peak > memory_limit_bytes) continue;
      if (!best || choice.timeline.makespan < best->timeline.makespan * (1 - 1e-9)) best = std::move(choice);
    }
  }
  if (best) return *std::move(best);
  throw ConfigError(rule_got_fix("activations must fit in parallel.pp_memory_limit with some schedule.",
                                 concat("limit ", whole(memory_limit_bytes), " bytes; peaks: ", peaks),
                                 "--parallel.pp_memory_limit " + whole(least_peak.value_or(0))));
}

Choice choose(const Shape& shape, const Costs& costs, double memory_limit_bytes) {
  return choose({{shape, costs}}, Communication::Overlapped, memory_limit_bytes);
}

}  // namespace megatron::schedule
