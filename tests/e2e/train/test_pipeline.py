"""Pipelines through the command line alone: schedules, layouts, launchers, resuming, the measured timeline."""
import collections
import json
import pathlib
import signal
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, run  # noqa: E402

# One thread a rank: on busy cores several would wait for one another.
MODEL = ["--num-layers", 4, "--hidden-size", 32, "--hidden-dropout", 0.1, "--attention-dropout", 0.1,
         "--micro-batch-size", 2, "--train.dtype", "fp64", "--parallel.threads_per_rank", 1]
SHORT = [*MODEL, "--train-iters", 6]
PP2 = ["--world-size", 2, "--pp", 2]
# More steps than a test waits for: every run of this length draws the same samples.
LONG = [*MODEL, "--train-iters", 4000, "--lr-decay-samples", 4000]


class Pipeline(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)

    def assert_losses_of_one_rank(self, name):
        if not (self.place.path / "one rank").exists():
            self.place.train("one rank", *SHORT)
        self.assert_same_losses(name, "one rank", at_least=6)

    def assert_same_losses(self, name, of, at_least):
        losses, expected = self.place.losses(name), self.place.losses(of)
        self.assertEqual(sorted(losses), list(range(1, len(losses) + 1)))
        self.assertGreaterEqual(len(losses), at_least)
        for iteration, loss in losses.items():
            self.assertAlmostEqual(loss / expected[iteration], 1, delta=1e-10, msg=f"iteration {iteration}")

    def train_until(self, name, iterations, *options):
        """Trains until that many steps are in the metrics, then interrupts: the run saves and exits with 3. What it
        has printed."""
        process = subprocess.Popen([MEGATRON, *map(str, self.place.train_words(name, *LONG, *options))],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        metrics = self.place.path / name / "metrics.jsonl"
        end = time.monotonic() + 120
        while not metrics.exists() or metrics.read_text().count("\n") < iterations:
            if process.poll() is not None or time.monotonic() > end:
                process.kill()
                self.fail(f"{name}: not {iterations} steps; exit code {process.poll()}\n{process.communicate()[1]}")
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 3, errors)
        return printed

    def test_a_schedule_from_a_file_and_zero_bubble_compute_what_one_rank_computes(self):
        program = self.place.path / "program.txt"
        run("plan", self.place.recipe, *SHORT, *PP2, "--schedule", "zb-h1", "--vocab-size", 320, "--draw", program)
        self.assertIn("rank 1:", program.read_text())
        self.place.train("file", *SHORT, *PP2, "--schedule", program)
        self.assert_losses_of_one_rank("file")
        program.unlink()  # the run's folder has its own
        run("train", self.place.path / "file/recipe.toml", "--train.out", self.place.path / "again")
        self.assert_losses_of_one_rank("again")
        for schedule in ("zb-v", "dualpipev"):
            self.place.train(schedule, *SHORT, *PP2, "--vpp", 2, "--schedule", schedule)
            self.assert_losses_of_one_rank(schedule)

    def test_processes_compute_what_one_rank_computes(self):
        self.place.train("processes", *SHORT, *PP2, "--launch", "processes")
        self.assert_losses_of_one_rank("processes")

    def test_the_measured_timeline_has_every_operation_and_a_picture(self):
        layout = [*SHORT, *PP2, "--vpp", 2, "--schedule", "zb-v"]
        program, trace = self.place.path / "traced.txt", self.place.path / "trace.json"
        self.place.train("traced", *layout, "--log.trace", trace)
        run("plan", self.place.recipe, *layout, "--vocab-size", 320, "--draw", program)
        expected = collections.Counter()  # by rank: computations, and waits for messages
        for line in program.read_text().splitlines():
            if line.startswith("rank "):
                rank, ops = line.removeprefix("rank ").split(":")
                expected.update((int(rank), op) for op in ops.split() if op[0] in "FBIWw")
        self.assertEqual(sum(op[0] == "F" for _, op in expected), 4 * 4)  # stages x microbatches
        events = json.loads(trace.read_text())["traceEvents"]
        measured = [event for event in events if event["ph"] == "X"]
        self.assertEqual(collections.Counter((event["tid"], event["name"]) for event in measured), expected)
        self.assertTrue(all(event["dur"] >= 0 for event in measured))
        root = xml.etree.ElementTree.parse(trace.with_suffix(".svg")).getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        drawn = run("plan", self.place.recipe, *layout, "--vocab-size", 320, "--trace", trace)
        self.assertIn("measured", drawn)

    def test_unequal_stages_compute_what_one_rank_computes(self):
        first, last = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
        layouts = [[*PP2, "--pipeline-model-parallel-layout", "Et|tttL"],
                   [*PP2, "--pp-layout", "Et|t*2|t|L"],
                   [*PP2, "--vpp", 3, "--pp-layout", "balanced"],
                   ["--world-size", 3, "--pp", 3, "--pp-layout", "balanced"],
                   ["--world-size", 3, "--pp", 3, first, 2],
                   ["--world-size", 3, "--pp", 3, last, 2],
                   [*PP2, first, 3, last, 1],
                   ["--world-size", 3, "--pp", 3, "--account-for-embedding-in-pipeline-split",
                    "--account-for-loss-in-pipeline-split"]]
        for number, layout in enumerate(layouts):
            with self.subTest(layout=layout):
                self.place.train(f"unequal {number}", *SHORT, *layout)
                self.assert_losses_of_one_rank(f"unequal {number}")

    def test_layers_that_do_not_divide_are_refused_with_a_layout_that_works(self):
        odd = [self.place.recipe, *SHORT, *PP2, "--vocab-size", 320, "--num-layers", 5]
        self.assertIn("fix:  --pp-layout balanced", run("plan", *odd, code=2))
        stages = json.loads(run("plan", *odd, "--pp-layout", "balanced", "--json"))["stages"]
        self.assertEqual([stage["num_layers"] for stage in stages], [3, 2])  # the output is almost a layer
        self.assertEqual([stage["first_layer"] for stage in stages], [0, 3])
        wrong = run("plan", *odd, "--pp-layout", "Et*2|tm*2L", code=2)
        self.assertIn("multi-token prediction", wrong)

    def test_layers_that_are_recomputed_change_no_loss(self):
        full = ["--recompute-granularity", "full"]
        self.place.train("listed", *SHORT, *PP2, "--pp-layout", "Et|tttL", *full, "--train.recompute_layers", "1,3")
        self.assert_losses_of_one_rank("listed")
        plan = [self.place.recipe, *SHORT, *PP2, "--vocab-size", 320, *full]
        def held(layers):
            words = [*plan, "--train.recompute_layers", layers, "--json"]
            return max(json.loads(run("plan", *words))["memory_bytes"]["total"])
        limit = ["--train.memory_limit_gb", (held("0-3") + held("nothing")) / 2e9]
        fit = json.loads(run("plan", *plan, "--train.recompute_layers", "fit", *limit, "--json"))
        self.assertNotIn(fit["recomputed_layers"], ("nothing", "0-3", "fit"))
        self.assertLessEqual(max(fit["memory_bytes"]["total"]), limit[1] * 1e9)
        self.place.train("fit", *SHORT, *PP2, *full, "--train.recompute_layers", "fit", *limit)
        self.assert_losses_of_one_rank("fit")

    def test_checkpoints_of_unequal_stages_are_those_of_any_layout(self):
        layouts = [[*PP2, "--pp-layout", "Et|tttL"], ["--world-size", 1],
                   ["--world-size", 3, "--pp", 3, "--pp-layout", "E|t|tttL"],
                   [*PP2, "--vpp", 2, "--pp-layout", "balanced"]]
        last = 0
        for layout in layouts:
            self.train_until("uneven", last + 2, *layout)
            last = max(self.place.losses("uneven"))
        self.train_until("even", last)
        self.assert_same_losses("uneven", "even", at_least=last)

    def test_an_interrupted_run_goes_on_in_another_layout(self):
        self.train_until("moved", 3, "--world-size", 2, "--pp", 2, "--vpp", 2)
        first = max(self.place.losses("moved"))
        printed = self.train_until("moved", first + 3, "--world-size", 2, "--tp", 2, "--sp")
        self.assertIn(f"at iteration {first},", printed)
        last = max(self.place.losses("moved"))
        self.assertGreaterEqual(last, first + 3)
        self.train_until("unbroken", last)
        self.assert_same_losses("moved", "unbroken", at_least=last)


if __name__ == "__main__":
    unittest.main()
