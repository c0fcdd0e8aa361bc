#include "megatron/schedule/passes.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/schedule/execute.h"
#include "megatron/schedule/validate.h"

namespace megatron::schedule {
namespace {

/// One end of a message on a rank's way through its computations.
struct End {
  std::int64_t message = 0;
  int position = 0;  ///< how many computations of the rank come before it
  bool send = false;
};

/// A message in the common order.
struct Meeting {
  std::int64_t message, time;
  int sender_position, receiver_position;  ///< how many computations of each come before
};

/// Counting sort.
void sort_by_time(std::vector<Meeting>& meetings, std::int64_t last_time) {
  std::vector<std::size_t> first(static_cast<std::size_t>(last_time) + 2, 0);
  for (const Meeting& m : meetings) ++first[static_cast<std::size_t>(m.time) + 1];
  for (std::size_t t = 1; t < first.size(); ++t) first[t] += first[t - 1];
  std::vector<Meeting> sorted(meetings.size());
  for (const Meeting& m : meetings) sorted[first[static_cast<std::size_t>(m.time)]++] = m;
  meetings = std::move(sorted);
}

/// Where messages come to lie: every rank's ends in one order that all ranks share. Whatever a rank waits for, first
/// come the messages before it in that order; so the first message that is not done can always be done, and no order of
/// waiting can form a ring. The order is also one of each link, so that it is first in, first out.
///
/// Any order does in which a message comes after the computation that makes it and before the one that needs it. This
/// one goes by time, when each computation takes one unit (a whole backward two) and messages take none: the time at
/// which a message is made; where ranks stand still for messages (`blocking`), the first time from then on at which
/// neither of its ranks computes. Where every message has such a time, blocking costs none.
class CommonOrder {
 public:
  /// `lag`: of the gradients in that time (Execution).
  CommonOrder(const Program& program, bool blocking, double lag)
      : program_(program),
        messages_(program),
        blocking_(blocking),
        spans_(program.ranks.size()),
        needed_at_(static_cast<std::size_t>(messages_.count()), -1) {
    const Links links(program.placement);
    const auto travels = [&](std::int64_t message) {
      return message >= 0 && links.of(messages_.boundary(message), messages_.is_gradient(message)) >= 0;
    };
    Execution execution(program, {}, lag);
    const bool complete = execution.run([&](int rank, const Op& op, double start, double end) {
      if (!is_computation(op.kind)) return;
      std::vector<Span>& spans = spans_[static_cast<std::size_t>(rank)];
      const std::int64_t needed = messages_.needed_by(op), made = messages_.made_by(op);
      if (travels(needed)) needed_at_[static_cast<std::size_t>(needed)] = static_cast<int>(spans.size());
      spans.push_back({static_cast<std::int64_t>(start), static_cast<std::int64_t>(end)});
      last_time_ = std::max(last_time_, spans.back().end);
      if (travels(made)) meetings_.push_back({made, spans.back().end, static_cast<int>(spans.size()), 0});
    });
    if (!complete) throw std::logic_error("insert_communication: a program that validate() accepts cannot be executed");
    place();
  }

  /// For every message there is a time at which neither of its ranks computes.
  bool in_step() const { return in_step_; }
  /// The end of the last computation; with blocking it cannot come earlier.
  std::int64_t last_time() const { return last_time_; }

  std::vector<std::vector<End>> ends() const {
    std::vector<std::vector<End>> ends(spans_.size());
    for (const Meeting& m : meetings_) {
      ends[rank_of(messages_.send(m.message))].push_back({m.message, m.sender_position, true});
      ends[rank_of(messages_.recv(m.message))].push_back({m.message, m.receiver_position, false});
    }
    return ends;
  }

 private:
  struct Span {
    std::int64_t begin, end;
  };

  void place() {
    sort_by_time(meetings_, last_time_);
    std::vector<int> cursor(spans_.size(), 0);  // of each rank's computations, the first that begins later
    for (Meeting& m : meetings_) {
      const std::size_t receiver = rank_of(messages_.recv(m.message));
      int& position = cursor[receiver];
      while (position < static_cast<int>(spans_[receiver].size()) && begin_of(receiver, position) < m.time) ++position;
      m.receiver_position = position;
      if (blocking_) meet(m);
    }
    if (blocking_) sort_by_time(meetings_, last_time_);
  }

  std::size_t rank_of(const Op& op) const { return static_cast<std::size_t>(program_.placement.rank_of(op.stage)); }

  /// Before its computation `position`, a rank stands still from end_before() to begin_of().
  std::int64_t begin_of(std::size_t rank, int position) const {
    const std::vector<Span>& spans = spans_[rank];
    return position < static_cast<int>(spans.size()) ? spans[static_cast<std::size_t>(position)].begin : last_time_;
  }
  std::int64_t end_before(std::size_t rank, int position) const {
    return position == 0 ? 0 : spans_[rank][static_cast<std::size_t>(position) - 1].end;
  }

  /// Puts a message off until both of its ranks stand still, where that is before it is needed and not far.
  void meet(Meeting& m) {
    const std::size_t sender = rank_of(messages_.send(m.message)), receiver = rank_of(messages_.recv(m.message));
    const int needed_at = needed_at_[static_cast<std::size_t>(m.message)];
    for (int from = m.sender_position, to = m.receiver_position, steps = 0; to <= needed_at && steps < kMaxSteps;
         ++steps) {
      const std::int64_t both = std::max({m.time, end_before(sender, from), end_before(receiver, to)});
      const std::int64_t sender_until = begin_of(sender, from), receiver_until = begin_of(receiver, to);
      if (both <= sender_until && both <= receiver_until) {
        m = {m.message, both, from, to};
        return;
      }
      ++(sender_until < receiver_until ? from : to);
    }
    in_step_ = false;
  }

  static constexpr int kMaxSteps = 64;  // over computations: no program takes time by the square of its length

  const Program& program_;
  const Messages messages_;
  const bool blocking_;
  std::vector<std::vector<Span>> spans_;  ///< by rank: its computations
  std::vector<int> needed_at_;            ///< by message: the receiver's computation that needs it
  std::vector<Meeting> meetings_;
  std::int64_t last_time_ = 0;
  bool in_step_ = true;
};

/// Writes one rank's ops with communication.
class Lowering {
 public:
  Lowering(const Program& program, const Links& links, std::span<const End> ends, std::vector<Op>& out)
      : messages_(program), links_(links), ends_(ends), out_(out) {}

  void one_by_one(const std::vector<Op>& ops) {
    each_position(ops, [&](std::span<const End> here, const Op*) {
      for (const End& end : here) {
        post(end);
        wait(end);
      }
    });
  }

  void in_batches(const std::vector<Op>& ops) {
    each_position(ops, [&](std::span<const End> here, const Op*) {
      for (const End& end : here) post(end);
      for (const End& end : here) wait(end);
    });
  }

  /// A send is waited for two computations later, so that at most two are under way; a receive is posted one
  /// computation before its message is made and waited for by the computation that needs it. Posts come no later and
  /// waits no earlier than their place in the common order, which keeps its proof.
  void overlapped(const std::vector<Op>& ops) {
    std::vector<End> sends;
    std::size_t waited = 0;
    std::size_t next_recv = 0;
    int position = 0;
    each_position(ops, [&](std::span<const End> here, const Op* next) {
      for (; waited < sends.size() && sends[waited].position + 2 <= position; ++waited) wait(sends[waited]);
      for (const End& end : here)
        if (end.send) {
          post(end);
          sends.push_back(end);
        }
      for (; next_recv < ends_.size() && ends_[next_recv].position <= position + 1; ++next_recv)
        if (!ends_[next_recv].send) post(ends_[next_recv]);
      ++position;
      if (next == nullptr) return;
      const std::int64_t needed = messages_.needed_by(*next);
      if (needed >= 0 && links_.of(messages_.boundary(needed), messages_.is_gradient(needed)) >= 0)
        wait({needed, 0, false});
    });
    for (; waited < sends.size(); ++waited) wait(sends[waited]);
  }

 private:
  /// Calls put(ends, next) before each computation, and at the end with no next one. What belongs to a stage as a whole
  /// (reduction, gathering) stays where it is.
  template <class Put>
  void each_position(const std::vector<Op>& ops, Put&& put) {
    int position = 0;
    std::size_t from = 0;
    const auto here = [&] {
      const std::size_t begin = from;
      while (from < ends_.size() && ends_[from].position <= position) ++from;
      return ends_.subspan(begin, from - begin);
    };
    for (const Op& op : ops) {
      if (is_computation(op.kind)) {
        put(here(), &op);
        ++position;
      }
      out_.push_back(op);
    }
    put(here(), nullptr);
  }

  Op op_of(const End& end) const { return end.send ? messages_.send(end.message) : messages_.recv(end.message); }
  void post(const End& end) { out_.push_back(op_of(end)); }
  void wait(const End& end) {
    Op op = op_of(end);
    op.kind = wait_of(op.kind);
    out_.push_back(op);
  }

  const Messages messages_;
  const Links& links_;
  std::span<const End> ends_;
  std::vector<Op>& out_;
};

Program lowered(const Program& computation, const CommonOrder& order, Communication how) {
  Program program;
  program.placement = computation.placement;
  program.num_microbatches = computation.num_microbatches;
  program.forward_only = computation.forward_only;
  program.max_live = computation.max_live;
  const Links links(program.placement);
  const std::vector<std::vector<End>> ends = order.ends();
  for (std::size_t rank = 0; rank < computation.ranks.size(); ++rank) {
    const std::vector<Op>& ops = computation.ranks[rank];
    std::vector<Op>& out = program.ranks.emplace_back();
    out.reserve(ops.size() + 2 * ends[rank].size());
    Lowering lowering(program, links, ends[rank], out);
    switch (how) {
      case Communication::Unbatched:
        lowering.one_by_one(ops);
        break;
      case Communication::Batched:
        lowering.in_batches(ops);
        break;
      case Communication::Overlapped:
        lowering.overlapped(ops);
        break;
    }
  }
  return program;
}

double makespan_of(const Program& program) {
  double makespan = 0;
  Execution execution(program, {});
  execution.run([&](int, const Op&, double, double end) { makespan = std::max(makespan, end); });
  return makespan;
}

bool ends_a_stage(Kind kind) { return kind == Kind::Backward || kind == Kind::BackwardWeight; }

}  // namespace

Communication communication_of(const std::string& text) {
  if (text == "unbatched") return Communication::Unbatched;
  if (text == "batched") return Communication::Batched;
  if (text == "overlapped") return Communication::Overlapped;
  throw ConfigError(rule_got_fix("pipeline communication is one of: unbatched, batched, overlapped.", text,
                                 "overlapped (the default)"));
}

Program insert_communication(const Program& computation, Communication how) {
  if (has_communication(computation)) throw std::logic_error("insert_communication: the program has it already");
  validate(computation);
  const bool blocking = how != Communication::Overlapped;
  const CommonOrder order(computation, blocking, 0);
  if (!blocking || order.in_step()) return lowered(computation, order, how);
  // In the steady state each rank is ahead of the next by a backward, 2 of the 3 units of a pair, and around the ring
  // of virtual stages that may leave ranks that are never between computations together. With a lag it is a whole pair,
  // and all ranks are in step; interleaving has that much room.
  const CommonOrder paced(computation, blocking, 1);
  Program program = lowered(computation, paced, how);
  const double makespan = makespan_of(program);
  if (makespan <= static_cast<double>(order.last_time())) return program;
  Program other = lowered(computation, order, how);
  return makespan_of(other) <= makespan ? other : program;
}

Program insert_gradient_reduction(Program program) {
  std::vector<int> left(static_cast<std::size_t>(program.placement.num_stages()), program.num_microbatches);
  for (std::vector<Op>& ops : program.ranks) {
    std::vector<Op> out;
    out.reserve(ops.size() + 16);
    for (const Op& op : ops) {
      out.push_back(op);
      if (ends_a_stage(op.kind) && --left[static_cast<std::size_t>(op.stage)] == 0)
        out.push_back({Kind::ReduceGradients, op.stage, 0});
    }
    ops = std::move(out);
  }
  return program;
}

Program mark_partial(Program program, int most) {
  const auto marked = [](const std::vector<Op>& ops) {
    return std::any_of(ops.begin(), ops.end(), [](const Op& op) { return op.partial; });
  };
  if (most <= 0 || program.forward_only || std::any_of(program.ranks.begin(), program.ranks.end(), marked))
    return program;
  const auto microbatches = static_cast<std::size_t>(program.num_microbatches);
  std::vector<bool> partial(static_cast<std::size_t>(program.placement.num_stages()) * microbatches);
  for (std::vector<Op>& ops : program.ranks) {
    int alive = 0;
    for (Op& op : ops) {
      if (!is_computation(op.kind)) continue;
      const std::size_t at =
          static_cast<std::size_t>(op.stage) * microbatches + static_cast<std::size_t>(op.microbatch);
      if (op.kind == Kind::Forward && alive < most) {
        partial[at] = true;
        ++alive;
      }
      op.partial = partial[at];
      if (op.partial && ends_a_stage(op.kind)) --alive;
    }
  }
  return program;
}

}  // namespace megatron::schedule
