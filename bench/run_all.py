#!/usr/bin/env python3
"""Runs every benchmark of a list, one after the other, and says at the end what was done, failed and skipped.

    bench/run_all.py [--quick] [--only NAME…] [--leave-out NAME…] [--list] [--results FOLDER]

bench/run_all.sh sets up what they need first. A benchmark's output goes to build/bench/NAME.log. One that exits with 77
could not run here and says why; any other code but 0 is a failure, and so is no end within its time. The time that is
left is told from what each took last time, or else from an estimate."""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import report

PYTHON = [sys.executable, "-B"]
MINUTES = 90  # that one benchmark may take


class Benchmark:
    """Its name, which its result has too; the words that run it; estimated seconds in full and --quick. `needs`: what
    it reads of BENCH_DATA, where it does not look itself."""

    def __init__(self, name, words, full_s, quick_s, needs=None):
        self.name, self.words, self.full_s, self.quick_s, self.needs = name, words, full_s, quick_s, needs

    def command(self, quick, results):
        options = (["--quick"] if quick else []) + (["--results", results] if results else [])
        script = [str(report.ROOT / "bench" / self.words[0]), *self.words[1:]]
        return [*PYTHON, script[0], *options, *script[1:]]

    def lacks(self, quick):
        """What it needs and this machine does not have, or that there is no short form of it."""
        if self.needs and quick:
            return "it has no short form"
        return f"no {self.needs} in BENCH_DATA" if self.needs and not (report.DATA / self.needs).exists() else None


def benchmarks():
    def program(name, full_s, quick_s):
        return Benchmark(name, ["program.py", name], full_s, quick_s)

    yield Benchmark("gpt-step", ["step_vs_peers.py"], 900, 60)
    yield Benchmark("bert-step", ["bert_step_vs_peer.py"], 500, 120)
    yield Benchmark("t5", ["t5_vs_peer.py"], 500, 120)
    yield Benchmark("moe", ["moe_vs_peer.py"], 500, 120)
    yield Benchmark("generate", ["generate_vs_peer.py"], 400, 60)
    yield Benchmark("generate-blocks", ["blocks_vs_peers.py"], 600, 90)
    yield Benchmark("serve", ["serve_load.py"], 600, 30)
    yield Benchmark("serve-peer", ["serve_vs_peer.py"], 600, 60)
    yield Benchmark("serve-first-token", ["serve_first_token.py"], 60, 20)
    yield Benchmark("serve-storm", ["serve_storm.py"], 400, 20)
    yield Benchmark("watch", ["watch_share.py"], 300, 20)
    yield Benchmark("eval-wikitext", ["eval_peers.py"], 500, 120)
    yield Benchmark("finetune-mnli", ["finetune_peers.py", "--task", "mnli"], 1200, 30)
    yield Benchmark("finetune-qqp", ["finetune_peers.py", "--task", "qqp"], 1200, 30)
    yield Benchmark("preprocess", ["preprocess_peers.py"], 1100, 30)
    yield Benchmark("tokenizer", ["tokenizer_peers.py"], 400, 60)
    yield Benchmark("one-character", ["one_character.py"], 400, 30)
    yield Benchmark("squad-rows", ["squad_peers.py"], 60, 20)
    yield Benchmark("index", ["index_peers.py"], 120, 30)
    yield Benchmark("dedup", ["dedup_peers.py"], 150, 20)
    yield Benchmark("masked-samples", ["masked_samples_peers.py"], 300, 60)
    yield Benchmark("data-wait", ["data_wait.py"], 600, 90)
    yield Benchmark("busy-neighbour", ["busy_neighbour.py"], 450, 60)
    yield Benchmark("find-package", ["find_package.py"], 200, 30)
    yield program("all-reduce", 30, 10)
    yield program("tensor-parallel", 300, 60)
    yield program("distributed-optimizer", 300, 60)
    yield program("fully-sharded", 300, 60)
    yield program("checkpoint", 300, 30)
    yield program("pipeline", 240, 30)
    yield program("scaling", 60, 20)
    yield Benchmark("layouts", ["layouts_predicted.py"], 1500, 60)
    yield program("high-precision", 200, 60)
    yield program("gpu-step", 120, 60)
    yield program("kernels-in-turns", 215, 60)
    yield program("micro", 600, 60)
    yield Benchmark("commits", ["commit_vs_commit.py"], 3000, 900)
    plays = "text/tinyshakespeare.input.txt"  # the next two print Markdown
    yield Benchmark("figure7", ["report.py", "figure7", "The order of norms: figure 7 of the 2019 paper in small", "--",
                                "bench/figure7.sh", str(report.DATA / plays), "build/bench/figure7"], 900, 900, plays)
    yield Benchmark("parity", ["report.py", "parity", "Layouts of ranks with one rank", "--", "bench/parity.sh",
                               "--text", str(report.DATA / plays)], 2400, 2400, plays)


class Clock:
    """What is left: the last time's seconds or the estimate of each, as much longer as those done were."""

    def __init__(self, chosen, quick, folder):
        self.expected = {each.name: self.last_time(each.name, quick, folder) or
                         (each.quick_s if quick else each.full_s) for each in chosen}
        self.planned = self.taken = 0.0

    @staticmethod
    def last_time(name, quick, folder):
        here = report.machine_name(report.machine())
        for path in sorted(pathlib.Path(folder).glob(f"{name}_*_{here}.json"), reverse=True):
            try:
                fields = json.loads(path.read_text())
            except ValueError:
                continue
            if fields.get("quick") == quick:
                return fields.get("seconds")
        return None

    def done(self, name, seconds, skipped):
        if not skipped:
            self.planned += self.expected[name]
            self.taken += seconds
        del self.expected[name]

    def left(self):
        factor = self.taken / self.planned if self.planned > 0 and self.taken > 0 else 1.0
        return sum(self.expected.values()) * factor


def duration(seconds):
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def run(command, log, limit_s):
    """The exit code; 124 where the time ran out. The benchmark and all that it started end with it."""
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   start_new_session=True, cwd=report.ROOT)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def reason(log):
    """Why it was skipped."""
    lines = log.read_text(errors="replace").splitlines()
    return next((line.removeprefix("skipped: ") for line in lines if line.startswith("skipped: ")), "exit code 77")


def choose(listed, arguments, parser):
    names = [each.name for each in listed]
    for name in [*(arguments.only or []), *arguments.leave_out]:
        if name not in names:
            parser.error(f"no benchmark {name}; there are {', '.join(names)}")
    return [each for each in listed if (not arguments.only or each.name in arguments.only)
            and each.name not in arguments.leave_out]


def run_all(chosen, quick, results, limit_s=60 * MINUTES, logs=report.ROOT / "build/bench"):
    """Runs them; (name, "done" | "failed" | "skipped", text) of each."""
    folder = pathlib.Path(results or (report.ROOT / "build/bench" if quick else report.RESULTS))
    logs.mkdir(parents=True, exist_ok=True)
    clock, ends = Clock(chosen, quick, folder), []
    for number, each in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {each.name}: about {duration(clock.expected[each.name])}, "
              f"{duration(clock.left())} in all are left", flush=True)
        log, begin = logs / f"{each.name}.log", time.perf_counter()
        absent = each.lacks(quick)
        if absent:
            log.write_text(f"skipped: {absent}\n")
        code = report.SKIPPED if absent else run(each.command(quick, results), log, limit_s)
        seconds = time.perf_counter() - begin
        clock.done(each.name, seconds, code == report.SKIPPED)
        if code == report.SKIPPED:
            ends.append((each.name, "skipped", reason(log)))
        elif code == 0:
            ends.append((each.name, "done", f"in {duration(seconds)}"))
        else:
            said = f"did not end within {duration(limit_s)}" if code == 124 else f"exit code {code}"
            ends.append((each.name, "failed", f"{said}; {report.relative(str(log))}"))
            sys.stdout.write("".join(f"    {line}\n" for line in log.read_text(errors="replace").splitlines()[-15:]))
        print("    {1}: {2}".format(*ends[-1]), flush=True)
    return ends


def summary(ends):
    width = max((len(name) for name, *_ in ends), default=0)
    print()
    for kind in ("done", "skipped", "failed"):
        for name, end, text in ends:
            if end == kind:
                print(f"{kind:8} {name:{width}}  {text}")
    print(", ".join(f"{sum(end == kind for _, end, _ in ends)} {kind}" for kind in ("done", "skipped", "failed")))
    return any(end == "failed" for _, end, _ in ends)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the shortest form of each, to build/bench")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these alone")
    parser.add_argument("--leave-out", nargs="+", metavar="NAME", default=[], help="all but these")
    parser.add_argument("--list", action="store_true", help="print the names and leave")
    parser.add_argument("--results", help="folder of the results instead of bench/results")
    arguments = parser.parse_args()
    chosen = choose(list(benchmarks()), arguments, parser)
    if arguments.list:
        for each in chosen:
            print(f"{each.name:24} {' '.join(each.words)}")
        return 0
    if arguments.results:
        arguments.results = os.path.abspath(arguments.results)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends too
    failed = summary(run_all(chosen, arguments.quick, arguments.results))
    if not arguments.quick and not arguments.results:
        failed |= subprocess.run([sys.executable, report.ROOT / "scripts/performance.py"]).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
