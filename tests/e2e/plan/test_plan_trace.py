"""The pipeline recipe trains, and its measured timeline goes with its own plan alone."""
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import RunFolder, run  # noqa: E402

RECIPE = pathlib.Path(__file__).resolve().parents[3] / "configs/gpt_tiny_pp.toml"


class PlanTrace(unittest.TestCase):
    def test_a_trace_of_another_schedule_is_refused_with_the_first_operation_that_differs(self):
        place = RunFolder()
        self.addCleanup(place.close)
        trace = place.path / "out/trace.json"
        printed = run("train", RECIPE, "--train-iters", 2, "--data-path", place.path / "tokens_text_document",
                      "--tokenizer", place.path / "tokenizer", "--train.out", place.path / "out", "--log.interval", 1,
                      "--eval-interval", 0, "--log.trace", trace, "--parallel.threads_per_rank", 1)
        self.assertIn("iteration        2/       2", printed)
        self.assertIn("pp 2", printed)
        self.assertIn("measured", run("plan", RECIPE, "--trace", trace))
        other = run("plan", RECIPE, "--schedule", "interleaved", "--trace", trace, code=2)
        self.assertIn("must be measured with the recipe's schedule", other)
        self.assertRegex(other, r"pp rank \d+, operation \d+: [FBIW]\d+\.\d+ in the trace, [FBIW]\d+\.\d+ in the plan")
        self.assertIn("fix:", other)
        fewer = run("plan", RECIPE, "--vpp", 1, "--schedule", "zb-h1", "--trace", trace, code=2)
        self.assertIn("4 stages on 2 ranks, 4 microbatches in the trace; 2 on 2, 4 in the plan", fewer)


if __name__ == "__main__":
    unittest.main()
