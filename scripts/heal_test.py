#!/usr/bin/env python3
"""Kills ranks of a supervised run of 4, stops others for good and gives steps NaNs, at random moments: the run must end
by itself, with the losses, bit by bit, of a run that nobody has harmed and that skips the same batches.

Usage: heal_test.py [HARMS [NANS [SEED]]]
"""
import pathlib
import random
import sys
import time

sys.path += [str(pathlib.Path(__file__).resolve().parents[1] / "tests" / folder) for folder in ("testing", "e2e/ranks")]
from program import RunFolder, drawn_seed  # noqa: E402
from test_supervise import heal  # noqa: E402

harms = int(sys.argv[1]) if len(sys.argv) > 1 else 14
nans = int(sys.argv[2]) if len(sys.argv) > 2 else 6
seed = int(sys.argv[3]) if len(sys.argv) > 3 else drawn_seed()
spread = 100  # iterations between two harms, at most
iterations = spread * (harms + 1)
steps = sorted(random.Random(seed).sample(range(2, iterations), nans))
print(f"{harms} kills and partitions, NaNs at {steps} of {iterations} iterations, seed {seed}", flush=True)
place = RunFolder()
try:
    start = time.monotonic()
    harmed = heal(place, "harmed", harms, iterations, steps, seed, spread)
    seconds = time.monotonic() - start
    place.train("whole", "--world-size", 4, "--tp", 2, "--train-iters", iterations, "--threads-per-rank", 1,
                *(["--guard.skip_iterations", *steps] if steps else []))
    whole, losses = place.losses("whole"), place.losses("harmed")
    if losses != whole:
        first = next(step for step in whole if losses.get(step) != whole[step])
        sys.exit(f"iteration {first}: {losses.get(first)} instead of {whole[first]}")
    failed, hung, rolled_back = (len(harmed.events(name)) for name in ("failed", "hung", "rolled_back"))
    print(f"ended by itself after {seconds:.0f} s: {failed} ranks died, {hung} hangs, {rolled_back} rollbacks, "
          f"{len(whole)} losses equal bit by bit")
finally:
    place.close()
