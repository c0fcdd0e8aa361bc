"""A mixture of experts trains on ranks that share the experts, and its checkpoints load in other layouts."""
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import RunFolder, run  # noqa: E402

MODEL = ["--normalization", "RMSNorm", "--position-embedding-type", "rope", "--swiglu", "--disable-bias-linear",
         "--num-experts", 4, "--moe-ffn-hidden-size", 48, "--moe-shared-expert-intermediate-size", 32,
         "--moe-aux-loss-coeff", 0.05, "--train.dtype", "fp64", "--train-iters", 6, "--save-interval", 2,
         "--eval-interval", 0]


class Experts(unittest.TestCase):
    def test_a_checkpoint_of_one_layout_resumes_in_another(self):
        place = RunFolder()
        self.addCleanup(place.close)
        place.train("one", *MODEL)
        ranks = [["--world-size", 2, "--ep", 2, "--use-distributed-optimizer"], ["--world-size", 2, "--tp", 2],
                 ["--world-size", 4, "--ep", 4]]
        for until, layout in zip((2, 4, 6), ranks):
            place.train("many", *MODEL, *layout, "--train.exit_interval", until)
        one, many = place.losses("one"), place.losses("many")
        self.assertEqual(sorted(many), list(range(1, 7)))
        for iteration, loss in one.items():
            self.assertAlmostEqual(many[iteration] / loss, 1, delta=1e-10)
        text = [run("generate", "--load", place.path / name, "--prompt", "the old man", "--temperature", 0,
                    "--max-new-tokens", 8, "--ignore-eos") for name in ("one", "many")]
        self.assertEqual(*text)

    def test_ranks_that_do_not_fit_are_refused(self):
        place = RunFolder()
        self.addCleanup(place.close)
        message = place.train("wrong", *MODEL, "--world-size", 4, "--ep", 3, code=2)
        self.assertIn("parallel.ep must divide the data-parallel size", message)
        message = place.train("wrong", *[word for word in MODEL if word != "--disable-bias-linear"], code=2)
        self.assertIn("Experts have no biases", message)


if __name__ == "__main__":
    unittest.main()
