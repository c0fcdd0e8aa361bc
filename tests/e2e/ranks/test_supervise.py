"""Runs that heal: ranks that die or hang, NaNs, spikes, signals."""
import fcntl
import json
import os
import pathlib
import random
import re
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, drawn_seed, run  # noqa: E402

PROCESSES = ["--parallel.launch", "processes"]


def children_of(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_there(pid):
    """Whether the process runs: one that only waits to be reaped does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


class Supervised:
    """`megatron run` of a job."""

    def __init__(self, place, name, options, job_options, stdout=subprocess.DEVNULL):
        self.folder = place.path / name
        words = ["run", *options, "--", *place.train_words(name, *job_options)]
        self.process = subprocess.Popen([MEGATRON, *map(str, words)], stdout=stdout, stderr=subprocess.PIPE, text=True)

    def wait_until(self, condition, timeout=120):
        end = time.monotonic() + timeout
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                errors = self.process.stderr.read() if self.process.poll() is not None else ""
                raise AssertionError(f"it did not happen; the program: {self.process.poll()}\n{errors}")
            time.sleep(0.01)

    def events(self, *names):
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if not names or event["event"] in names]

    def steps(self):
        path = self.folder / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def checkpoint(self):
        latest = self.folder / "checkpoints/latest"
        return int(latest.read_text().strip().removeprefix("iter_")) if latest.exists() else 0

    def job(self):
        """The process that the supervisor has started; its ranks are children of that."""
        return next(iter(children_of(self.process.pid)), None)

    def ranks(self):
        job = self.job()
        return children_of(job) if job else []

    def end(self, code=0, timeout=240):
        _, errors = self.process.communicate(timeout=timeout)
        if self.process.returncode != code:
            raise AssertionError(f"exit code {self.process.returncode}, expected {code}\n{errors}")
        return errors

    def close(self):
        self.process.kill()
        self.process.communicate()


class Launched(Supervised):
    """Ranks as torchrun starts them, a process for each, of which those in `started` are. `words`: what is before the
    job's own."""

    def __init__(self, place, name, ranks, job_options, words=(), started=None):
        self.folder = place.path / name
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.logs, self.processes = [], []
        for rank in started or range(ranks):
            variables = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks,
                         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            self.logs.append(place.path / f"{name}.{rank}.log")
            with self.logs[-1].open("w") as log:
                self.processes.append(subprocess.Popen(
                    [MEGATRON, *map(str, [*words, *place.train_words(name, *job_options)])], stdout=log, stderr=log,
                    env=os.environ | {key: str(value) for key, value in variables.items()}))

    def wait_until(self, condition, timeout=120):
        end = time.monotonic() + timeout
        while not condition():
            codes = [process.poll() for process in self.processes]
            if any(code is not None for code in codes) or time.monotonic() > end:
                raise AssertionError(f"it did not happen; the programs: {codes}\n{self.said()}")
            time.sleep(0.01)

    def ranks(self):
        """The ranks themselves, where each supervisor has started its own."""
        children = [children_of(process.pid) for process in self.processes]
        return [child[0] for child in children] if all(children) else []

    def said(self):
        return "\n".join(log.read_text() for log in self.logs)

    def end(self, code=0, timeout=240):
        codes = [process.wait(timeout) for process in self.processes]
        if codes != [code] * len(codes):
            raise AssertionError(f"exit codes {codes}, expected {code}\n{self.said()}")
        return self.said()

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()


def harm(supervised, number, draw, ranks, spread):
    """Waits until the run has all its ranks and a checkpoint of up to `spread` iterations more than before, then kills
    one of them, or stops it for good, as a partition does."""
    goal = supervised.checkpoint() + draw.randrange(spread)
    supervised.wait_until(lambda: len(supervised.ranks()) == ranks and supervised.checkpoint() > goal)
    failures = len(supervised.events("failed", "hung"))
    os.kill(draw.choice(supervised.ranks()), signal.SIGSTOP if number % 2 else signal.SIGKILL)
    supervised.wait_until(lambda: len(supervised.events("failed", "hung")) > failures)


def heal(place, name, harms, iterations, nans, seed, spread=1, ranks=4):
    """A supervised run of `ranks` processes that is harmed so many times, and has NaNs in the steps `nans`. Returns it
    at its end."""
    draw = random.Random(seed)
    faults = [f"nan:{step}" for step in nans]
    supervised = Supervised(
        place, name, ["--backoff-s", 0, "--hang-s", 3, "--dump-s", 1],
        [*PROCESSES, "--world-size", ranks, "--tp", 2, "--train-iters", iterations, "--save-interval", 5,
         "--checkpoint.keep_last", 3,
         "--log.heartbeat_s", 0.25, "--threads-per-rank", 1, "--on-nan", "rollback", "--guard.max_rollbacks", 1000,
         *(["--guard.inject_faults", *faults] if faults else [])])
    try:
        for number in range(harms):
            harm(supervised, number, draw, ranks, spread)
        supervised.end()
    finally:
        supervised.close()
    return supervised


class Supervise(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)

    def supervised(self, name, options=(), job_options=()):
        result = Supervised(self.place, name, options, job_options)
        self.addCleanup(result.close)
        return result

    def test_kills_partitions_and_nans_leave_the_curve_as_it_is(self):
        harmed = heal(self.place, "harmed", harms=2, iterations=60, nans=[31, 48], seed=drawn_seed())
        self.place.train("whole", "--world-size", 4, "--tp", 2, "--train-iters", 60, "--threads-per-rank", 1,
                         "--guard.skip_iterations", 31, 48)
        self.assertEqual(self.place.losses("harmed"), self.place.losses("whole"))
        self.assertEqual(len(self.place.losses("whole")), 60)
        self.assertGreaterEqual(len(harmed.events("failed", "hung")), 2)
        self.assertTrue(harmed.events("hung"), "a rank that was stopped is known by nothing else")
        self.assertGreaterEqual(len(harmed.events("rolled_back")), 2)
        self.assertEqual(harmed.events()[-1]["event"], "done")
        figures, name = (harmed.folder / "metrics.prom").read_text(), f'{{run="{harmed.folder}"}}'
        self.assertIn(f"megatron_train_restarts{name} {len(harmed.events('restart'))}\n", figures)
        self.assertRegex(figures, rf"megatron_train_rollbacks{re.escape(name)} [2-9]")
        told = [json.loads(line) for line in (harmed.folder / "dump.jsonl").read_text().splitlines()]
        self.assertGreaterEqual(len({entry["rank"] for entry in told}), 3, "all but the one that was stopped")
        for entry in told:
            self.assertTrue(entry["stack"], entry)
            self.assertIn("number", entry["collective"])

    def test_a_rank_that_never_comes_back_is_left_out(self):
        supervised = self.supervised(
            "run", ["--backoff-s", 0, "--tries", 2],
            ["--world-size", 4, "--train-iters", 12, "--save-interval", 2, "--global-batch-size", 8,
             "--micro-batch-size", 2, "--guard.inject_faults", "exit:6:3"])
        errors = supervised.end()
        self.assertIn("2 ranks (tp 1, pp 1) instead of 4", errors)
        self.assertEqual([(event["from_ranks"], event["ranks"]) for event in supervised.events("shrunk")], [(4, 2)])
        self.place.train("whole", "--world-size", 4, "--train-iters", 12, "--global-batch-size", 8,
                         "--micro-batch-size", 2)
        whole, run_losses = self.place.losses("whole"), self.place.losses("run")
        self.assertEqual(len(run_losses), 12)
        for iteration, loss in whole.items():
            self.assertAlmostEqual(run_losses[iteration] / loss, 1, delta=2e-5, msg=f"iteration {iteration}")

    def test_a_budget_is_a_budget(self):
        supervised = self.supervised("run", ["--backoff-s", 0, "--max-restarts", 1],
                                     ["--train-iters", 5, "--guard.inject_faults", "exit:3:0"])
        self.assertIn("--max-restarts allows no more than 1 restart\n", supervised.end(code=1))
        self.assertEqual([event["event"] for event in supervised.events()],
                         ["started", "failed", "restart", "started", "failed", "gave_up"])
        self.assertEqual(supervised.events("failed")[0]["exit_code"], 70)
        self.assertIn("guard.inject_faults", supervised.events("failed")[0]["last_line"])

    def test_what_is_wrong_from_the_start_is_said_once(self):
        supervised = self.supervised("run", [], ["--tp", 3])
        self.assertIn("got:", supervised.end(code=2))
        self.assertFalse(supervised.folder.exists())

    def test_the_folder_of_another_run_is_left_alone(self):
        holder = self.supervised("run", ["--hang-s", 1000], ["--train-iters", 5, "--guard.inject_faults", "hang:3:0"])
        holder.wait_until(lambda: holder.steps() >= 2 and holder.events("started"))
        stranger = self.supervised("run", [], ["--train-iters", 5])
        self.assertIn("which another run holds", stranger.end(code=2))
        self.assertEqual([event["event"] for event in holder.events() if event["source"] == "supervisor"], ["started"])

    def test_what_happens_before_a_job_holds_a_folder_that_nobody_holds_is_written(self):
        self.supervised("run", [], ["--train-iters", 2]).end()
        pair = self.place.path / "tokens_text_document.bin"
        pair.rename(pair.with_suffix(".moved"))
        again = self.supervised("run", [], ["--train-iters", 5])
        self.assertIn("tokens_text_document", again.end(code=2))
        self.assertEqual([event["event"] for event in again.events() if event["source"] == "supervisor"][-3:],
                         ["started", "failed", "not_restarted"])

    def end_without_data(self, *options, ranks=1):
        """The supervisor's events where a job is killed after two steps and finds no data when it starts again."""
        supervised = self.supervised("run", ["--backoff-s", 0, "--hang-s", 1000, *options],
                                     ["--world-size", ranks, "--micro-batch-size", 2, "--train-iters", 5,
                                      "--guard.inject_faults", "hang:3:0"])
        supervised.wait_until(lambda: supervised.steps() >= 2)
        (self.place.path / "tokens_text_document.bin").unlink()
        os.kill(supervised.job(), signal.SIGKILL)
        self.assertIn("tokens_text_document", supervised.end(code=2))
        return [event for event in supervised.events() if event["source"] == "supervisor"]

    def test_what_has_become_wrong_is_said_once(self):
        self.assertEqual([event["event"] for event in self.end_without_data()],
                         ["started", "failed", "restart", "started", "failed", "not_restarted"])

    def test_ranks_that_are_refused_are_fewer_still(self):
        events = self.end_without_data("--tries", 1, ranks=4)
        self.assertEqual([event["event"] for event in events],
                         ["started", "failed", *["shrunk", "restart", "started", "failed"] * 2, "no_smaller_layout",
                          "not_restarted"])
        self.assertEqual([event["ranks"] for event in events if event["event"] == "started"], [4, 2, 1])

    def test_megatron_lms_check_for_nans_stops_the_run(self):
        words = ["pretrain_gpt", "--num-layers", 2, "--hidden-size", 64, "--num-attention-heads", 4, "--seq-length", 32,
                 "--max-position-embeddings", 32, "--micro-batch-size", 4, "--lr", 1e-3, "--train-iters", 4,
                 "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", self.place.tokenizer,
                 "--split", "9,1,0", "--eval-iters", 0, "--data-path", self.place.path / "tokens_text_document",
                 "--guard.inject_faults", "nan:3"]
        out = self.place.path / "run"
        errors = run("run", "--backoff-s", 0, "--", *words, "--train.out", out, code=1)
        self.assertIn("iteration 3: the loss must be finite and no spike (train.exit_on_nan)", errors)
        events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        for source, names in (("run", ["nan", "stopped"]), ("supervisor", ["started", "not_restarted"])):
            self.assertEqual([event["event"] for event in events if event["source"] == source], names)
        self.assertEqual(json.loads((out / "heartbeat.json").read_text())["phase"], "failed")
        # What is said of guard.on_nan holds, as does the fix.
        for name, said in (("skips", ["--guard.on_nan", "skip"]), ("fixed", ["--guard.skip_iterations", 3])):
            run(*words, "--train.out", self.place.path / name, *said)
            self.assertEqual(len(self.place.losses(name)), 4)

    def test_a_rank_that_computes_wrongly_ends_the_run(self):
        supervised = self.supervised(
            "run", ["--backoff-s", 0],
            [*PROCESSES, "--world-size", 2, "--threads-per-rank", 1, "--train-iters", 5, "--rerun-interval", 1,
             "--guard.inject_faults", "flip:2:0", "stuck:4:1"])
        errors = supervised.end(code=17)
        self.assertIn("Ranks that compute the same must get the same gradients (guard.rerun_interval).", errors)
        events = supervised.events()
        self.assertEqual([event["event"] for event in events if event["source"] == "run"],
                         ["wrong_gradients", "wrong_gradients", "stopped"])
        self.assertEqual([event["event"] for event in events if event["source"] == "supervisor"],
                         ["started", "not_restarted"])
        transient, persistent = supervised.events("wrong_gradients")
        self.assertEqual([rank["rank"] for rank in transient["ranks"]], [0])
        self.assertEqual([rank["rank"] for rank in persistent["ranks"]], [0, 1])
        self.assertEqual({rank["machine"] for rank in persistent["ranks"]}, {socket.gethostname()})
        self.assertEqual(events[-1]["exit_code"], 17)

    def test_a_spike_stops_the_run_and_leaves_its_batch(self):
        supervised = self.supervised(
            "run", ["--backoff-s", 0],
            ["--train-iters", 20, "--on-spike", "stop", "--spike-window", 4, "--guard.inject_faults", "spike:9"])
        errors = supervised.end(code=1)
        self.assertIn("iteration 9: the loss must be finite and no spike", errors)
        self.assertEqual([event["event"] for event in supervised.events() if event["source"] == "run"],
                         ["spike", "stopped"])
        self.assertEqual(len(supervised.events("started")), 1, "it is not started again")
        batch = supervised.events("stopped")[0]["batch"]
        documents = [json.loads(line) for line in run("data", "cat", batch, "--json").splitlines()]
        self.assertEqual(len(documents), 8)
        for document in documents:
            self.assertEqual([len(sequence["ids"]) for sequence in document["sequences"]], [33])
        # The fix works.
        self.place.train("run", "--train-iters", 20, "--on-spike", "stop", "--spike-window", 4,
                         "--guard.inject_faults", "spike:9", "--guard.skip_iterations", 9)
        self.assertEqual(len(self.place.losses("run")), 20)

    def test_a_rollback_is_the_same_in_every_layout(self):
        options = ["--train-iters", 16, "--save-interval", 4, "--on-nan", "rollback", "--on-spike", "rollback",
                   "--spike-window", 4, "--guard.rollback_batches", 2, "--guard.inject_faults", "nan:7", "spike:14"]
        layouts = {"one": [], "tp": ["--world-size", 2, "--tp", 2],
                   "shards": ["--world-size", 2, "--use-distributed-optimizer"]}
        for name, layout in layouts.items():
            self.place.train(name, *options, *layout)
        one = self.place.losses("one")
        self.assertEqual([step for step, loss in one.items() if loss is None], [6, 7, 13, 14])
        for name in ("tp", "shards"):
            for iteration, loss in self.place.losses(name).items():
                if loss is None:
                    self.assertIsNone(one[iteration])
                else:
                    self.assertAlmostEqual(loss / one[iteration], 1, delta=2e-5, msg=f"{name} {iteration}")
        # It is in the checkpoint; a run that is told to skip the same batches is the same.
        printed = self.place.train("told", "--train-iters", 16, "--guard.skip_iterations", 6, 7, 13, 14)
        self.assertRegex(printed, r"iteration +10/.*number of skipped iterations: +2 ")
        self.assertEqual(self.place.losses("told"), one)
        manifest = json.loads((self.place.path / "one/checkpoints/iter_0000016/manifest.json").read_text())
        self.assertIn("[6,7,13,14]", json.dumps(manifest).replace(" ", ""))

    def test_signals_save_dump_and_end(self):
        supervised = self.supervised("run", [], [*PROCESSES, "--world-size", 2, "--tp", 2, "--train-iters", 100000,
                                                 "--threads-per-rank", 1])
        supervised.wait_until(lambda: supervised.steps() >= 3)
        ranks = supervised.ranks()
        supervised.process.send_signal(signal.SIGUSR1)
        supervised.wait_until(lambda: supervised.checkpoint() > 0)
        supervised.process.send_signal(signal.SIGUSR2)
        dump = supervised.folder / "dump.jsonl"
        supervised.wait_until(lambda: dump.exists() and dump.read_text().count("\n") >= 2)
        told = [json.loads(line) for line in dump.read_text().splitlines()]
        self.assertEqual(sorted(entry["rank"] for entry in told), [0, 1])
        self.assertEqual({entry["reason"] for entry in told}, {"SIGUSR2"})
        supervised.process.send_signal(signal.SIGTERM)
        supervised.end(code=3)
        self.assertEqual(supervised.checkpoint(), max(self.place.losses("run")))
        self.assertFalse([rank for rank in ranks if is_there(rank)])
        text = run("watch", supervised.folder, "--once")
        self.assertIn("interrupted", text)
        self.assertRegex(text, r"iteration \d+ of 100000")
        self.assertIn("█", text)
        beat = json.loads((supervised.folder / "heartbeat.json").read_text())
        self.assertEqual(beat["phase"], "interrupted")
        self.assertEqual(beat["iteration"], supervised.checkpoint())
        told = (supervised.folder / "metrics.prom").read_text()
        series = dict(line.rsplit(" ", 1) for line in told.splitlines() if not line.startswith("#"))
        name = f'{{run="{supervised.folder}"'
        self.assertGreater(float(series["megatron_train_loss" + name + "}"]), 0)
        self.assertEqual(series["megatron_train_ended" + name + ',how="interrupted"}'], "1")
        self.assertEqual(series["megatron_train_restarts" + name + "}"], "0")
        self.assertEqual(float(series["megatron_train_iteration" + name + "}"]), supervised.checkpoint())
        self.assertEqual(series["megatron_train_skipped_steps" + name + "}"], "0")

    def test_a_dump_tells_who_is_behind(self):
        supervised = self.supervised("run", ["--max-restarts", 0, "--hang-s", 2, "--dump-s", 1],
                                     ["--world-size", 2, "--tp", 2, "--train-iters", 5, "--log.heartbeat_s", 0.25,
                                      "--guard.inject_faults", "hang:3:1"])
        supervised.end(code=1)
        told = {}
        for line in (supervised.folder / "dump.jsonl").read_text().splitlines():
            entry = json.loads(line)
            told[entry["rank"]] = {group["group"]: group["number"] for group in entry["groups"]}
        self.assertEqual(sorted(told), [0, 1])
        self.assertGreater(told[0]["tensor"], told[1]["tensor"], "rank 0 waits for rank 1")
        self.assertEqual(told[0]["world"], told[1]["world"])

    def test_a_reader_of_stderr_that_goes_away_ends_nothing(self):
        supervised = self.supervised("run", ["--backoff-s", 0, "--max-restarts", 1],
                                     ["--train-iters", 5, "--guard.inject_faults", "exit:3:0"])
        supervised.process.stderr.close()
        supervised.process.stderr = None
        self.assertEqual(supervised.process.wait(timeout=240), 1)
        self.assertEqual(supervised.events()[-1]["event"], "gave_up")

    def test_a_shell_of_an_allocation_is_no_launcher(self):
        self.assertNotIn("launcher", run("run", "--", "train", self.place.path / "none.toml", code=2,
                                         inside=["env", "SLURM_PROCID=0", "SLURM_PTY_PORT=1", "RANK=0"]))

    def test_no_rank_outlives_the_supervisor(self):
        supervised = self.supervised("run", [], [*PROCESSES, "--world-size", 2, "--tp", 2, "--train-iters", 100000,
                                                 "--threads-per-rank", 1])
        supervised.wait_until(lambda: supervised.steps() >= 1 and len(supervised.ranks()) == 2)
        all_of_it = [supervised.job(), *supervised.ranks()]
        os.kill(all_of_it[1], signal.SIGSTOP)
        supervised.process.kill()
        end = time.monotonic() + 60
        while any(map(is_there, all_of_it)):
            self.assertLess(time.monotonic(), end, [pid for pid in all_of_it if is_there(pid)])
            time.sleep(0.01)

    def test_a_second_signal_ends_it_at_once(self):
        supervised = self.supervised("run", [], [*PROCESSES, "--world-size", 2, "--tp", 2, "--train-iters", 100000,
                                                 "--threads-per-rank", 1])
        supervised.wait_until(lambda: supervised.steps() >= 1 and len(supervised.ranks()) == 2)
        ranks = supervised.ranks()
        os.kill(ranks[1], signal.SIGSTOP)
        supervised.process.send_signal(signal.SIGTERM)
        supervised.process.send_signal(signal.SIGINT)
        supervised.process.communicate(timeout=60)
        self.assertIn(supervised.process.returncode, (128 + signal.SIGTERM, 128 + signal.SIGINT))
        self.assertFalse([rank for rank in ranks if is_there(rank)])


class LaunchedRanks(unittest.TestCase):
    """Ranks of a launcher, each with a supervisor of its own."""

    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)

    def launched(self, *job_options, ranks=2, words=(), started=None):
        options = ["--threads-per-rank", 1, *job_options]
        result = Launched(self.place, self._testMethodName, ranks, options, words, started)
        self.addCleanup(result.close)
        return result

    def test_a_rank_that_dies_is_started_again_with_all_others_and_a_signal_counts_once(self):
        options = ["--tp", 2, "--train-iters", 100000, "--threads-per-rank", 1]
        launched = self.launched(*options, "--save-interval", 5, "--checkpoint.keep_last", 2, "--restart", 5)
        launched.wait_until(lambda: launched.checkpoint() > 0 and len(launched.ranks()) == 2)
        victim = random.Random(drawn_seed()).randrange(2)
        ranks = launched.ranks()
        os.kill(ranks[victim], signal.SIGKILL)
        launched.wait_until(lambda: len(launched.events("started")) == 2)
        goal = launched.checkpoint() + 10
        launched.wait_until(lambda: launched.checkpoint() >= goal)
        ranks += launched.ranks()
        # As Slurm does, which signals all processes of a step: a rank would take the second one for an order to end.
        for pid in [*ranks[2:], *(process.pid for process in launched.processes)]:
            os.kill(pid, signal.SIGTERM)
        said = launched.end(code=3)
        self.assertRegex(said, f"supervisor: rank {victim} was ended by signal 9; restart 1 of 5 from iteration [0-9]+ "
                               "on 2 ranks in 1 s")
        self.assertEqual([(event["rank"], event["signal"]) for event in launched.events("failed")],
                         [(victim, signal.SIGKILL)])
        self.assertEqual(launched.events()[-1]["event"], "interrupted")
        self.assertFalse([rank for rank in ranks if is_there(rank)])
        losses = self.place.losses(launched.folder.name)
        self.assertEqual(sorted(losses), list(range(1, launched.checkpoint() + 1)))
        self.place.train("whole", "--world-size", 2, *options, "--train.exit_interval", max(losses))
        self.assertEqual(losses, self.place.losses("whole"))

    def test_of_a_rank_alone_too_a_signal_counts_once(self):
        launched = self.launched("--train-iters", 100000, "--save-interval", 5, "--restart", 5, ranks=1)
        launched.wait_until(lambda: launched.checkpoint() > 0)
        for pid in [*launched.ranks(), *(process.pid for process in launched.processes)]:
            os.kill(pid, signal.SIGTERM)
        launched.end(code=3)
        self.assertEqual(launched.events()[-1]["event"], "interrupted")

    def test_who_does_not_come_is_named(self):
        alone = ["--parallel.timeout_s", 0.5, "--restart", 5]
        launched = self.launched(*alone, ranks=3, started=[0])
        self.assertRegex(launched.end(code=1), "got:  ranks 1, 2 not there, at 127.0.0.1, ports [0-9]+ to [0-9]+, ")
        launched = self.launched(*alone, "--layout", "given", ranks=3, words=["run", "--"], started=[1])
        self.assertRegex(launched.end(code=1), "got:  none of this run at 127.0.0.1, ports [0-9]+ to [0-9]+ within")
        self.assertFalse(launched.folder.exists())


class Screen:
    """`megatron watch` in a terminal of its own."""

    def __init__(self, *words, lines=24, columns=90):
        self.terminal, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen([MEGATRON, "watch", *map(str, words)], stdin=subprocess.DEVNULL, stdout=inner,
                                        stderr=subprocess.PIPE)
        os.close(inner)
        self.shown = b""

    def read_until(self, words, timeout=60):
        """What was written up to `words`."""
        end = time.monotonic() + timeout
        while words not in self.shown:
            if not select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"{words} is not in {self.shown[-2000:]}")
            self.shown += os.read(self.terminal, 1 << 16)
        before, self.shown = self.shown.split(words, 1)
        return before

    def close(self):
        self.process.kill()
        self.process.communicate()
        os.close(self.terminal)


EXPERT_LOAD = ("  expert load: most 75 % (layer 1, expert 3) · least 5 % (layer 0, expert 3) · even 25 % · "
               "dropped 1.25 %")


def shows_expert_load(lines):
    """Whether it is there, in one line or, between its parts, in several."""
    return EXPERT_LOAD.strip() in " · ".join(line.strip() for line in lines)


class Tmux:
    """A shell in a terminal that tmux draws: what a user sees, whatever was written for it."""

    def __init__(self, columns, rows):
        self.name = f"megatron-test-{os.getpid()}"
        shell = "env -i PATH=/usr/bin:/bin LC_ALL=C.UTF-8 TERM=screen PS1='before$ ' /bin/sh"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", columns, "-y", rows, shell)
        self.tmux("set-option", "-g", "status", "off")
        self.resize(columns, rows)

    def tmux(self, *words):
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        environment.pop("TMUX", None)
        return subprocess.run(["tmux", "-u", "-L", self.name, *map(str, words)], check=True, capture_output=True,
                              text=True, env=environment, timeout=60).stdout

    def resize(self, columns, rows):
        self.tmux("resize-window", "-x", columns, "-y", rows)

    def type(self, words):
        self.tmux("send-keys", "-l", words)
        self.press("Enter")

    def press(self, key):
        self.tmux("send-keys", key)

    def wait_for(self, condition, timeout=60):
        """The lines of the screen, once they are so."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            lines = self.tmux("capture-pane", "-p").splitlines()
            if lines and condition(lines):
                return lines
        raise AssertionError("the screen shows:\n" + "\n".join(lines))

    def close(self):
        subprocess.run(["tmux", "-L", self.name, "kill-server"], capture_output=True, timeout=60)


class Watch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-e2e-")
        self.addCleanup(folder.cleanup)
        self.run_folder = pathlib.Path(folder.name)

    def write_steps(self, first, last, **more):
        with open(self.run_folder / "metrics.jsonl", "a") as metrics:
            for step in range(first, last + 1):
                metrics.write(json.dumps({"iteration": step, "loss": 8 / step, "step_ms": 20, **more}) + "\n")

    @unittest.skipUnless(shutil.which("tmux"), "tmux is not installed")
    def test_a_terminal_shows_it_in_its_size_and_then_what_was_there_before(self):
        self.write_steps(1, 30, expert_imbalance=3, expert_dropped=0.0125, expert_loads=[[5, 8, 6, 1], [2, 3, 5, 30]])
        terminal = Tmux(100, 30)
        self.addCleanup(terminal.close)
        terminal.wait_for(lambda lines: "before$" in lines[0])
        terminal.type(shlex.join([MEGATRON, "watch", str(self.run_folder), "--every", "0.05"]))
        lines = terminal.wait_for(lambda lines: any(line.startswith("  lr ") for line in lines))
        self.assertIn("iteration 30", lines[0])
        self.assertTrue(shows_expert_load(lines), lines)
        self.assertTrue(any("█" in line for line in lines))
        self.assertNotIn("before$", "".join(lines))
        for columns, rows in ((60, 12), (120, 40)):
            terminal.resize(columns, rows)
            lines = terminal.wait_for(lambda lines: len(lines) == rows and shows_expert_load(lines))
            self.assertIn("iteration 30", lines[0])
            self.assertTrue(all(len(line) <= columns for line in lines))
        terminal.press("C-c")
        lines = terminal.wait_for(lambda lines: "before$" in "".join(lines[1:]))
        self.assertNotIn("expert load", "".join(lines))

    def test_a_terminal_is_drawn_again_when_there_is_news(self):
        self.write_steps(1, 30)
        screen = Screen(self.run_folder, "--every", 0.05)
        self.addCleanup(screen.close)
        self.assertIn(b"\x1b[?1049h", screen.read_until(b"iteration 30"))
        drawn = screen.read_until(b"\x1b[J").decode()
        self.assertIn("█", drawn)
        self.assertLessEqual(drawn.count("\r\n"), 23)
        self.write_steps(31, 31)
        self.assertIn(b"\x1b[H", screen.read_until(b"iteration 31"))
        screen.process.send_signal(signal.SIGINT)
        screen.read_until(b"\x1b[?1049l")
        self.assertEqual(screen.process.wait(timeout=60), 0)

    def test_a_run_that_died_is_seen_to(self):
        self.write_steps(1, 30)
        beat = {"unix_s": time.time() - 30, "phase": "step", "iteration": 31, "train_iters": 100}
        (self.run_folder / "heartbeat.json").write_text(json.dumps(beat))
        screen = Screen(self.run_folder, "--every", 0.05, columns=200)
        self.addCleanup(screen.close)
        for _ in range(2):  # nothing changes but the time
            screen.read_until(b"step, last heartbeat ")
            screen.read_until(b"\x1b[J")

    def test_a_run_that_comes_later_is_waited_for(self):
        late = self.run_folder / "late"
        screen = Screen(late, "--every", 0.05, columns=200)
        self.addCleanup(screen.close)
        screen.read_until(b"waiting for its folder")
        late.mkdir()
        screen.read_until(b"no heartbeat")

    def test_a_run_that_does_not_change_is_not_drawn_again(self):
        self.write_steps(1, 30)
        beat = {"unix_s": time.time() + 3600, "phase": "step", "iteration": 31, "train_iters": 100}
        (self.run_folder / "heartbeat.json").write_text(json.dumps(beat))  # it has no age to tell
        screen = Screen(self.run_folder, "--every", 0.05)
        self.addCleanup(screen.close)
        screen.read_until(b"\x1b[J")
        looks = int(pathlib.Path(f"/proc/{screen.process.pid}/status").read_text().split(
            "voluntary_ctxt_switches:")[1].split()[0])
        status = pathlib.Path(f"/proc/{screen.process.pid}/status")
        while int(status.read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0]) < looks + 5:
            time.sleep(0.01)
        screen.process.send_signal(signal.SIGTERM)
        self.assertEqual(screen.read_until(b"\x1b[?25h").strip(), b"")

    def test_once_on_a_pipe(self):
        self.write_steps(1, 30)
        other = self.run_folder / "other"
        other.mkdir()
        text = run("watch", self.run_folder, other, "--once", "--width", 60, "--height", 20)
        self.assertNotIn("\x1b", text)
        self.assertIn("no steps yet", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 60)
        self.assertLessEqual(len(text.splitlines()), 20)
        again = run("watch", self.run_folder, other, "--width", 60, "--height", 20)
        self.assertEqual(text, again, "no terminal either")

    def test_what_is_no_run_is_refused(self):
        run("watch", code=2)
        self.assertIn("waits for it", run("watch", self.run_folder / "nowhere", code=2))
        self.write_steps(1, 1)
        run("watch", self.run_folder / "metrics.jsonl", code=2)
        run("watch", self.run_folder, "--every", 0, code=2)
        run("watch", self.run_folder, "--width", 3, code=2)


if __name__ == "__main__":
    unittest.main()
