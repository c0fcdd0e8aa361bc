#include <algorithm>

#include "megatron/schedule/schedules/counter.h"
#include "megatron/schedule/table.h"

namespace megatron::schedule {

/// Qi et al. 2024: a warm-up that fills the rank to 2p - 1 stage activations, a steady state in which each takes the
/// place of one that has just gone, and a cool-down with weight gradients in the gaps.
std::vector<Op> zero_bubble_v(const Shape& shape, int rank) {
  std::vector<Op> ops;
  const int num_ranks = shape.num_ranks, num_microbatches = shape.num_microbatches;
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
  return ops;
}

}  // namespace megatron::schedule
