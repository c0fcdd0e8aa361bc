"""Runs that resume from what nodes keep in memory: a rank is killed, a node is lost."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(TESTS / folder) for folder in ("testing", "e2e/ranks")]
from program import MEGATRON, RunFolder, run  # noqa: E402
from test_agreement import environment, free_port  # noqa: E402
from test_full_disk import SmallDisk  # noqa: E402
from test_supervise import PROCESSES, Supervised  # noqa: E402

EACH_STEP = ["--checkpoint.memory_interval", 1, "--checkpoint.async_save", "false", "--threads-per-rank", 1]
RESUMED = re.compile(r" > resumed from (\S+)/iter_\d+ in memory at iteration (\d+), 0 of them skipped")


class MemoryCopies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)

    def test_a_rank_that_is_killed_costs_one_step(self):
        options = ["--world-size", 4, "--tp", 2, "--train-iters", 30, "--save-interval", 1000]
        with (self.place.path / "printed").open("w+") as printed:
            supervised = Supervised(self.place, "run", ["--backoff-s", 0], [*PROCESSES, *options, *EACH_STEP], printed)
            self.addCleanup(supervised.close)
            supervised.wait_until(lambda: supervised.steps() >= 10)
            os.kill(supervised.ranks()[3], signal.SIGKILL)
            supervised.end()
            printed.seek(0)
            folder, iteration = RESUMED.search(printed.read()).groups()
        self.assertGreaterEqual(int(iteration), 9, "ten were done, the last of them perhaps not saved")
        self.assertEqual(supervised.events("restart")[0]["checkpoint"], int(iteration))
        self.assertTrue(folder.startswith(f"/dev/shm/megatron-{os.geteuid()}-"), folder)
        self.assertFalse(os.path.exists(folder), "the run is saved")
        self.place.train("whole", *options, "--threads-per-rank", 1)
        self.assertEqual(self.place.losses("run"), self.place.losses("whole"))
        self.assertEqual(len(self.place.losses("whole")), 30)

    def test_a_start_without_the_option_takes_what_is_left_and_saves_it(self):
        options = ["--train-iters", 12, "--save-interval", 1000]
        self.place.train("left", *options, *EACH_STEP, "--guard.inject_faults", "exit:8:0", code=70)
        self.assertEqual(max(self.place.losses("left")), 7)
        printed = self.place.train("left", *options, "--train.exit_interval", 9)
        folder, iteration = RESUMED.search(printed).groups()
        self.assertEqual(iteration, "7")
        self.assertFalse(os.path.exists(folder), "it is on the disk")
        checkpoints = self.place.path / "left/checkpoints"
        self.assertEqual(sorted(path.name for path in checkpoints.glob("iter_*")), ["iter_0000007", "iter_0000009"])
        (checkpoints / "latest").write_text("iter_0000007\n")
        self.assertRegex(self.place.train("left", *options), r" > metrics.jsonl: lines taken out, .* iteration 7: 2\n")
        self.place.train("whole12", *options)
        self.assertEqual(self.place.losses("left"), self.place.losses("whole12"))

    def test_another_tokenizer_is_refused_before_ranks_start(self):
        self.place.train("kept", "--train-iters", 12, *EACH_STEP, "--guard.inject_faults", "exit:8:0", code=70)
        size = re.search(r"^vocab_size = (\d+)", (self.place.path / "kept/recipe.toml").read_text(), re.M)[1]
        text = self.place.path / "loud.jsonl"
        text.write_text((self.place.path / "text.jsonl").read_text().upper().replace('"TEXT"', '"text"'))
        run("tokenizer", "train", "--input", text, "--vocab-size", 320, "--output", self.place.path / "other")
        message = self.place.train("kept", *EACH_STEP, "--train-iters", 12, "--vocab-size", size,
                                   "--tokenizer", self.place.path / "other", code=2)
        self.assertIn("The tokenizer must number tokens as that of the checkpoint /dev/shm/", message)
        words = re.search(r"fix: +(--tokenizer [^;]+);", message)[1].split()
        printed = self.place.train("kept", *EACH_STEP, "--train-iters", 12, *words)
        self.assertEqual(RESUMED.search(printed)[2], "7")

    def run_on_two_nodes(self, *options):
        """Exit codes and what each rank has printed. A node is a folder."""
        port, processes = free_port(), []
        for rank in (0, 1):
            words = self.place.train_words("nodes", "--tp", 2, "--train-iters", 10, *EACH_STEP,
                                           "--checkpoint.memory_folder", self.place.path / f"node{rank}", *options)
            variables = environment(rank, 2, port) | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                                                      "MEGATRON_RUN_SECRET": "a secret of these tests alone"}
            processes.append(subprocess.Popen([os.path.abspath(MEGATRON), *map(str, words)], env=variables,
                                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            self.addCleanup(processes[-1].kill)
        printed = [process.communicate(timeout=120)[0] for process in processes]
        return [process.returncode for process in processes], printed

    def test_a_node_that_is_lost_gets_its_part_from_its_neighbour(self):
        nodes = [self.place.path / f"node{rank}" for rank in (0, 1)]
        for node in nodes:
            node.mkdir()
        codes, printed = self.run_on_two_nodes("--guard.inject_faults", "exit:8:1")
        self.assertEqual(codes, [1, 70], printed)
        kept, = nodes[1].iterdir()
        self.assertEqual(sorted(file.name for file in (kept / "iter_0000007").iterdir()),
                         ["manifest.json", "rank_00000.safetensors", "rank_00001.safetensors"])
        shutil.rmtree(kept)
        codes, printed = self.run_on_two_nodes()
        self.assertEqual(codes, [0, 0], printed)
        self.assertEqual(RESUMED.search(printed[0])[2], "7")
        self.assertIn("of it came from the memory of other nodes", printed[0])
        self.assertEqual([list(node.iterdir()) for node in nodes], [[], []])
        self.place.train("alone", "--world-size", 2, "--tp", 2, "--train-iters", 10, "--threads-per-rank", 1)
        self.assertEqual(self.place.losses("nodes"), self.place.losses("alone"))

    def test_what_does_not_fit_is_said_before_anything_starts(self):
        errors = self.place.train("wrong", *EACH_STEP, "--checkpoint.memory_folder", self.place.path / "none", code=2)
        self.assertIn("checkpoint.memory_folder must be a folder.", errors)
        self.assertRegex(run("plan", self.place.recipe, "--vocab-size", 320, *EACH_STEP),
                         r"checkpoints in memory: [\d.]+ MB; for each of its ranks a node keeps 2 x ")
        small = SmallDisk(100_000)
        self.addCleanup(small.close)
        words = self.place.train_words("wrong", *EACH_STEP, "--checkpoint.memory_folder", small.path)
        self.assertIn("must have room for 2 checkpoints' share of 1 rank (checkpoint.memory_interval).",
                      run(*words, code=2, inside=small.inside))
        self.assertFalse((self.place.path / "wrong").exists())


if __name__ == "__main__":
    unittest.main()
