"""megatron sweep: the trials are runs, the worse half of which ends after each round."""
import json
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import RunFolder, run  # noqa: E402


class Sweep(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)

    def sweep(self, name, *options, train=(), code=0):
        words = self.place.train_words(name, "--train-iters", 8, *train)
        return run("sweep", *options, "--", *words, code=code)

    def told(self, *options):
        """The one object that the sweep prints."""
        return json.loads(self.sweep("swept", *options, train=["--eval-interval", 1, "--eval-iters", 1]))

    def test_half_of_the_trials_ends_and_the_best_is_the_run_that_it_would_be_alone(self):
        options = ["--lr", "1e-9,5e-3", "--batch", "8,16", "--rounds", 2, "--json"]
        told = self.told(*options)
        self.assertEqual(told["measure"], "valid_loss")
        self.assertEqual(told["best"]["lr"], "5e-3")
        trials = {(trial["lr"], trial["batch"]): trial for trial in told["trials"]}
        # 8 steps of 8 samples are 64: 8 steps of 8 or 4 of 16, and half as many in the first round.
        self.assertEqual(trials["1e-9", 8]["iterations"], 4)
        self.assertEqual(trials["1e-9", 16]["iterations"], 2)
        self.assertEqual(trials["5e-3", 8]["iterations"], 8)
        self.assertEqual(trials["5e-3", 16]["iterations"], 4)
        self.assertEqual([len(trial["losses"]) for trial in told["trials"]], [1, 1, 2, 2])
        self.place.train("alone", "--train-iters", 4, "--lr", 5e-3, "--global-batch-size", 16, "--eval-interval", 2,
                         "--eval-iters", 1)
        self.assertEqual(self.place.losses("swept/lr_5e-3_batch_16"), self.place.losses("alone"))
        out = self.place.path / "swept"
        self.assertEqual(json.loads((out / "sweep.json").read_text()), told)
        self.assertIn("lr 5e-3, batch 8", (out / "sweep.svg").read_text())
        # The same command again finds all of it done.
        before = (out / "lr_5e-3_batch_8" / "metrics.jsonl").read_bytes()
        self.assertEqual(self.told(*options), told)
        self.assertEqual((out / "lr_5e-3_batch_8" / "metrics.jsonl").read_bytes(), before)
        # Trials of another recipe are no results of this one; how it is shown is no part of it.
        validating = ["--eval-interval", 1, "--eval-iters", 1]
        for option, value, name in (("--hidden-size", 32, "model.hidden_size: 64 -> 32"),
                                    ("--data-path", self.place.path / "other", "data.data_path"),
                                    ("--train-iters", 16, "train.train_iters: 8 -> 16")):
            message = self.sweep("swept", *options, train=[*validating, option, value], code=2)
            self.assertIn("must be of one recipe", message)
            self.assertIn(name, message)
        self.assertIn("--rounds: 2 -> 1", self.sweep("swept", *options, "--rounds", 1, train=validating, code=2))
        self.assertEqual(json.loads(self.sweep("swept", *options, train=[*validating, "--log.interval", 1])), told)

    def test_without_validation_the_loss_of_training_counts_and_a_trial_that_breaks_is_left_out(self):
        text = self.sweep("trained", "--lr", "1000,1e-3", "--rounds", 1,
                          train=["--eval-interval", 0, "--clip-grad", 0, "--guard.on_nan", "stop",
                                 "--weight-decay", 500])
        self.assertIn("failed", text)
        self.assertRegex(text, "best: lr 1e-3, batch 8, loss [0-9.]+, in ")

    def test_what_is_wrong_is_said_before_anything_runs(self):
        self.assertIn("--lr must be given", self.sweep("wrong", code=2))
        self.assertIn("numbers above 0", self.sweep("wrong", "--lr", "fast", code=2))
        self.assertIn("whole numbers", self.sweep("wrong", "--lr", "1e-3", "--batch", "1.5", code=2))
        self.assertIn("fix:  --batch 32", self.sweep("wrong", "--lr", "1e-3", "--batch", "0", code=2))
        self.assertIn("a multiple of train.micro_batch_size x dp",
                      self.sweep("wrong", "--lr", "1e-3", "--batch", "8,3", code=2))
        self.assertIn("must differ", self.sweep("wrong", "--lr", "1e-3,0.001", code=2))
        self.assertIn("a job that trains", run("sweep", "--lr", "1e-3", "--", "generate", code=2))
        self.assertFalse((self.place.path / "wrong").exists())


if __name__ == "__main__":
    unittest.main()
