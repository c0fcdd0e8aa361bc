#pragma once
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/schedule/program.h"

namespace megatron::schedule {

/// Whether a program can be executed, found out by executing it as naively as possible: facts are words in a set,
/// messages words in lists, a send ends when its receive has been posted. Shares nothing with the product's code.
class BruteForce {
 public:
  explicit BruteForce(const Program& program) : program_(program), stages_(program.placement.num_stages()) {}

  bool runs() {
    const std::size_t num_ranks = program_.ranks.size();
    if (static_cast<int>(num_ranks) != program_.placement.num_ranks()) return false;
    for (const auto& ops : program_.ranks)
      for (const Op& op : ops)
        lowered_ = lowered_ || (op.kind >= Kind::SendActivation && op.kind <= Kind::WaitRecvGradient);
    std::vector<std::size_t> at(num_ranks, 0);
    std::vector<int> live(num_ranks, 0);
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < num_ranks; ++rank)
        while (at[rank] < program_.ranks[rank].size()) {
          const Op& op = program_.ranks[rank][at[rank]];
          if (op.stage < 0 || op.stage >= stages_ || op.microbatch < 0 || op.microbatch >= program_.num_microbatches ||
              rank_of(op.stage) != static_cast<int>(rank))
            return false;
          if (facts_.count(word(op))) return false;
          if (!can(op)) break;
          if (broken_) return false;
          facts_.insert(word(op));
          if (op.kind == Kind::Forward && !program_.forward_only) ++live[rank];
          if (op.kind == Kind::Backward || op.kind == Kind::BackwardWeight) --live[rank];
          if (!program_.max_live.empty() && live[rank] > program_.max_live[rank]) return false;
          ++at[rank];
          progress = true;
        }
    }
    for (std::size_t rank = 0; rank < num_ranks; ++rank)
      if (at[rank] < program_.ranks[rank].size()) return false;
    return complete();
  }

 private:
  int rank_of(int stage) const { return program_.placement.rank_of(stage); }
  static std::string word(Kind kind, int stage, int m) {
    return std::to_string(static_cast<int>(kind)) + ":" + std::to_string(stage) + "." + std::to_string(m);
  }
  static std::string word(const Op& op) { return word(op.kind, op.stage, op.microbatch); }
  bool fact(Kind kind, int stage, int m) const { return facts_.count(word(kind, stage, m)) > 0; }
  bool backward(int stage, int m) const {
    return fact(Kind::Backward, stage, m) || fact(Kind::BackwardInput, stage, m);
  }

  using Lists = std::map<std::pair<int, int>, std::vector<std::string>>;
  /// Whether message `name` has met its other end: they meet in the order of posting.
  bool met(int from, int to, const std::string& name, bool from_sender) {
    const auto& own = (from_sender ? sends_ : recvs_)[{from, to}];
    const auto& other = (from_sender ? recvs_ : sends_)[{from, to}];
    const auto i = static_cast<std::size_t>(std::find(own.begin(), own.end(), name) - own.begin());
    if (i >= own.size() || i >= other.size()) return false;
    if (other[i] != name) broken_ = true;
    return true;
  }

  bool can(const Op& op) {
    const int s = op.stage, m = op.microbatch, below = s - 1, above = s + 1;
    const bool far_below = s > 0 && rank_of(below) != rank_of(s);
    const bool far_above = above < stages_ && rank_of(above) != rank_of(s);
    const std::string up = "activation " + std::to_string(m) + " to " + std::to_string(s);
    const std::string up_next = "activation " + std::to_string(m) + " to " + std::to_string(above);
    const std::string down = "gradient " + std::to_string(m) + " to " + std::to_string(below);
    const std::string down_next = "gradient " + std::to_string(m) + " to " + std::to_string(s);
    if (program_.forward_only && op.kind != Kind::Forward && op.kind != Kind::SendActivation &&
        op.kind != Kind::RecvActivation && op.kind != Kind::WaitSendActivation && op.kind != Kind::WaitRecvActivation)
      return false;
    switch (op.kind) {
      case Kind::Forward:
        if (s == 0) return true;
        return far_below && lowered_ ? fact(Kind::WaitRecvActivation, s, m) : fact(Kind::Forward, below, m);
      case Kind::Backward:
      case Kind::BackwardInput:
        if (!fact(Kind::Forward, s, m) || backward(s, m)) return false;
        if (above == stages_) return true;
        return far_above && lowered_ ? fact(Kind::WaitRecvGradient, s, m) : backward(above, m);
      case Kind::BackwardWeight:
        return fact(Kind::BackwardInput, s, m);
      case Kind::SendActivation:
        if (!far_above || !fact(Kind::Forward, s, m)) return false;
        sends_[{rank_of(s), rank_of(above)}].push_back(up_next);
        return true;
      case Kind::RecvActivation:
        if (!far_below) return false;
        recvs_[{rank_of(below), rank_of(s)}].push_back(up);
        return true;
      case Kind::SendGradient:
        if (!far_below || !backward(s, m)) return false;
        sends_[{rank_of(s), rank_of(below)}].push_back(down);
        return true;
      case Kind::RecvGradient:
        if (!far_above) return false;
        recvs_[{rank_of(above), rank_of(s)}].push_back(down_next);
        return true;
      case Kind::WaitSendActivation:
        return far_above && met(rank_of(s), rank_of(above), up_next, true);
      case Kind::WaitRecvActivation:
        return far_below && met(rank_of(below), rank_of(s), up, false);
      case Kind::WaitSendGradient:
        return far_below && met(rank_of(s), rank_of(below), down, true);
      case Kind::WaitRecvGradient:
        return far_above && met(rank_of(above), rank_of(s), down_next, false);
      case Kind::ReduceGradients:
        if (m != 0) return false;
        for (int i = 0; i < program_.num_microbatches; ++i)
          if (!fact(Kind::Backward, s, i) && !fact(Kind::BackwardWeight, s, i)) return false;
        return true;
    }
    return false;
  }

  bool complete() const {
    for (int s = 0; s < stages_; ++s) {
      if (fact(Kind::ReduceGradients, s, 0) != fact(Kind::ReduceGradients, 0, 0)) return false;
      for (int m = 0; m < program_.num_microbatches; ++m) {
        if (!fact(Kind::Forward, s, m)) return false;
        if (!program_.forward_only && !fact(Kind::Backward, s, m) && !fact(Kind::BackwardWeight, s, m)) return false;
        if (!lowered_) continue;
        const auto both = [&](Kind post, Kind wait) { return fact(post, s, m) && fact(wait, s, m); };
        if (s + 1 < stages_ && rank_of(s) != rank_of(s + 1)) {
          if (!both(Kind::SendActivation, Kind::WaitSendActivation)) return false;
          if (!program_.forward_only && !both(Kind::RecvGradient, Kind::WaitRecvGradient)) return false;
        }
        if (s > 0 && rank_of(s) != rank_of(s - 1)) {
          if (!both(Kind::RecvActivation, Kind::WaitRecvActivation)) return false;
          if (!program_.forward_only && !both(Kind::SendGradient, Kind::WaitSendGradient)) return false;
        }
      }
    }
    return !std::any_of(sends_.begin(), sends_.end(), [&](const auto& link) {
      const auto recv = recvs_.find(link.first);
      return recv == recvs_.end() || recv->second != link.second;
    });
  }

  const Program& program_;
  const int stages_;
  bool lowered_ = false, broken_ = false;
  std::set<std::string> facts_;
  Lists sends_, recvs_;
};

}  // namespace megatron::schedule
