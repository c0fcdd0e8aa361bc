#!/usr/bin/env python3
"""Kills a training run 100 times at random moments; after each, what `latest` names must be whole.

Usage: kill_test.py [TIMES [SEED [OPTION…]]]   options of the run, e.g. --world-size 2 --tp 2
"""
import pathlib
import sys

sys.path += [str(pathlib.Path(__file__).resolve().parents[1] / "tests" / folder) for folder in ("testing", "e2e/ranks")]
from program import RunFolder, drawn_seed  # noqa: E402
from test_stopping import kill_at_random_moments  # noqa: E402

times = int(sys.argv[1]) if len(sys.argv) > 1 else 100
seed = int(sys.argv[2]) if len(sys.argv) > 2 else drawn_seed()
print(f"{times} kills, seed {seed}", flush=True)
place = RunFolder()
try:
    kill_at_random_moments(place, "run", times, seed, sys.argv[3:])
finally:
    place.close()
print(f"{times} times killed, {times} times whole")
