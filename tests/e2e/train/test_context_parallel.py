"""Ranks share the tokens of each sequence: the losses are those of one rank, checkpoints load in other layouts."""
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import RunFolder  # noqa: E402

MODEL = ["--normalization", "RMSNorm", "--position-embedding-type", "rope", "--swiglu", "--disable-bias-linear",
         "--reset-attention-mask", "--reset-position-ids", "--hidden-dropout", 0.1, "--attention-dropout", 0.1,
         "--train.dtype", "fp64", "--train-iters", 6, "--save-interval", 2, "--eval-interval", 3, "--eval-iters", 1]


class ContextParallelism(unittest.TestCase):
    def test_a_run_changes_its_layout_and_keeps_its_losses(self):
        place = RunFolder()
        self.addCleanup(place.close)
        place.check_layouts(self, MODEL, [
            ["--world-size", 2, "--cp", 2, "--cp-comm-type", "p2p"],
            ["--world-size", 4, "--context-parallel-size", 2, "--tp", 2, "--sp"],
            ["--world-size", 4, "--cp", 4, "--use-distributed-optimizer"]])

    def test_ranks_that_do_not_fit_are_refused(self):
        place = RunFolder()
        self.addCleanup(place.close)
        message = place.train("wrong", *MODEL, "--world-size", 3, "--cp", 3, code=2)
        self.assertIn("data.seq_length must divide by 2 x parallel.cp", message)
        message = place.train("wrong", *MODEL, "--world-size", 2, "--cp", 2, "--cp-comm-type", "ring", code=2)
        self.assertIn("parallel.cp_comm_type", message)


if __name__ == "__main__":
    unittest.main()
