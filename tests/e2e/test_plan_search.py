"""What `megatron plan --search` finds is a layout that `megatron plan` takes."""
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import run  # noqa: E402

RECIPE = pathlib.Path(__file__).resolve().parents[2] / "configs/gpt_1.3b.toml"
RANKS = [RECIPE, "--world-size", 8, "--global-batch-size", 64, "--train.dtype", "bf16", "--device", "cuda"]


class Search(unittest.TestCase):
    def test_the_flags_of_each_layout_are_a_plan_that_fits(self):
        with tempfile.TemporaryDirectory(prefix="megatron-search-") as folder:
            picture = pathlib.Path(folder) / "search.svg"
            found = json.loads(run("plan", *RANKS, "--search", "--fit", "24GB", "--top", 4, "--gpu-hour-price", 2.5,
                                   "--json", "--svg", picture))
            self.assertEqual(len(found["layouts"]), 4)
            self.assertTrue(found["complete"])
            steps = [row["step_ms"] for row in found["layouts"]]
            self.assertEqual(steps, sorted(steps))
            for row in found["layouts"]:
                self.assertLessEqual(row["memory_bytes"], 24e9)
                self.assertAlmostEqual(sum(row["parts_ms"].values()), row["step_ms"], delta=1e-6 * row["step_ms"])
                self.assertEqual(row["tp"] * row["pp"] * row["dp"], 8)
                communication = row["parts_ms"]["tensor"] + row["parts_ms"]["data"]
                self.assertAlmostEqual(row["exposed_communication"], communication / row["step_ms"], delta=1e-9)
                self.assertAlmostEqual(row["price"], 8 * 24 * row["days"] * 2.5, delta=1e-6 * row["price"])
                plan = json.loads(run("plan", *RANKS, *row["flags"].split(), "--json"))
                self.assertEqual(plan["microbatches_per_step"], row["microbatches"])
            titles = {node.text for node in xml.etree.ElementTree.parse(picture).iter() if node.tag.endswith("title")}
            self.assertIn(found["layouts"][0]["flags"], titles)
            shown = run("plan", *RANKS, "--search", "--fit", "24GB")
            self.assertIn("torchrun --nnodes 1 --nproc-per-node 8 --no-python megatron train", shown)
            self.assertIn(found["layouts"][0]["flags"], shown)

    def test_what_cannot_be_is_said(self):
        self.assertIn("no layout that fits", run("plan", *RANKS, "--search", "--fit", "100MB", code=2))
        self.assertIn("--fit 80GB", run("plan", *RANKS, "--search", "--fit", "much", code=2))
        self.assertIn("configs/hardware", run("plan", *RANKS, "--search", "--hardware", "abacus", code=2))
        self.assertIn("0 or more", run("plan", *RANKS, "--search", "--gpu-hour-price", -1, code=2))
        self.assertIn("--search", run("plan", *RANKS, "--svg", "search.svg", code=2))


if __name__ == "__main__":
    unittest.main()
