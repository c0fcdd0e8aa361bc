#!/usr/bin/env python3
"""This commit's program against an earlier one's, in turns: start-up, training step, writing and reading with a model,
text to tokens, peak memory of each, and what it takes to build the program from nothing.

    bench/commit_vs_commit.py [EARLIER] [--rounds 5] [--no-build-time]

EARLIER, a commit (the last one before layers were described by a table, unless another is named), is checked out and
built in build/bench/EARLIER, with this tree's libtorch. Both are built without a compiler cache, this tree in a folder
of its own, for the processor time that it takes; --no-build-time builds the earlier one alone, with the cache."""
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
import time

import report

STEP = ["bench", "step", "--model", "gpt2_124m", "--seq-length", 256, "--steps", 4, "--warmup", 1, "--json"]
GENERATE = ["bench", "generate", "--repeats", 2, "--new-tokens", 64, "--prompt-tokens", 16, "--prefill-tokens", 512,
            "--json"]


def build(tree, folder, cache):
    """The program of `tree`, built in `folder`; the processor's seconds that it took."""
    shutil.rmtree(folder, ignore_errors=True)
    environment = os.environ | ({} if cache else {"CCACHE_DISABLE": "1"})
    torch = os.environ.get("TORCH_DIR") or str(next((report.ROOT / ".venv/lib").glob("python3*/site-packages/torch")))
    quietly = {"check": True, "stdout": subprocess.DEVNULL, "env": environment, "cwd": tree}
    subprocess.run(["cmake", "--preset", "release", "-B", folder, f"-DTORCH_DIR={torch}"], **quietly)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["cmake", "--build", folder, "-j", str(os.cpu_count()), "--target", "megatron"], **quietly)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(words):
    """Wall seconds of a command, and megabytes at its peak."""
    begin = time.perf_counter()
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, words)
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def start_ms(program):
    """Milliseconds until the version is said, the mean of 20."""
    return sum(measured([program, "version"])[0] for _ in range(20)) * 50


def main():
    parser = report.options(__doc__, rounds=5)
    parser.add_argument("earlier", nargs="?", default="1bc91602")
    parser.add_argument("--no-build-time", action="store_true")
    arguments = report.parse(parser)
    report.need_program()
    model, text = report.model(), report.data("text/english_novels_98.jsonl.zst")
    gpt2 = report.data("gpt2/encoder.json").parent
    commit = report.git("rev-parse", f"{arguments.earlier}^{{commit}}")[:12]
    result = report.Report("commits", f"This commit and {commit}", arguments)
    tree = report.ROOT / "build/bench" / commit
    if not (tree / ".git").exists():
        subprocess.run(["git", "worktree", "add", "--detach", tree, commit], cwd=report.ROOT, check=True)
    try:
        earlier_s = build(tree, tree / "build", arguments.no_build_time)
        if not arguments.no_build_time:
            with tempfile.TemporaryDirectory(prefix="now-", dir=report.ROOT / "build/bench") as folder:
                now_s = build(report.ROOT, pathlib.Path(folder) / "build", False)
            result.add("building the program from nothing, processor time", now_s, "s", earlier_s, commit, inverse=True,
                       at_least=0.99, timed=False)
        compare(result, arguments, commit, tree / "build/megatron", model, text, gpt2)
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=report.ROOT, check=False)
    result.write()


def compare(result, arguments, commit, earlier, model, text, gpt2):
    """Adds the rows of what both programs do, round after round in turns, each first as often as the other."""
    def rounds(run):
        ours, theirs = [], []
        for number in range(arguments.rounds):
            for program, runs in [(report.PROGRAM, ours), (earlier, theirs)][::1 - 2 * (number % 2)]:
                runs.append(run(program))
        return ours, theirs

    def add(what, unit, both, pick, **how):
        result.add(what, [pick(run) for run in both[0]], unit, [pick(run) for run in both[1]], commit, at_least=0.99,
                   **how)

    add("start: megatron version", "ms", rounds(start_ms), float, inverse=True)
    name = pathlib.Path(model).name
    for dtype in ("fp32", "bf16"):
        both = rounds(lambda program: report.whole_json([program, *STEP, "--dtype", dtype]))
        add(f"GPT-2 124M, step of 256 tokens, {dtype}", "tokens/s", both, lambda run: run["tokens_per_s"])
        add(f"GPT-2 124M, step of 256 tokens, {dtype}: peak memory", "MB", both,
            lambda run: run["peak_memory_bytes"] / 1e6, inverse=True, timed=False)
        both = rounds(lambda program: report.whole_json([program, *GENERATE, "--load", model, "--dtype", dtype]))
        add(f"{name}, writing, {dtype}", "tokens/s", both, lambda run: run["tokens_per_s"])
        add(f"{name}, reading, {dtype}", "tokens/s", both, lambda run: run["prefill_tokens_per_s"])
    with tempfile.TemporaryDirectory(prefix="commits-", dir=report.ROOT / "build/bench") as folder:
        both = rounds(lambda program: measured(
            [program, "data", "preprocess", "--input", text, "--tokenizer", gpt2, "--output-prefix", f"{folder}/out",
             "--append-eod", "--workers", 2, "--progress", "off"]))
        add("76 MB of novels to GPT-2's tokens", "s", both, lambda run: run[0], inverse=True)
        add("76 MB of novels to GPT-2's tokens: peak memory", "MB", both, lambda run: run[1], inverse=True, timed=False)


if __name__ == "__main__":
    main()
