"""What is wrong is said at once, all together, and nothing is written."""
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import RunFolder, run  # noqa: E402

JOBS = ["doctor", "tokenizer", "data", "train", "generate", "checkpoint", "plan", "bench", "docs"]


class WrongInput(unittest.TestCase):
    def test_every_job_is_listed_and_has_help(self):
        listing = run("--help")
        for job in JOBS:
            self.assertIn(f" {job} ", listing)
            self.assertIn(f"megatron {job}", run(job, "--help"))

    def test_an_unknown_job_names_the_nearest(self):
        self.assertIn("tokenizer", run("tokeniser", code=2))

    def test_all_broken_rules_are_reported_before_anything_is_written(self):
        place = RunFolder()
        self.addCleanup(place.close)
        message = place.train("run", "--hidden-size", 65, "--world-size", 4, "--tp", 3, "--model.gelu", "relu", code=2)
        for word in ["hidden_size", "tp", "gelu"]:
            self.assertIn(word, message)
        self.assertFalse((place.path / "run").exists())

    def test_rules_words_keys_and_a_missing_tokenizer_are_reported_together(self):
        place = RunFolder()
        self.addCleanup(place.close)
        message = place.train("run", "--hidden-size", 65, "--parallel.tpp", 2, "--data.tokenizer", "nowhere",
                              "--train-iters", "many", code=2)
        for word in ["hidden_size", "--parallel.tpp", "nowhere", "--train-iters takes an integer"]:
            self.assertIn(word, message)
        self.assertFalse((place.path / "run").exists())

    def test_an_unknown_option_names_the_nearest(self):
        place = RunFolder()
        self.addCleanup(place.close)
        message = place.train("run", "--parallel.tpp", 2, code=2)
        self.assertIn("--parallel.tp", message)
        self.assertFalse((place.path / "run").exists())

    def test_a_prompt_longer_than_the_context_is_an_error_with_both_numbers(self):
        place = RunFolder()
        self.addCleanup(place.close)
        place.train("run", "--train-iters", 1)
        message = run("generate", "--load", place.path / "run", "--prompt", "z" * 100, code=2)
        self.assertIn("100", message)
        self.assertIn("32", message)


if __name__ == "__main__":
    unittest.main()
