#include "megatron/schedule/schedules/counter.h"
#include "megatron/schedule/table.h"

namespace megatron::schedule {

/// DualPipeV (DeepSeek-AI's DualPipe, dualpipe/dualpipev.py, whose steps the comments number; Sea AI Lab, "cut in
/// half"). Of a forward and a backward that overlap there the forward is first, as there where a model cannot overlap
/// them. Weight gradients that are put off are computed in the order in which they were.
std::vector<Op> dualpipe_v(const Shape& shape, int rank) {
  std::vector<Op> ops, put_off;
  const int down = rank, up = 2 * shape.num_ranks - 1 - rank;  // its two stages
  Counter forward_down(ops, shape.num_microbatches), forward_up(ops, shape.num_microbatches);
  int done_down = 0, done_up = 0;  // backward
  const auto backward = [&](int stage, bool split) {
    int& done = stage == down ? done_down : done_up;
    ops.push_back({split ? Kind::BackwardInput : Kind::Backward, stage, done});
    if (split) put_off.push_back({Kind::BackwardWeight, stage, done});
    ++done;
  };
  std::size_t weights = 0;
  const auto weight = [&] { ops.push_back(put_off[weights++]); };
  const int ranks_below = shape.num_ranks - rank - 1;

  for (int i = 0; i < 2 * ranks_below; ++i) forward_down.next(Kind::Forward, down);  // 1
  for (int i = 0; i <= rank; ++i) {                                                  // 2
    forward_down.next(Kind::Forward, down);
    forward_up.next(Kind::Forward, up);
  }
  for (int i = 0; i < ranks_below; ++i) {  // 3
    backward(up, true);
    weight();
    forward_up.next(Kind::Forward, up);
  }
  for (int i = 0; i < shape.num_microbatches - 2 * shape.num_ranks + rank + 1; ++i) {  // 4: the steady state
    forward_down.next(Kind::Forward, down);
    backward(up, false);
    forward_up.next(Kind::Forward, up);
    backward(down, false);
  }
  for (int i = 0; i < ranks_below; ++i) {  // 5
    backward(up, false);
    forward_up.next(Kind::Forward, up);
    backward(down, false);
  }
  for (int i = 0; i < 2 * (rank + 1); ++i) backward(i % 2 == 0 ? up : down, i > rank);  // 6: the second half split
  for (int i = 0; i < ranks_below; ++i) {                                               // 7
    weight();
    backward(down, true);
  }
  while (weights < put_off.size()) weight();  // 8
  return ops;
}

}  // namespace megatron::schedule
