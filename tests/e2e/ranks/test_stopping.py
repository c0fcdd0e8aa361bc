"""Runs that stop, by themselves or by force, and resume."""
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, drawn_seed, run  # noqa: E402


def start(words):
    return subprocess.Popen([MEGATRON, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_until(condition, process, timeout=120):
    end = time.monotonic() + timeout
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            errors = process.stderr.read() if process.poll() is not None else ""
            raise AssertionError(f"it did not happen; the program: {process.poll()}\n{errors}")
        time.sleep(0.01)


def iteration_in(latest):
    """What `latest` says; -1 where there was none."""
    return int(latest.strip().removeprefix("iter_")) if latest else -1


def kill_at_random_moments(place, name, times, seed, options=()):
    """Trains with a checkpoint a step and kills it `times` times; after each, what `latest` names must be whole, and of
    a later iteration than before."""
    draw = random.Random(seed)
    words = place.train_words(name, "--train-iters", 100000, "--save-interval", 1, "--eval-interval", 0,
                              *options)
    latest = place.path / name / "checkpoints/latest"
    for number in range(1, times + 1):
        before = latest.read_text() if latest.exists() else ""
        process = start(words)
        wait_until(lambda: latest.exists() and latest.read_text() != before, process)
        time.sleep(draw.random() * 0.3)  # the moment is what varies
        process.kill()
        process.wait()
        process.stderr.close()
        run("checkpoint", "verify", place.path / name)
        after = latest.read_text()
        if iteration_in(after) <= iteration_in(before):
            raise AssertionError(f"latest was {before.strip()} and is {after.strip()} after kill {number}, seed {seed}")


class Stopping(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)

    def test_a_resumed_run_is_bit_exact(self):
        options = ["--hidden-dropout", 0.1, "--attention-dropout", 0.1, "--lr-decay-samples", 160]
        self.place.train("whole", *options, "--train-iters", 20)
        self.place.train("halves", *options, "--train-iters", 10)
        self.place.train("halves", *options, "--train-iters", 20)
        self.assertEqual(self.place.losses("halves"), self.place.losses("whole"))
        self.assertEqual(len(self.place.losses("whole")), 20)

    def test_a_run_goes_on_in_another_layout(self):
        options = ["--hidden-dropout", 0.1, "--attention-dropout", 0.1, "--lr-decay-samples", 160]
        self.place.train("whole", *options, "--train-iters", 20)
        self.place.train("moved", *options, "--train-iters", 10, "--world-size", 2, "--tp", 2)
        self.place.train("moved", *options, "--train-iters", 20, "--world-size", 2)
        whole, moved = self.place.losses("whole"), self.place.losses("moved")
        for iteration, loss in whole.items():
            self.assertAlmostEqual(moved[iteration] / loss, 1, delta=2e-5, msg=f"iteration {iteration}")

    def test_shards_of_the_optimizer_go_on_without_it_in_another_layout_and_back(self):
        options = ["--lr-decay-samples", 120, "--global-batch-size", 12, "--micro-batch-size", 2]
        sharded, split = ["--world-size", 3, "--use-distributed-optimizer"], ["--world-size", 2, "--tp", 2]
        self.place.train("whole", *options, *sharded, "--train-iters", 9)
        for iterations, layout in [(3, sharded), (6, split), (9, sharded)]:
            self.place.train("moved", *options, *layout, "--train-iters", iterations)
        whole, moved = self.place.losses("whole"), self.place.losses("moved")
        self.assertEqual((len(whole), len(moved)), (9, 9))
        for iteration, loss in whole.items():
            self.assertAlmostEqual(moved[iteration] / loss, 1, delta=1e-7, msg=f"iteration {iteration}")

    def test_sigterm_finishes_the_step_saves_and_exits_with_3(self):
        words = self.place.train_words("run", "--train-iters", 100000, "--world-size", 2, "--tp", 2)
        process = start(words)
        metrics = self.place.path / "run/metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3, process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 3, errors)
        last = max(self.place.losses("run"))
        info = run("checkpoint", "info", self.place.path / "run", "--json")
        self.assertIn(f'"iteration":{last}', info.replace(" ", ""))

    def wait_for_steps(self, process, count, name="run"):
        metrics = self.place.path / name / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= count, process)

    def assert_saved_its_last_step(self):
        info = run("checkpoint", "info", self.place.path / "run", "--json")
        self.assertIn(f'"iteration":{max(self.place.losses("run"))}', info.replace(" ", ""))

    def test_other_signals_save_as_sigterm_does(self):
        processes = ["--world-size", 2, "--parallel.launch", "processes"]
        for sent, options in [(signal.SIGHUP, []), (signal.SIGHUP, processes),
                              (signal.SIGUSR1, ["--exit-signal", "SIGUSR1", *processes])]:
            with self.subTest(sent=sent, options=options):
                process = start(self.place.train_words("run", "--train-iters", 100000, *options))
                self.addCleanup(process.kill)
                self.wait_for_steps(process, 3)
                process.send_signal(sent)
                _, errors = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 3, errors)
                self.assert_saved_its_last_step()
                shutil.rmtree(self.place.path / "run")

    def test_a_run_under_nohup_outlives_its_terminal(self):
        words = self.place.train_words("run", "--train-iters", 100000)
        process = subprocess.Popen(["nohup", MEGATRON, *map(str, words)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.wait_for_steps(process, 3)
        process.send_signal(signal.SIGHUP)
        self.wait_for_steps(process, (self.place.path / "run/metrics.jsonl").read_text().count("\n") + 20)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 3, errors)

    def test_a_stopped_rank_does_not_hold_up_sigterm(self):
        words = self.place.train_words("run", "--train-iters", 100000, "--world-size", 2, "--parallel.launch",
                                       "processes")
        process = start(words)
        self.addCleanup(process.kill)
        self.wait_for_steps(process, 3)
        ranks = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        self.assertEqual(len(ranks), 2)
        os.kill(int(ranks[1]), signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 3, errors)
        self.assert_saved_its_last_step()

    def test_killed_at_any_moment_leaves_a_whole_latest(self):
        seed = drawn_seed()
        for name, options in [("one rank", []), ("two ranks", ["--world-size", 2, "--tp", 2]),
                              ("shards", ["--world-size", 2, "--use-distributed-optimizer"])]:
            kill_at_random_moments(self.place, name, times=2, seed=seed, options=options)


if __name__ == "__main__":
    unittest.main()
