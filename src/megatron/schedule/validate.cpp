#include "megatron/schedule/validate.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "megatron/base/error.h"
#include "megatron/schedule/execute.h"

namespace megatron::schedule {
namespace {

constexpr const char* kRule = "a pipeline schedule can be executed: ";
using Bits = std::uint16_t;
constexpr Bits bit(Kind kind) { return static_cast<Bits>(1u << static_cast<int>(kind)); }
constexpr Bits kPartial = 1u << kNumKinds;

[[noreturn]] void refuse(const std::string& rule, const std::string& got) {
  throw ConfigError(
      rule_got_fix(kRule + rule, got, "megatron plan RECIPE … --draw schedule.txt writes schedules that can"));
}

/// "rank 1 op #4 B2.3".
std::string place(std::size_t rank, std::size_t position, const Op& op) {
  return concat("rank ", rank, " op #", position, " ", to_string(op));
}

class Validator {
 public:
  explicit Validator(const Program& program)
      : program_(program),
        placement_(program.placement),
        messages_(program),
        links_(program.placement),
        lowered_(has_communication(program)) {}

  void validate() {
    check_size();
    seen_.assign(static_cast<std::size_t>(messages_.count() / 2), 0);
    backwards_left_.assign(static_cast<std::size_t>(placement_.num_stages()), program_.num_microbatches);
    sent_.resize(static_cast<std::size_t>(links_.count()));
    received_.resize(sent_.size());
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) check_rank(rank);
    check_complete();
    check_message_order();
    check_progress();
  }

 private:
  Bits& seen(int stage, int microbatch) {
    return seen_[static_cast<std::size_t>(messages_.activation(stage, microbatch))];
  }

  /// Numbers first: what follows takes memory by them.
  void check_size() const {
    const std::size_t num_ranks = program_.ranks.size();
    if (num_ranks != static_cast<std::size_t>(placement_.num_ranks()))
      refuse("one list of operations for each rank.",
             concat(num_ranks, " lists for ", placement_.num_ranks(), " ranks"));
    if (program_.num_microbatches < 1)
      refuse("at least one microbatch.", concat(program_.num_microbatches, " microbatches"));
    if (!program_.max_live.empty() && program_.max_live.size() != num_ranks)
      refuse("max-live has one number for each rank.",
             concat(program_.max_live.size(), " numbers for ", num_ranks, " ranks"));
    std::int64_t ops = 0;
    for (const std::vector<Op>& rank : program_.ranks) ops += static_cast<std::int64_t>(rank.size());
    const std::int64_t least = static_cast<std::int64_t>(placement_.num_stages()) * program_.num_microbatches *
                               (program_.forward_only ? 1 : 2);
    if (ops < least)
      refuse(program_.forward_only ? "a forward of each microbatch on each stage."
                                   : "a forward and a backward of each microbatch on each stage.",
             concat(ops, " operations for ", placement_.num_stages(), " stages and ", program_.num_microbatches,
                    " microbatches"));
  }

  void check_rank(std::size_t rank) {
    const std::vector<Op>& ops = program_.ranks[rank];
    const bool bounded = !program_.max_live.empty();
    int live = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const Op& op = ops[i];
      check_operands(rank, i, op);
      Bits& done = seen(op.stage, op.microbatch);
      if (done & bit(op.kind)) refuse("each operation once.", place(rank, i, op) + " is there again");
      check_needs(rank, i, op, done);
      check_partial(rank, i, op, done);
      done |= bit(op.kind);
      if (op.kind == Kind::Backward || op.kind == Kind::BackwardWeight) {
        --backwards_left_[static_cast<std::size_t>(op.stage)];
        --live;
      }
      if (op.kind == Kind::Forward && !program_.forward_only) ++live;
      if (bounded && live > program_.max_live[rank])
        refuse("no more live activations than declared (max-live).",
               concat(place(rank, i, op), " makes them ", live, " of ", program_.max_live[rank]));
      if (is_post(op.kind)) note_post(op);
    }
  }

  void check_operands(std::size_t rank, std::size_t i, const Op& op) const {
    if (static_cast<int>(op.kind) >= kNumKinds) refuse("known operations.", concat("rank ", rank, " op #", i));
    if (op.stage < 0 || op.stage >= placement_.num_stages())
      refuse(concat("stages from 0 to ", placement_.num_stages() - 1, "."), place(rank, i, op));
    if (op.microbatch < 0 || op.microbatch >= program_.num_microbatches)
      refuse(concat("microbatches from 0 to ", program_.num_microbatches - 1, "."), place(rank, i, op));
    if (placement_.rank_of(op.stage) != static_cast<int>(rank))
      refuse("a rank works on its own stages.",
             concat(place(rank, i, op), ", but stage ", op.stage, " is on rank ", placement_.rank_of(op.stage)));
    if (op.kind == Kind::ReduceGradients && op.microbatch != 0)
      refuse("what is done once a stage has microbatch 0.", place(rank, i, op));
    if (program_.forward_only && moves_gradients(op.kind))
      refuse("a forward-only program has no gradients.", place(rank, i, op));
    if (is_communication(op.kind) && !has_neighbour(op))
      refuse("messages go to the next stage, on another rank.", place(rank, i, op));
  }

  static bool moves_gradients(Kind kind) {
    switch (kind) {
      case Kind::Forward:
      case Kind::SendActivation:
      case Kind::RecvActivation:
      case Kind::WaitSendActivation:
      case Kind::WaitRecvActivation:
        return false;
      default:
        return true;
    }
  }

  /// Whether the stage above (from: activations, to: gradients) or below lies on another rank.
  bool crosses(int boundary) const {
    return boundary >= 0 && boundary + 1 < placement_.num_stages() && links_.of(boundary, false) >= 0;
  }
  bool has_neighbour(const Op& op) const {
    const Kind post = is_wait(op.kind) ? post_of(op.kind) : op.kind;
    const bool above = post == Kind::SendActivation || post == Kind::RecvGradient;
    return crosses(above ? op.stage : op.stage - 1);
  }

  void check_needs(std::size_t rank, std::size_t i, const Op& op, Bits done) {
    const auto after = [&](bool satisfied, Kind kind, int stage) {
      if (!satisfied)
        refuse("each operation after what it needs.",
               concat(place(rank, i, op), " comes before ", to_string(Op{kind, stage, op.microbatch})));
    };
    constexpr Bits kInput = bit(Kind::Backward) | bit(Kind::BackwardInput);
    switch (op.kind) {
      case Kind::Forward:
        if (crosses(op.stage - 1))
          after(!lowered_ || done & bit(Kind::WaitRecvActivation), Kind::WaitRecvActivation, op.stage);
        else if (op.stage > 0)
          after(seen(op.stage - 1, op.microbatch) & bit(Kind::Forward), Kind::Forward, op.stage - 1);
        return;
      case Kind::Backward:
      case Kind::BackwardInput:
        if (done & kInput) refuse("one backward, or one of input and one of weights.", place(rank, i, op));
        after(done & bit(Kind::Forward), Kind::Forward, op.stage);
        if (crosses(op.stage))
          after(!lowered_ || done & bit(Kind::WaitRecvGradient), Kind::WaitRecvGradient, op.stage);
        else if (op.stage + 1 < placement_.num_stages())
          after(seen(op.stage + 1, op.microbatch) & kInput, Kind::Backward, op.stage + 1);
        return;
      case Kind::BackwardWeight:
        return after(done & bit(Kind::BackwardInput), Kind::BackwardInput, op.stage);
      case Kind::SendActivation:
        return after(done & bit(Kind::Forward), Kind::Forward, op.stage);
      case Kind::SendGradient:
        return after(done & kInput, Kind::Backward, op.stage);
      case Kind::RecvActivation:
      case Kind::RecvGradient:
        return;
      case Kind::WaitSendActivation:
      case Kind::WaitRecvActivation:
      case Kind::WaitSendGradient:
      case Kind::WaitRecvGradient:
        return after(done & bit(post_of(op.kind)), post_of(op.kind), op.stage);
      case Kind::ReduceGradients:
        if (backwards_left_[static_cast<std::size_t>(op.stage)] > 0)
          refuse("gradients are reduced after the stage's last backward.", place(rank, i, op));
        return;
    }
  }

  /// A microbatch is partial on a stage in its forward and in its backward, or in neither.
  void check_partial(std::size_t rank, std::size_t i, const Op& op, Bits& done) const {
    if (op.kind == Kind::Forward && op.partial) done |= kPartial;
    if (op.partial && (!is_computation(op.kind) || program_.forward_only))
      refuse("p is for forward and backward, in programs that have both.", place(rank, i, op));
    if (is_computation(op.kind) && op.partial != ((done & kPartial) != 0))
      refuse("a backward is partial where its forward is.", place(rank, i, op));
  }

  void note_post(const Op& op) {
    const std::int64_t message = messages_.moved_by(op);
    const auto link = static_cast<std::size_t>(links_.of(messages_.boundary(message), messages_.is_gradient(message)));
    (op == messages_.send(message) ? sent_ : received_)[link].push_back(message);
  }

  void check_complete() {
    for (int stage = 0; stage < placement_.num_stages(); ++stage) {
      if ((seen(stage, 0) & bit(Kind::ReduceGradients)) != (seen(0, 0) & bit(Kind::ReduceGradients)))
        refuse("gradients are reduced on every stage or on none.", concat("stage 0 and stage ", stage, " differ"));
      for (int m = 0; m < program_.num_microbatches; ++m) {
        const Bits missing = required(stage, seen(stage, m)) & static_cast<Bits>(~seen(stage, m));
        if (missing == 0) continue;
        const Op op{static_cast<Kind>(std::countr_zero(missing)), stage, m};
        refuse("nothing is missing.", concat("rank ", placement_.rank_of(stage), " never does ", to_string(op)));
      }
    }
  }

  Bits required(int stage, Bits done) const {
    Bits bits = bit(Kind::Forward);
    if (!program_.forward_only)
      bits |=
          done & bit(Kind::BackwardInput) ? bit(Kind::BackwardInput) | bit(Kind::BackwardWeight) : bit(Kind::Backward);
    if (!lowered_) return bits;
    const bool gradients = !program_.forward_only;
    if (crosses(stage)) {
      bits |= bit(Kind::SendActivation) | bit(Kind::WaitSendActivation);
      if (gradients) bits |= bit(Kind::RecvGradient) | bit(Kind::WaitRecvGradient);
    }
    if (crosses(stage - 1)) {
      bits |= bit(Kind::RecvActivation) | bit(Kind::WaitRecvActivation);
      if (gradients) bits |= bit(Kind::SendGradient) | bit(Kind::WaitSendGradient);
    }
    return bits;
  }

  /// After check_complete(): both lists of a link hold the same messages.
  void check_message_order() const {
    for (std::size_t link = 0; link < sent_.size(); ++link)
      for (std::size_t i = 0; i < sent_[link].size(); ++i) {
        const std::int64_t sent = sent_[link][i], received = received_[link][i];
        if (sent == received) continue;
        const Op send = messages_.send(sent), recv = messages_.recv(received);
        refuse("messages from one rank to another are received in the order sent.",
               concat("message #", i, " from rank ", placement_.rank_of(send.stage), " is ", to_string(send),
                      ", but rank ", placement_.rank_of(recv.stage), " receives ", to_string(recv)));
      }
  }

  void check_progress() const {
    Execution execution(program_, {});
    if (execution.run([](int, const Op&, double, double) {})) return;
    std::string picture = "blocked at:";
    constexpr std::size_t kLines = 64;
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      if (rank == kLines) {
        picture += concat("\n    … and ", program_.ranks.size() - kLines, " more ranks");
        break;
      }
      const std::size_t position = execution.position()[rank];
      if (position == program_.ranks[rank].size())
        picture += concat("\n    rank ", rank, " has finished");
      else
        picture += "\n    " + waiting(rank, position, program_.ranks[rank][position]);
    }
    refuse("no ranks wait for one another in a ring.", picture);
  }

  std::string waiting(std::size_t rank, std::size_t position, const Op& op) const {
    std::int64_t message = is_wait(op.kind) ? messages_.moved_by(op) : messages_.needed_by(op);
    Op other = messages_.send(message);
    if (!lowered_)
      other.kind = messages_.is_gradient(message) ? Kind::Backward : Kind::Forward;
    else if (op.kind == Kind::WaitSendActivation || op.kind == Kind::WaitSendGradient)
      other = messages_.recv(message);
    return concat(place(rank, position, op), " waits for ", to_string(other), " of rank ",
                  placement_.rank_of(other.stage));
  }

  const Program& program_;
  const Placement& placement_;
  const Messages messages_;
  const Links links_;
  const bool lowered_;
  std::vector<Bits> seen_;           ///< by stage and microbatch: the kinds of op that were there
  std::vector<int> backwards_left_;  ///< by stage
  std::vector<std::vector<std::int64_t>> sent_, received_;  ///< by link, in order
};

}  // namespace

void validate(const Program& program) { Validator(program).validate(); }

}  // namespace megatron::schedule
