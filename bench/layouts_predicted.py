#!/usr/bin/env python3
"""Every layout of a small model on 4 ranks, threads of one process: what `megatron plan --search` says of its step and
its memory by rates that `megatron bench hardware` has just measured here, and what `megatron bench step` then measures.

    bench/layouts_predicted.py [--rounds 2] [--most N]

Layouts take turns, round after round. --most: the fastest N as predicted, instead of all."""
import itertools
import pathlib
import statistics
import tempfile

import report

RANKS, LENGTH, BATCH = 4, 128, 8
# 29.6 million parameters
RECIPE = f"""[model]
num_layers = 8
hidden_size = 512
num_attention_heads = 8
vocab_size = 8192
hidden_dropout = 0.0
attention_dropout = 0.0
[parallel]
world_size = {RANKS}
[data]
seq_length = {LENGTH}
[train]
global_batch_size = {BATCH}
micro_batch_size = 1
"""


def words_of(row):
    """The options of `bench step` and of `plan` that are one layout."""
    sharding = row["sharding"]
    words = ["--tp", row["tp"], "--pp", row["pp"], *(["--sp"] if row["tp"] > 1 else []),
             *(["--vpp", row["vpp"], "--schedule", row["schedule"]] if row["pp"] > 1 else []),
             *(["--use-distributed-optimizer", "--data-parallel-sharding-strategy", sharding] if sharding else []),
             "--micro-batch-size", row["micro_batch_size"]]
    return list(map(str, words))


def name_of(row):
    words = [f"{name} {row[name]}" for name in ("tp", "pp", "vpp", "dp") if row[name] > 1]
    words += [row["schedule"]] if row["pp"] > 1 else []
    words += [f"recompute {row['recompute']}"] if row["recompute"] != "none" else []
    words += [f"ZeRO {dict(optim=1, optim_grads=2, optim_grads_params=3)[row['sharding']]}"] if row["sharding"] else []
    return ", ".join([*words, f"{row['microbatches']} x {row['micro_batch_size']} samples"])


def measure(recipe, row, steps):
    return report.ours("bench", "step", "--model", recipe, *words_of(row), "--microbatches", row["microbatches"],
                       "--recompute", row["recompute"], "--seq-length", LENGTH, "--world-size", RANKS, "--launch",
                       "threads", "--steps", steps, "--warmup", 1)


def planned_bytes(recipe, row):
    """Of all ranks together: they are one process."""
    plan = report.ours("plan", recipe, *words_of(row), "--train.recompute", row["recompute"])
    total = plan["memory_bytes"]["total"]
    return sum(total) * RANKS // len(total)


def same_order(rows, times):
    """Of the five that were predicted to be the fastest, the share of pairs that were measured in this order; pairs
    that are less than 2 % apart as measured are in either."""
    best = sorted(range(len(rows)), key=lambda i: rows[i]["step_ms"])[:5]
    pairs = list(itertools.combinations(best, 2))
    return sum(times[a] <= 1.02 * times[b] for a, b in pairs) / len(pairs)


def main():
    parser = report.options(__doc__, rounds=2)
    parser.add_argument("--most", type=int, default=1000)
    arguments = report.parse(parser)
    report.need_program()
    most, steps = (6, 1) if arguments.quick else (arguments.most, 3)
    with tempfile.TemporaryDirectory(prefix="layouts-") as folder:
        recipe, rates = pathlib.Path(folder) / "gpt_30m.toml", pathlib.Path(folder) / "this_machine.toml"
        recipe.write_text(RECIPE)
        result = report.Report("layouts", f"Layouts of 29.6 M parameters on {RANKS} ranks, predicted and measured",
                               arguments)
        report.ours("bench", "hardware", "--ranks", RANKS, "--output", rates)
        found = report.ours("plan", recipe, "--search", "--world-size", RANKS, "--hardware", rates, "--top", most)
        rows = [row for row in found["layouts"] if row["recompute"] != "fit"]
        times, peaks = [[] for _ in rows], [[] for _ in rows]
        for _ in range(arguments.rounds):
            for i, row in enumerate(rows):
                run = measure(recipe, row, steps)
                times[i].append(statistics.median(run["all_step_ms"]))
                peaks[i].append(run["peak_tensor_bytes"] / 1e6)
        for row, each, peak in zip(rows, times, peaks):
            result.add(name_of(row), each, "ms", [row["step_ms"]] * len(each), "predicted")
            result.add(f"memory: {name_of(row)}", peak, "MB", [planned_bytes(recipe, row) / 1e6] * len(peak), "planned",
                       timed=False)
        medians = [statistics.median(each) for each in times]
        errors = [abs(row["step_ms"] / each - 1) for row, each in zip(rows, medians)]
        result.add(f"{len(rows)} layouts: share whose step is within 15 % of the prediction",
                   sum(error <= 0.15 for error in errors) / len(errors), at_least=1, rounds=arguments.rounds)
        result.add("median error of the predicted steps", statistics.median(errors), rounds=arguments.rounds)
        result.add("pairs of the five that were to be the fastest, in the order measured", same_order(rows, medians),
                   at_least=1, rounds=arguments.rounds)
        result.write()


if __name__ == "__main__":
    main()
