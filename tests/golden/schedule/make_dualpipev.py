"""Writes golden/schedule/dualpipev.txt: the computations in the order in which DeepSeek-AI's own DualPipeV.step() asks
for them, of several numbers of ranks and microbatches.

  git clone https://github.com/deepseek-ai/DualPipe && PYTHONPATH=DualPipe python3 make_dualpipev.py dualpipev.txt

Run with torch 2.x and commit 3da1bbe of that repository (MIT). Its messages and its modules are left out; what
computes is replaced by what writes down."""
import sys

import torch

from dualpipe import comm
from dualpipe.dualpipev import DualPipeV, WeightGradStore

SHAPES = [(1, 2), (1, 3), (2, 4), (2, 5), (3, 6), (3, 8), (4, 8), (4, 10), (5, 13), (6, 12), (8, 16), (8, 20)]


class Recorder(DualPipeV):
    """One rank whose chunks are written down: F forward, B backward, I gradient of the input, W of the weights."""

    def __init__(self, num_ranks, rank):
        self.__dict__.update(num_ranks=num_ranks, rank=rank, is_first_rank=rank == 0,
                             is_last_rank=rank == num_ranks - 1, batch_dim=0, ops=[], put_off=[])

    def _name(self, kind, phase, chunk):
        stage = self.rank if phase == 0 else 2 * self.num_ranks - 1 - self.rank
        return f"{kind}{stage}.{chunk}"

    def _forward_compute_chunk(self, phase):
        self.ops.append(self._name("F", phase, self.current_f_chunk_id[phase]))
        self.current_f_chunk_id[phase] += 1
        self.loss_chunks.append(torch.zeros(()))  # step() stacks them

    def _backward_compute_chunk(self, phase, enable_zb=False):
        chunk = self.current_b_chunk_id[phase]
        self.current_b_chunk_id[phase] += 1
        self.ops.append(self._name("I" if enable_zb else "B", phase, chunk))
        if enable_zb:
            WeightGradStore.funcs_queue.put([])
            self.put_off.append(self._name("W", phase, chunk))

    def _forward_backward_compute_chunk(self, phase0, phase1):
        self._forward_compute_chunk(phase0)  # as DualPipeV does where the module cannot overlap them
        self._backward_compute_chunk(phase1)

    def _weight_chunk(self):
        WeightGradStore.pop()  # of nothing: step() asserts at the end that none is left
        self.ops.append(self.put_off.pop(0))

    def _nothing(self, *_args, **_kwargs):
        pass

    _recv_forward = _send_forward = _recv_backward = _send_backward = _commit_and_wait_comm = _nothing


def main():
    comm.set_p2p_tensor_shapes([(1,)])
    comm.set_p2p_tensor_dtype("none is sent")
    lines = []
    for num_ranks, num_microbatches in SHAPES:
        for rank in range(num_ranks):
            recorder = Recorder(num_ranks, rank)
            recorder.step(num_chunks=num_microbatches, criterion=lambda *_: None)
            lines.append(f"{num_ranks} {num_microbatches} {rank}: {' '.join(recorder.ops)}\n")
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.writelines(lines)


if __name__ == "__main__":
    main()
