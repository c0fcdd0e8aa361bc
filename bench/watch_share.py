#!/usr/bin/env python3
"""What `megatron watch` takes of a core: processor time of its process over time that passes, once it has drawn.

    bench/watch_share.py [--seconds 20] [--rounds 3]

In a terminal of 120 x 40, looking once a second as by default: at a run that trains meanwhile; at one of 100,000 steps
whose file gets 20 more a second; and at eight such, the most that it takes. What it takes before it first draws, when
it reads all steps that are there, is a row of its own."""
import fcntl
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

import report

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/testing"))
from program import RunFolder  # noqa: E402

GOAL = 10  # % of a core


def steps(first, count):
    return "".join(json.dumps({
        "iteration": i, "consumed_samples": 8 * i, "batch_size": 8, "loss": 2 + 8 / i, "grad_norm": 1 + 1 / i,
        "learning_rate": 1e-3, "loss_scale": 1.0, "tokens_per_s": 30000 + i % 97, "step_ms": 50 + i % 7,
        "tflops_per_rank": 0.02, "data_wait_ms": 0.0, "memory_bytes": 157257728, "peak_memory_bytes": 157257728}) + "\n"
        for i in range(first, first + count))


def cpu_s(process):
    """Processor time that it has taken."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watched:
    """`megatron watch` in a terminal of its own, whose bytes are read and counted."""

    def __init__(self, folders):
        self.terminal, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen([report.PROGRAM, "watch", *map(str, folders)], stdin=subprocess.DEVNULL,
                                        stdout=inner)
        os.close(inner)
        self.drawn, self.drawings = threading.Event(), 0
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        try:
            while data := os.read(self.terminal, 1 << 16):
                self.drawings += data.count(b"\x1b[J")  # at the end of each
                if self.drawings:
                    self.drawn.set()
        except OSError:  # the other end is closed
            pass

    def close(self):
        self.process.terminate()
        code = self.process.wait()
        self.reader.join()
        os.close(self.terminal)
        if code != 0 or self.drawings < 2:
            sys.exit(f"watch: exit code {code}, {self.drawings} drawings")


def share(folders, seconds, meanwhile=lambda: None):
    """Percent of a core once it has drawn, and seconds of one before. `meanwhile` is called every twentieth of a
    second."""
    watched = Watched(folders)
    try:
        if not watched.drawn.wait(timeout=300):
            sys.exit("watch drew nothing")
        begin, start = time.perf_counter(), cpu_s(watched.process)
        while time.perf_counter() < begin + seconds:
            meanwhile()
            time.sleep(0.05)
        return 100 * (cpu_s(watched.process) - start) / (time.perf_counter() - begin), start
    finally:
        watched.close()


def beside_training(place, name, seconds):
    run = place.path / name
    training = subprocess.Popen([report.PROGRAM, *map(str, place.train_words(name, "--train-iters", 10 ** 6))],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (run / "metrics.jsonl").exists():
            if training.poll() is not None:
                sys.exit(f"train: exit code {training.returncode}")
            time.sleep(0.05)
        return share([run], seconds)
    finally:
        training.kill()
        training.wait()


def beside_files(count, lines, seconds):
    with tempfile.TemporaryDirectory() as place:
        folders = [pathlib.Path(place) / f"run-{i}" for i in range(count)]
        for folder in folders:
            folder.mkdir()
            (folder / "metrics.jsonl").write_text(steps(1, lines))
        written = lines

        def write():
            nonlocal written
            written += 1
            for folder in folders:
                with open(folder / "metrics.jsonl", "a") as file:
                    file.write(steps(written, 1))
        return share(folders, seconds, write)


def main():
    parser = report.options(__doc__)
    parser.add_argument("--seconds", type=float)
    arguments = report.parse(parser)
    report.need_program()
    seconds = arguments.seconds or (3 if arguments.quick else 20)
    lines = 1000 if arguments.quick else 100_000
    result = report.Report("watch", "What watching runs takes of a core", arguments)
    place = RunFolder()
    try:
        trained = [beside_training(place, f"run-{i}", seconds)[0] for i in range(arguments.rounds)]
    finally:
        place.close()
    result.add("a run that trains", trained, "%", at_most=GOAL)
    for count in (1, 8):
        name = f"{count} run{'s' * (count > 1)} of {lines:,} steps"
        shares, starts = zip(*(beside_files(count, lines, seconds) for _ in range(arguments.rounds)))
        result.add(name, shares, "%", at_most=GOAL)
        result.add(f"{name}: before it first draws", starts, "s")
    result.write()


if __name__ == "__main__":
    main()
