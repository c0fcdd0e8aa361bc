"""`bench pipeline` predicts before it measures, and its ratios are those of the figures beside them."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, run  # noqa: E402

RECIPE = """
[model]
num_layers = 4
hidden_size = 64
num_attention_heads = 4
vocab_size = 500
[parallel]
world_size = 2
pp = 2
threads_per_rank = 1
[data]
seq_length = 64
[train]
global_batch_size = 4
"""


class BenchPipeline(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-bench-")
        self.addCleanup(folder.cleanup)
        self.recipe = pathlib.Path(folder.name) / "recipe.toml"
        self.recipe.write_text(RECIPE)

    def words(self, *options):
        return [MEGATRON, "bench", "pipeline", str(self.recipe), "--schedules", "1f1b", "zb-h1", *map(str, options)]

    def test_ratios_are_those_of_the_figures_beside_them(self):
        done = subprocess.run(self.words("--steps", 3, "--warmup", 1, "--rounds", 2, "--json"), capture_output=True,
                              text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual([entry["schedule"] for entry in report["schedules"]], ["1f1b", "zb-h1"])
        for entry in report["schedules"]:
            self.assertAlmostEqual(entry["measured_over_predicted"], entry["measured_ms"] / entry["predicted_ms"],
                                   delta=1e-12)
            said = re.search(rf"^predicted {entry['schedule']}: ([\d.]+) ms", done.stderr, re.MULTILINE)
            self.assertAlmostEqual(float(said[1]) / entry["predicted_ms"], 1, delta=1e-3)
        (comparison,) = report["comparisons"]
        first, second = (entry["measured_ms"] for entry in report["schedules"])
        self.assertAlmostEqual(comparison["time_saved_measured"], 1 - second / first, delta=1e-12)
        if comparison["time_saved_predicted"] > 0:
            self.assertAlmostEqual(comparison["measured_over_predicted"],
                                   comparison["time_saved_measured"] / comparison["time_saved_predicted"], delta=1e-12)

    def test_the_prediction_is_printed_before_the_runs_that_it_is_compared_with(self):
        # The second of two sets of runs takes as long as the first: when the prediction is read, it has just begun.
        process = subprocess.Popen(self.words("--steps", 100, "--warmup", 0, "--rounds", 2), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        predicted = [process.stdout.readline(), process.stdout.readline()]
        process.kill()
        rest = process.stdout.read()
        process.wait()
        process.stdout.close()
        for line, schedule in zip(predicted, ["1f1b", "zb-h1"]):
            self.assertRegex(line, rf"^predicted {schedule}: [\d.]+ ms per step, bubble [\d.]+ %$")
        self.assertNotIn("measured_ms", rest)

    def test_processes_print_one_report(self):
        printed = run(*self.words("--steps", 1, "--warmup", 0, "--rounds", 1, "--json", "--launch", "processes")[1:])
        self.assertEqual(json.loads(printed)["ranks"], 2)


if __name__ == "__main__":
    unittest.main()
