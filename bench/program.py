#!/usr/bin/env python3
"""Figures of the program with itself, the disk and the machine, by its own job `megatron bench`:

    bench/program.py FIGURE [--rounds 3] [--quick]

all-reduce            between two threads of a process, with Gloo on loopback
tensor-parallel       GPT-2 124M split over two ranks, a core each, with one rank on one core
distributed-optimizer GPT-2 124M on 4 data-parallel ranks, with the plain optimizer
fully-sharded         the same with ZeRO stage 3, with stage 1, and the bytes that were planned
checkpoint            saving and loading weights and moments, with the disk read and written by 1, 2, 4 and 8 streams
                      (the fastest is what the disk can), and what a save costs the steps meanwhile
pipeline              each schedule with what was predicted of it before, ZB-H1 with 1F1B
scaling               small models on 1, 2 and 4 ranks
high-precision        float32 products by three bf16 products, where there is AMX
gpu-step              GPT-2 124M on the GPU
kernels-in-turns      grouped products, attention within a window and over a paged cache, each with its like
                      (-DMEGATRON_BENCH=ON)
micro                 the micro-benchmarks (built with -DMEGATRON_BENCH=ON): schedules, pipelines, data, kernels"""
import json
import os
import pathlib
import statistics
import subprocess

import report

STEP = ["bench", "step", "--model", "gpt2_124m"]


def steps(quick, full=4):
    return ["--steps", 1 if quick else full, "--warmup", 1]


def all_reduce(result, arguments):
    times = {}
    for _ in range(arguments.rounds):
        for row in report.ours("bench", "comm")["results"]:
            times.setdefault((row["bytes"], row["transport"]), []).append(row["median_us"])
    for size in sorted({size for size, _ in times}):
        result.add(f"{size / 2**20:.3g} MB, 2 ranks", times[size, "local"], "us", times[size, "gloo"],
                   "Gloo", inverse=True, at_least=4 if size > 2**25 else None)


def tensor_parallel(result, arguments):
    core = str(min(os.sched_getaffinity(0)))
    length = ["--seq-length", 128 if arguments.quick else 1024]
    for dtype in ["fp32"] if arguments.quick else ["fp32", "bf16"]:
        words = [*STEP, *length, *steps(arguments.quick), "--dtype", dtype, "--threads-per-rank", 1]
        two, one = [], []
        for _ in range(arguments.rounds):
            two.append(report.ours(*words, "--world-size", 2, "--tp", 2)["tokens_per_s"])
            one.append(report.whole_json(["taskset", "-c", core, report.PROGRAM, *words, "--json"])["tokens_per_s"])
        result.add(f"GPT-2 124M, {dtype}, 2 ranks", two, "tokens/s", one, "1 rank, 1 core", at_least=1.8)


def distributed_optimizer(result, arguments):
    words = [*STEP, "--seq-length", 64 if arguments.quick else 256, *steps(arguments.quick, 3), "--world-size", 4]
    sharded, plain = [], []
    for _ in range(arguments.rounds):
        sharded.append(report.ours(*words, "--optimizer.use_distributed_optimizer", "true"))
        plain.append(report.ours(*words))
    result.add("step, 4 ranks", [run["step_ms"] for run in sharded], "ms", [run["step_ms"] for run in plain],
               "the plain optimizer", at_most=1.02)
    result.add("memory, 4 ranks", [run["bytes_per_parameter"] for run in sharded], "bytes per parameter",
               [run["bytes_per_parameter"] for run in plain], "the plain optimizer")


def fully_sharded(result, arguments):
    words = [*STEP, "--seq-length", 64 if arguments.quick else 256, *steps(arguments.quick, 3), "--world-size", 4,
             "--optimizer.use_distributed_optimizer", "true"]
    full, first = [], []
    for _ in range(arguments.rounds):
        first.append(report.ours(*words))
        full.append(report.ours(*words, "--optimizer.data_parallel_sharding_strategy", "optim_grads_params"))
    result.add("step, 4 ranks", [run["step_ms"] for run in full], "ms", [run["step_ms"] for run in first],
               "ZeRO stage 1", at_most=1.1)
    result.add("memory, 4 ranks", [run["bytes_per_parameter"] for run in full], "bytes per parameter",
               [run["bytes_per_parameter"] for run in first], "ZeRO stage 1")
    result.add("memory, 4 ranks", [run["bytes_per_parameter"] for run in full], "bytes per parameter",
               [run["planned_bytes_per_parameter"] for run in full], "planned before", at_most=1.02, timed=False)


def checkpoint(result, arguments):
    words = ["--recipe", "configs/gpt_tiny.toml"] if arguments.quick else ["--steps", 5]
    found = report.ours("bench", "checkpoint", "--repeats", arguments.rounds, *words)
    streams = {name: found[f"{name}_direct_gb_s_by_streams"] for name in ("write", "read")}
    size, of = f"{found['gigabytes']:.3g} GB", {"rounds": arguments.rounds}
    result.add(f"save of {size}", found["save_gb_s"], "GB/s", found["write_direct_gb_s"],
               "the disk, direct writes by several streams", at_least=0.8, by_streams=streams["write"],
               **of)
    result.add(f"save of {size}", found["save_gb_s"], "GB/s", found["write_cached_fsync_gb_s"], "dd conv=fsync",
               **of)
    for name, text, goal in (("load_cold_gb_s", "load in the same layout, cold", None),
                             ("load_split_cold_gb_s", "load by 2 ranks, cold", 0.7)):
        result.add(text, found[name], "GB/s", found["read_direct_gb_s"], "the disk, direct reads by several streams",
                   at_least=goal, by_streams=streams["read"], **of)
    result.add("load by 2 ranks, files in memory", found["load_split_warm_gb_s"], "GB/s", **of)
    result.add("more memory while loading, share of the bytes", found["load_extra_memory_share"], at_most=0.1,
               timed=False, **of)
    if "stall_share_of_step" in found:
        result.add("an asynchronous save stops training for, share of a step", found["stall_share_of_step"],
                   at_most=0.05)
        result.add("a step with a save under way is longer by, share of it", found["slowdown_share_of_step"])


def pipeline(result, arguments):
    model = ["configs/gpt_tiny.toml", "--tp", 1, "--world-size", 2, "--pp", 2, "--num-layers", 8, "--hidden-size", 512,
             "--num-attention-heads", 8, "--vocab-size", 1024, "--seq-length", 512, "--micro-batch-size", 1,
             "--pp-communication", "overlapped", "--schedules", "1f1b", "zb-h1"]
    counts = ["--steps", 2 if arguments.quick else 4, "--warmup", 1, "--rounds", 1]
    for microbatches in [4] if arguments.quick else [4, 8]:
        # a prediction and what it is compared with, round after round
        found = [report.ours("bench", "pipeline", *model, "--global-batch-size", microbatches, *counts)
                 for _ in range(arguments.rounds)]
        for rounds in zip(*(run["schedules"] for run in found)):
            result.add(f"{rounds[0]['schedule']}, 2 stages, {microbatches} microbatches",
                       [row["measured_ms"] for row in rounds], "ms", [row["predicted_ms"] for row in rounds],
                       "predicted before", at_most=1.05)
        for rounds in zip(*(run["comparisons"] for run in found)):
            if min(row["time_saved_predicted"] for row in rounds) <= 0:
                continue
            result.add(f"{rounds[0]['schedule']} with {rounds[0]['against']}, {microbatches} microbatches: time saved",
                       [100 * row["time_saved_measured"] for row in rounds], "%",
                       [100 * row["time_saved_predicted"] for row in rounds], "predicted",
                       at_least=0.8 if microbatches == 4 else None)


def scaling(result, arguments):
    words = ["--steps", 1, "--rounds", 1] if arguments.quick else ["--rounds", arguments.rounds]
    for row in report.ours("bench", "scaling", "--measured", *words)["rows"]:
        result.add(f"{row['study']}, {row['run']}", row["measured"], "%" if row["unit"] == "percent" else "x",
                   rounds=arguments.rounds)


def high_precision(result, arguments):
    if "amx" not in report.machine()["instruction_sets"]:
        report.skip("no AMX in this processor", "run it on a machine that has it: grep amx /proc/cpuinfo")
    words = [*STEP, "--seq-length", 1024, *steps(arguments.quick)]
    high, highest = [], []
    for _ in range(arguments.rounds):
        high.append(report.ours(*words, "--matmul-precision", "high")["tokens_per_s"])
        highest.append(report.ours(*words)["tokens_per_s"])
    result.add("GPT-2 124M, fp32, --matmul-precision high", high, "tokens/s", highest, "--matmul-precision highest")


def gpu_step(result, arguments):
    if not report.gpu_name():
        report.skip("no NVIDIA GPU", "run it on a machine where nvidia-smi finds one")
    for dtype in ("fp32", "bf16"):
        found = [report.ours(*STEP, "--micro-batch-size", 4, "--seq-length", 1024, "--steps", 20, "--device", "cuda",
                             "--dtype", dtype) for _ in range(arguments.rounds)]
        result.add(f"GPT-2 124M, 4 x 1024 tokens, {dtype}", [run["tokens_per_s"] for run in found], "tokens/s",
                   bound_fraction=found[0]["bound_fraction"])


def bench_programs(*names):
    """Where they are."""
    folder = pathlib.Path(report.PROGRAM).parent
    programs = [folder / f"{name}_bench" for name in names]
    absent = [path.name for path in programs if not os.access(path, os.X_OK)]
    if absent:
        report.skip(f"no {', '.join(absent)}",
                    f"cmake -DMEGATRON_BENCH=ON build && ninja -C build {' '.join(path.name for path in programs)}")
    return programs


def benchmark_rows(path, seconds):
    done = subprocess.run([path, "--benchmark_format=json", f"--benchmark_min_time={seconds}"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout)["benchmarks"]


# What kernels_in_turns_bench compares: benchmark, counter, counter of its like, what that is, goal (at least). A
# benchmark of several sizes is named with one of them behind a slash.
IN_TURNS = [*[(f"BM_Grouped{name}", "grouped", *other) for name in ("Linear", "InputGradient", "WeightGradient")
              for other in (("alone", "each expert alone", 0.95), ("whole", "one product of all rows", None))],
            ("BM_Window", "window", "full", "all 8192 keys", 4),
            *[(name, "paged", "side_by_side", "keys side by side", 0.98) for name in (
                "BM_PagedCache", *[f"BM_PagedStep/tokens:{tokens}/texts:{texts}"
                                   for tokens in (512, 1024, 4096) for texts in (1, 4, 16)])]]


def kernels_in_turns(result, arguments):
    (program,) = bench_programs("kernels_in_turns")
    rounds = [{row["name"]: row for row in benchmark_rows(program, 0.01 if arguments.quick else 1)}
              for _ in range(arguments.rounds)]
    for benchmark, ours, like, what, goal in IN_TURNS:
        for dtype in ("fp32", "bf16"):
            name, slash, size = benchmark.partition("/")
            figures = [row[f"{name}/{dtype}{slash}{size}/real_time"] for row in rounds]
            result.add(f"{benchmark.removeprefix('BM_')}, {dtype}", [each[ours] for each in figures], "ms",
                       [each[like] for each in figures], what, inverse=True, at_least=goal)


def micro(result, arguments):
    for path in bench_programs("schedule", "pipeline", "data", "kernels"):
        times = {}
        for row in benchmark_rows(path, 0.01 if arguments.quick else 0.5):
            times.setdefault((row["name"], row["time_unit"]), []).append(row["real_time"])
        for (name, unit), values in times.items():
            result.add(f"{path.name}: {name}", statistics.median(values), unit)


FIGURES = {"all-reduce": (all_reduce, "All-reduce between ranks of one machine"),
           "tensor-parallel": (tensor_parallel, "Two ranks on two cores"),
           "distributed-optimizer": (distributed_optimizer, "Distributed optimizer, GPT-2 124M"),
           "fully-sharded": (fully_sharded, "ZeRO stage 3, GPT-2 124M"),
           "checkpoint": (checkpoint, "Checkpoints and the disk"),
           "pipeline": (pipeline, "Pipelines and their prediction"),
           "scaling": (scaling, "Scaling over this machine's cores"),
           "high-precision": (high_precision, "float32 by bf16 products"),
           "gpu-step": (gpu_step, "Training step on a GPU"),
           "kernels-in-turns": (kernels_in_turns, "Kernels and their like"),
           "micro": (micro, "Micro-benchmarks")}


def main():
    parser = report.options(__doc__)
    parser.add_argument("figure", choices=list(FIGURES))
    arguments = report.parse(parser)
    report.need_program()
    measure, title = FIGURES[arguments.figure]
    result = report.Report(arguments.figure, title, arguments)
    measure(result, arguments)
    result.write()


if __name__ == "__main__":
    main()
