#!/usr/bin/env python3
"""Kills preprocessing at random moments until it has been killed N times; what each run leaves must be whole.

Usage: kill_preprocess_test.py [TIMES [SEED]]     MEGATRON names the program

A run that is not killed in time ends by itself: its files must be those of a run that was never disturbed, byte for
byte, and the next one starts over. While a run is not done, nothing of it may stand under a final name.
"""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests/testing"))
from program import MEGATRON, drawn_seed, run, text_of_sentences  # noqa: E402

OUTPUTS = [f"{key}_document.{ending}" for key in ("text", "title") for ending in ("bin", "idx")]


def write_text(path, megabytes):
    sentences = text_of_sentences(2000)
    size = number = 0
    with open(path, "w") as file:
        while size < megabytes << 20:
            text = " ".join(sentences[(number + i) % 2000] for i in range(50))
            size += file.write(json.dumps({"text": text, "title": f"No {number}"}) + "\n")
            number += 1


class Input:
    def __init__(self, folder, megabytes=48):
        self.folder = folder
        run("tokenizer", "train", "--input", self.text(1, "small.jsonl"), "--vocab-size", 400, "--output",
            folder / "tok")
        self.long = self.text(megabytes, "text.jsonl")

    def text(self, megabytes, name):
        write_text(self.folder / name, megabytes)
        return self.folder / name

    def words(self, prefix):
        return [MEGATRON, "data", "preprocess", "--input", self.long, "--tokenizer", self.folder / "tok", "--json-keys",
                "text", "title", "--workers", "2", "--note-mb", "1", "--output-prefix", self.folder / prefix, "--json"]

    def outputs(self, prefix):
        paths = [self.folder / f"{prefix}_{name}" for name in OUTPUTS]
        return [path.read_bytes() if path.exists() else None for path in paths]


def kill_after_notes(place, times):
    """Kills each run once it has noted more than the runs before; the last one resumes there."""
    subprocess.run(place.words("whole"), check=True, stdout=subprocess.DEVNULL)
    journal, noted = place.folder / "cut.parts/journal", 1  # its first line is no note
    for _ in range(times):
        process = subprocess.Popen(place.words("cut"), stdout=subprocess.DEVNULL)
        while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") <= noted):
            pass
        process.kill()
        process.wait()
        assert journal.exists(), "a run ended before it could be killed"
        noted = journal.read_bytes().count(b"\n")
        assert place.outputs("cut") == [None] * len(OUTPUTS)
    out = subprocess.run(place.words("cut"), check=True, stdout=subprocess.PIPE).stdout
    assert json.loads(out)["kept_bytes"] > 0
    assert place.outputs("cut") == place.outputs("whole")


def kill_at_random_moments(place, times, seed):
    chance = random.Random(seed)
    start = time.monotonic()
    subprocess.run(place.words("whole"), check=True, stdout=subprocess.DEVNULL)
    whole_s = time.monotonic() - start
    wanted = place.outputs("whole")
    killed = finished = resumed = 0
    while killed < times:
        process = subprocess.Popen(place.words("cut"), stdout=subprocess.PIPE)
        try:
            out, _ = process.communicate(timeout=chance.uniform(0, whole_s * 0.7))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed += 1
            # Pairs get their names one after another, when all is written: each is whole or not there.
            for name, content, right in zip(OUTPUTS, place.outputs("cut"), wanted):
                assert content is None or content == right, f"{name} after kill {killed} of seed {seed}"
            continue
        assert process.returncode == 0, f"a run after kill {killed} of seed {seed} failed"
        resumed += json.loads(out)["kept_bytes"] > 0
        finished += 1
        assert place.outputs("cut") == wanted, f"other bytes after kill {killed} of seed {seed}"
        assert not (place.folder / "cut.parts").exists(), "parts are left"
        for name in OUTPUTS:
            os.remove(place.folder / f"cut_{name}")
    out = subprocess.run(place.words("cut"), check=True, stdout=subprocess.PIPE).stdout
    resumed += json.loads(out)["kept_bytes"] > 0
    assert place.outputs("cut") == wanted
    return finished + 1, resumed


def main():
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else drawn_seed()
    print(f"{times} kills, seed {seed}", flush=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="megatron-kill-"))
    try:
        finished, resumed = kill_at_random_moments(Input(folder), times, seed)
    finally:
        shutil.rmtree(folder)
    print(f"{times} times killed; {finished} runs came to their end, {resumed} of them from notes, with equal bytes")


if __name__ == "__main__":
    main()
