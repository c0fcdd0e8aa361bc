"""TensorBoard reads what a run writes: the values of metrics.jsonl, each step once, after resuming too."""
import json
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from peers import peers  # noqa: E402
from program import MEGATRON, RunFolder  # noqa: E402

numpy, accumulators, MISSING = peers("numpy", "tensorboard.backend.event_processing.event_accumulator")

# Tags against iterations, and the fields of metrics.jsonl that they are, with their factors.
FIELDS = {
    "learning-rate": ("learning_rate", 1), "batch-size": ("batch_size", 1), "lm loss": ("loss", 1),
    "grad-norm": ("grad_norm", 1), "loss-scale": ("loss_scale", 1), "mem-allocated-bytes": ("memory_bytes", 1),
    "mem-max-allocated-bytes": ("peak_memory_bytes", 1), "iteration-time": ("step_ms", 1e-3),
    "throughput": ("tflops_per_rank", 1), "tokens-per-second": ("tokens_per_s", 1),
    "lm loss validation": ("valid_loss", 1), "lm loss validation ppl": ("valid_ppl", 1),
}
ALSO_AGAINST_SAMPLES = ["learning-rate", "batch-size", "lm loss", "grad-norm", "loss-scale", "lm loss validation",
                        "lm loss validation ppl"]


@unittest.skipIf(MISSING, MISSING)
class TensorBoard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)

    def curves(self, folder):
        accumulator = accumulators.EventAccumulator(str(folder), size_guidance={accumulators.SCALARS: 0})
        accumulator.Reload()
        return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
                for tag in accumulator.Tags()["scalars"]}

    def assert_same_as_metrics(self, run, folder):
        objects = [json.loads(line) for line in (self.place.path / run / "metrics.jsonl").read_text().splitlines()]
        curves = self.curves(folder)
        expected = {}
        for tag, (field, factor) in FIELDS.items():
            having = [entry for entry in objects if field in entry]
            value = [float(numpy.float32(entry[field] * factor)) for entry in having]
            expected[tag] = [(entry["iteration"], v) for entry, v in zip(having, value)]
            if tag in ALSO_AGAINST_SAMPLES:
                expected[tag + " vs samples"] = [(entry["consumed_samples"], v) for entry, v in zip(having, value)]
        self.assertEqual(set(curves), set(expected))
        for tag, points in expected.items():
            self.assertGreater(len(points), 0, tag)
            self.assertEqual([step for step, _ in curves[tag]], [step for step, _ in points], tag)
            numpy.testing.assert_allclose([value for _, value in curves[tag]], [value for _, value in points],
                                          rtol=1e-7, err_msg=tag)

    def test_reads_the_values_of_metrics_jsonl_after_a_resumption_too(self):
        words = ["--train-iters", 12, "--eval-interval", 4, "--eval-iters", 1, "--save-interval", 5]
        self.place.train("run", *words, "--train-iters", 8)
        self.assert_same_as_metrics("run", self.place.path / "run")
        shutil.rmtree(self.place.path / "run/checkpoints/iter_0000008")  # as if a crash had come before it
        printed = self.place.train("run", *words)
        self.assertIn("at iteration 5", printed)
        self.assert_same_as_metrics("run", self.place.path / "run")

    def test_two_runs_share_a_folder_that_is_named(self):
        folder = self.place.path / "board"
        for run in ["one", "two", "two"]:
            self.place.train(run, "--train-iters", 2, "--tensorboard-dir", folder, "--tensorboard-log-interval", 2)
        self.assertEqual(len(list(folder.glob("events.out.tfevents.*"))), 3)
        self.assertEqual([step for step, _ in self.curves(folder)["lm loss"]], [2, 2])
        self.assertFalse(list(self.place.path.glob("one/events.*")))
        self.place.train("none", "--train-iters", 1, "--no-log.tensorboard")
        self.assertFalse(list(self.place.path.glob("none/events.*")))

    def test_a_killed_run_loses_no_step_that_metrics_jsonl_has(self):
        words = self.place.train_words("killed", "--train-iters", 100000, "--log.interval", 1)
        process = subprocess.Popen([MEGATRON, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        lines = 0
        while lines < 5:
            lines += b" iteration " in process.stdout.readline()
            self.assertIsNone(process.poll())
        process.kill()
        process.communicate()
        metrics = self.place.path / "killed/metrics.jsonl"
        written = [json.loads(line) for line in metrics.read_text().splitlines()]
        last = max(entry["iteration"] for entry in written if "loss" in entry)
        steps = [step for step, _ in self.curves(self.place.path / "killed")["lm loss"]]
        self.assertEqual(steps[:last - 1], list(range(1, last)))


if __name__ == "__main__":
    unittest.main()
