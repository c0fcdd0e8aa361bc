"""What a run prints besides its iteration lines, and the files it leaves: timers, memory, norms, timelines."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, run  # noqa: E402

# Megatron-LM's line as scripts read it: by field names, whatever stands between the fields that they know.
LINE = re.compile(r"^ \[[\d-]+ [\d:.]+\] iteration +(\d+)/ +(\d+) \| consumed samples: +(\d+) \| "
                  r"elapsed time per iteration \(ms\): (\d+\.\d) \| throughput per GPU \(TFLOP/s/GPU\): (\d+\.\d+) \| "
                  r"learning rate: (\S+) \| global batch size: +(\d+) \| lm loss: (\S+) \| loss scale: 1\.0 \| "
                  r"grad norm: (\d+\.\d{3}) \| num zeros: (\d+) \| params norm: (\d+\.\d{3}) \| "
                  r"number of skipped iterations: +0 \| number of nan iterations: +0 \|", re.MULTILINE)


class Logging(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)

    def test_prints_timers_memory_norms_and_the_slowest_rank_over_all_ranks(self):
        printed = self.place.train("all", "--train-iters", 4, "--log-interval", 2, "--world-size", 4, "--pp", 2,
                                   "--tp", 2, "--max-position-embeddings", 40, "--eval-interval", 4, "--eval-iters", 1,
                                   "--timing-log-level", 2, "--log-params-norm", "--log-num-zeros-in-grad",
                                   "--log-straggler", "--log-memory-interval", 3, "--barrier-with-level-1-timing",
                                   "--parallel.threads_per_rank", 1)
        lines = LINE.findall(printed)
        self.assertEqual([line[0] for line in lines], ["2", "4"], printed)
        for line in lines:
            self.assertGreater(float(line[4]), 0, "a throughput of a small model")
        steps = self.place.metrics("all")
        for step in steps:
            self.assertGreaterEqual(step["num_zeros"], 8 * 64, "positions that no sample has")
            self.assertGreater(step["params_norm"], 0)
        self.assertEqual(lines[-1][9], f"{steps[-1]['num_zeros']:.0f}")
        self.assertEqual(lines[-1][10], f"{steps[-1]['params_norm']:.3f}")
        timers = re.findall(r"^    ([a-z0-9/-]+) \.+: \((\d+\.\d\d), (\d+\.\d\d)\)$", printed, re.MULTILINE)
        names = [name for name, _, _ in timers]
        for name in ["forward-backward", "all-grads-sync", "optimizer", "optimizer-clip-main-grad",
                     "optimizer-count-zeros", "optimizer-inner-step", "forward-compute", "backward-compute",
                     "forward-recv", "backward-recv"]:
            self.assertEqual(names.count(name), 2, printed)
        for name in ["model-and-optimizer-setup", "train/valid/test-data-iterators-setup", "evaluate",
                     "save-checkpoint"]:
            self.assertEqual(names.count(name), 1, printed)
        for _, least, most in timers:
            self.assertLessEqual(float(least), float(most))
        self.assertEqual(printed.count("(min, max) time across ranks (ms):"), 2 + 3)
        self.assertEqual(len(re.findall(r"^ slowest rank: [0-3] \| ", printed, re.MULTILINE)), 2)
        self.assertEqual(len(re.findall(r"^\[Rank [0-3]\] \(after 3 iterations\) memory \(MB\) \| allocated: \d+\.\d\d "
                                        r"\| max allocated: \d+\.\d\d$", printed, re.MULTILINE)), 1)
        self.assertNotIn("times_ms", steps[0])
        least, most = steps[3]["times_ms"]["forward-backward"]
        self.assertLess(0, least)
        self.assertLessEqual(least, most)
        self.assertIn(steps[3]["slowest_rank"]["rank"], range(4))

    def test_prints_a_compact_line_or_fields_of_its_own_and_nothing_more_by_default(self):
        printed = self.place.train("compact", "--train-iters", 2, "--log-interval", 1, "--log.format", "compact")
        self.assertEqual(len(re.findall(r"^ [\d:]{8} step [12]/2 \| loss \d\.\d{4} \| .* tokens/s \| .* ETA .* \|$",
                                        printed, re.MULTILINE)), 2, printed)
        printed = self.place.train("fields", "--train-iters", 2, "--log.fields", "tokens_per_s", "memory", "eta")
        self.assertRegex(printed, r"nan iterations: +0 \| tokens per second: \d+\.\d \| memory \(MB\): \d+\.\d \| "
                                  r"ETA: 0 s \|\n")
        printed = self.place.train("plain", "--train-iters", 2, "--no-log-throughput")
        self.assertNotIn("throughput", printed)
        self.assertNotIn("time across ranks", printed)
        self.assertNotIn("num_zeros", self.place.metrics("plain")[0])

    def test_a_profile_of_steps_behind_the_end_is_said_to_be_none(self):
        for steps, said in ((["--train-iters", 4], True), (["--train-iters", 2, "--profile-step-start", 1,
                                                            "--profile-step-end", 2], False)):
            words = self.place.train_words("none", *steps, "--eval-interval", 0, "--profile")
            errors = subprocess.run([MEGATRON, *map(str, words)], capture_output=True, text=True, check=True).stderr
            self.assertEqual("log.profile writes nothing" in errors, said, errors)
            self.assertEqual((self.place.path / "none/profile").exists(), not said)
            shutil.rmtree(self.place.path / "none")

    def test_profiles_the_steps_that_are_asked_for_on_the_ranks_that_are_named(self):
        self.place.train("profile", "--train-iters", 5, "--world-size", 4, "--pp", 2, "--profile",
                         "--profile-step-start", 1, "--profile-step-end", 3, "--profile-ranks", 3,
                         "--parallel.threads_per_rank", 1)
        files = sorted(path.name for path in (self.place.path / "profile/profile").glob("*.json"))
        self.assertEqual(files, ["step_1_rank_1.json", "step_2_rank_1.json"])
        for name in files:
            events = json.loads((self.place.path / "profile/profile" / name).read_text())["traceEvents"]
            self.assertTrue(any(event.get("ph") == "X" for event in events))
        self.assertIn("greater than log.profile_step_start",
                      run(*self.place.train_words("wrong", "--profile", "--profile-step-end", 3), code=2))

    def test_measures_the_third_share_of_the_documents_at_the_end(self):
        # No step changes the weights, so a pair that holds the share alone has its loss.
        pair, parts = self.place.path / "tokens_text_document", self.place.path / "part"
        run("data", "split", pair, "--shares", "80,12,8", "--names", "train", "valid", "test", "--output-prefix", parts)
        common = ["--train-iters", 2, "--lr", 0, "--min-lr", 0, "--eval-interval", 2, "--eval-iters", 3]
        printed = self.place.train("shared", *common, "--split", "80,12,8")
        self.assertRegex(printed, r"validation loss at iteration 2 on test set \| lm loss value: \d\.\d+E")
        words = self.place.train_words("apart", *common)
        at = words.index("--data-path")
        words[at:at + 2] = ["--train-data-path", f"{parts}_train", "--valid-data-path", f"{parts}_valid",
                            "--test-data-path", f"{parts}_test"]
        run(*words)
        shared, apart = ([line.get("valid_loss", line.get("test_loss")) for line in
                          map(json.loads, (self.place.path / name / "metrics.jsonl").read_text().splitlines()[-2:])]
                         for name in ("shared", "apart"))
        self.assertEqual(shared, apart)
        self.assertNotEqual(*shared)
        for name, other in {"two": ["--split", "80,20,0"], "none": ["--eval-interval", 0]}.items():
            self.assertNotIn("on test set", self.place.train(name, *common, *other))


if __name__ == "__main__":
    unittest.main()
