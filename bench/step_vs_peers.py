#!/usr/bin/env python3
"""Training step of GPT-2 124M, one sequence of 1024 tokens: ours against plain PyTorch (bench/peers/gpt_step.py), in
turns so that a busy machine slows both:

    bench/step_vs_peers.py [--rounds 3] [--steps 5] [--dtypes fp32 bf16] [--modes eager tuned compile]

Both compute every logit, as each token counts, without dropout. Goals are those of a machine with AMX for bf16."""
import os
import sys

import report
from peers.gpt_step import environment

PEER = report.ROOT / "bench/peers/gpt_step.py"
GOALS = {("fp32", "eager"): 1.4, ("fp32", "tuned"): 1.05, ("bf16", "eager"): 2.6, ("bf16", "tuned"): 1.7,
         ("bf16", "compile"): 1.7}


def main():
    parser = report.options(__doc__)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--modes", nargs="+", choices=["eager", "tuned", "compile"])
    arguments = report.parse(parser)
    report.need_program()
    report.need_modules("torch", "numpy")
    steps = arguments.steps or (1 if arguments.quick else 5)
    modes = arguments.modes or (["eager"] if arguments.quick else ["eager", "tuned", "compile"])
    absent = [mode for mode in modes if environment(mode) is None]
    if absent:
        print(f"left out: {' and '.join(absent)} (no libjemalloc.so.2)\n  fix:  apt-get install libjemalloc2",
              file=sys.stderr)
    modes = [mode for mode in modes if mode not in absent]
    if not modes:
        report.skip("no libjemalloc.so.2", "apt-get install libjemalloc2")
    result = report.Report("gpt-step", "Training step of GPT-2 124M, 1 x 1024 tokens", arguments)
    for dtype in arguments.dtypes:
        pairs = {mode: [] for mode in modes}
        for _ in range(arguments.rounds):
            for mode in modes:
                ours = report.ours("bench", "step", "--model", "gpt2_124m", "--micro-batch-size", 1, "--seq-length",
                                   1024, "--steps", steps, "--dtype", dtype)
                words = [sys.executable, PEER, "--mode", mode, "--dtype", dtype, "--steps", steps]
                pairs[mode].append((ours, report.last_line(words, env={**os.environ, **environment(mode)})))
        for mode in modes:
            mine, theirs = zip(*pairs[mode])
            result.add(f"step, {dtype}", [run["tokens_per_s"] for run in mine], "tokens/s",
                       [run["tokens_per_s"] for run in theirs], f"PyTorch {mode}", at_least=GOALS.get((dtype, mode)),
                       bound_fraction=mine[0]["bound_fraction"], kernels=mine[0]["kernels"])
            result.add(f"peak memory, {dtype}", [run["peak_memory_bytes"] / 1e6 for run in mine], "MB",
                       [run["peak_memory_bytes"] / 1e6 for run in theirs], f"PyTorch {mode}",
                       at_most=0.8 if dtype == "fp32" else None, timed=False)
    result.write()


if __name__ == "__main__":
    main()
