#!/usr/bin/env python3
"""A training step of one rank on two cores, of which one is shared with a process that never waits: with 2 threads,
against the same with 1. And what short spinning costs where nothing else runs: 2 threads as the program has them wait,
against libgomp's own patience.

    bench/busy_neighbour.py [--spins N]

The cases take turns, round after round; a case's figure of a round is the median of its steps."""
import os
import statistics
import subprocess
import sys

import report

# model, micro batch, tokens of a sample, steps of a round: much and little work between two waits
SHAPES = [("gpt2_124m", 1, 256, 4), ("gpt_tiny", 4, 64, 40)]
LIBGOMP_SPINS = "300000"  # where nobody says anything


def step_ms(shape, threads, variables):
    model, batch, tokens, steps = shape
    words = [report.PROGRAM, "bench", "step", "--model", model, "--micro-batch-size", batch, "--seq-length", tokens,
             "--steps", steps, "--warmup", 2, "--threads-per-rank", threads, "--json"]
    return statistics.median(report.last_line(words, env={**os.environ, **variables})["all_step_ms"])


class Neighbour:
    """Keeps one core busy while it lives."""

    def __init__(self, core):
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(self.process.pid, {core})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def main():
    parser = report.options(__doc__, rounds=5)
    parser.add_argument("--spins", help="GOMP_SPINCOUNT to try instead of the program's own")
    arguments = report.parse(parser)
    report.need_program()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        report.skip("one core", "run it where the process may use two")
    result = report.Report("busy-neighbour", "A step next to a process that never waits", arguments)
    os.sched_setaffinity(0, set(cores))  # and of all that is started here
    ours = {"GOMP_SPINCOUNT": arguments.spins} if arguments.spins else {}
    long = {"GOMP_SPINCOUNT": LIBGOMP_SPINS}
    for shape in SHAPES[1:] if arguments.quick else SHAPES:
        times = {name: [] for name in ("busy 1", "busy 2", "busy long", "idle 2", "idle long")}
        for _ in range(arguments.rounds):
            with Neighbour(cores[1]):
                times["busy 1"].append(step_ms(shape, 1, ours))
                times["busy 2"].append(step_ms(shape, 2, ours))
                times["busy long"].append(step_ms(shape, 2, long))
            times["idle 2"].append(step_ms(shape, 2, ours))
            times["idle long"].append(step_ms(shape, 2, long))
        name = f"{shape[0]}, {shape[1]} x {shape[2]} tokens"
        result.add(f"{name}, one of two cores busy: 2 threads", times["busy 2"], "ms", peer=times["busy 1"],
                   against="1 thread", inverse=True, at_least=0.95)
        result.add(f"{name}, one of two cores busy: 2 threads as libgomp has them spin", times["busy long"], "ms",
                   peer=times["busy 1"], against="1 thread", inverse=True)
        result.add(f"{name}, idle machine: 2 threads", times["idle 2"], "ms", peer=times["idle long"],
                   against="2 threads as libgomp has them spin", inverse=True, at_least=0.98)
    result.write()


if __name__ == "__main__":
    main()
