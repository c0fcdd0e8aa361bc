"""Curves of runs from their metrics.jsonl."""
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import run  # noqa: E402


class Plot(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-plot-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def write(self, name, losses, end=""):
        (self.path / name).mkdir()
        lines = [{"iteration": i + 1, "consumed_samples": 8 * (i + 1), "loss": loss} for i, loss in enumerate(losses)]
        lines.append({"iteration": len(losses), "valid_loss": 2.5})
        (self.path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + end)
        return self.path / name

    def test_runs_are_drawn_and_told_where_they_began_were_least_and_ended(self):
        steady, broken = self.write("steady", [4, 3, 2]), self.write("broken", [4, None, 3, 5], '{"iteration": 5, "lo')
        picture = self.path / "curves.svg"
        table = run("plot", steady, broken, "--output", picture).splitlines()
        self.assertEqual(table[2:], ["| steady | 3 | 4 | 2 | 3 | 2 | 0 |", "| broken | 4 | 4 | 3 | 3 | 5 | 1 |"])
        texts = [node.text for node in xml.etree.ElementTree.parse(picture).iter() if node.tag.endswith("text")]
        self.assertLessEqual({"steady", "broken", "iteration", "loss"}, set(texts))
        report = json.loads(run("plot", broken / "metrics.jsonl", "--smooth", 2, "--x", "consumed_samples", "--json"))
        self.assertEqual(report["runs"], [{"run": "broken", "points": 4, "first": 4.0, "least": 3.5, "least_at": 24.0,
                                           "last": 4.0, "last_at": 32.0, "not_finite": 1, "lines_cut": 1}])
        report = json.loads(run("plot", steady, "--field", "valid_loss", "--json"))
        self.assertEqual(report["runs"][0]["points"], 1)

    def test_what_cannot_be_drawn_is_refused_by_name(self):
        steady = self.write("steady", [4, 3])
        lines = (steady / "metrics.jsonl").read_text()
        self.assertIn("called iteration and lm_loss", run("plot", steady, "--field", "lm_loss", code=2))
        self.assertIn("metrics.jsonl", run("plot", self.path, code=2))
        self.assertIn("1 to 8 runs", run("plot", code=2))
        run("plot", steady / "metrics.jsonl", "--output", steady / "metrics.jsonl", code=2)
        run("plot", steady, "--output", steady / "metrics.jsonl", code=2)
        self.assertEqual((steady / "metrics.jsonl").read_text(), lines)


if __name__ == "__main__":
    unittest.main()
