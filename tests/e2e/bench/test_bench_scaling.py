"""The measured scaling study from its first run to its last, on models as small as they can be."""
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import run  # noqa: E402

CONFIGS = pathlib.Path(__file__).resolve().parents[3] / "configs"
HARDWARE = CONFIGS / "hardware"
SMALL = ["bench", "scaling", "--measured", "--width", 32, "--seq-length", 16, "--samples", 1, "--steps", 1,
         "--warmup", 0, "--rounds", 1]


class MeasuredScaling(unittest.TestCase):
    def test_every_study_is_measured_on_as_many_ranks_as_it_names(self):
        with tempfile.TemporaryDirectory(prefix="megatron-scaling-") as folder:
            picture = pathlib.Path(folder) / "scaling.svg"
            rows = json.loads(run(*SMALL, "--json", "--svg", picture))["rows"]
            self.assertEqual([(row["study"], row["tp"], row["dp"]) for row in rows],
                             [("Weak, tensor-parallel", 1, 1), ("Weak, tensor-parallel", 2, 1),
                              ("Weak, tensor-parallel", 4, 1), ("Weak, data-parallel", 1, 2),
                              ("Weak, data-parallel", 1, 4), *[("Heads, tensor-parallel", 4, 1)] * 3, ("Strong", 2, 1),
                              ("Strong", 4, 1)])
            self.assertEqual(rows[0]["measured"], 100)
            for row in rows:
                self.assertGreater(row["measured"], 0)
                self.assertAlmostEqual(row["num_layers"] * row["hidden_size"] ** 2 / row["tp"],
                                       4 * 32 ** 2 / (row["tp"] if row["study"] == "Strong" else 1), delta=128)
            texts = [node.text for node in xml.etree.ElementTree.parse(picture).iter() if node.tag.endswith("text")]
            self.assertIn("Strong", texts)
        self.assertIn("--width", run(*SMALL, "--width", 40, code=2))

    def test_a_layout_that_does_not_fit_is_marked_and_has_no_figures(self):
        with tempfile.TemporaryDirectory(prefix="megatron-scaling-") as folder:
            picture = pathlib.Path(folder) / "scaling.svg"
            words = ["bench", "scaling", "--hardware", HARDWARE / "dgx2h.toml", "--dtype", "fp16", "--recipes",
                     *(CONFIGS / f"{name}.toml" for name in ["gpt2_124m", "megatron_2.5b"])]
            small, large = json.loads(run(*words, "--json", "--svg", picture))["recipes"]
            for row in (small, large):
                vocabulary = ["--vocab-size", 50257] if row is small else []  # which it leaves to its tokenizer
                plan = json.loads(run("plan", row["recipe"], "--train.dtype", "fp16", "--device", "cuda", *vocabulary,
                                      "--json"))
                self.assertEqual(row["memory_bytes"], max(plan["memory_bytes"]["total"]))
                self.assertEqual(row["capacity_bytes"], 32e9)
                self.assertEqual(row["fits"], row["memory_bytes"] <= 32e9)
                self.assertEqual("step_ms" in row, row["fits"])
            self.assertEqual((small["fits"], large["fits"]), (True, False))
            texts = [node.text for node in xml.etree.ElementTree.parse(picture).iter() if node.tag.endswith("text")]
            self.assertIn("no room", texts)
            self.assertIn("does not fit: needs", run(*words))

    def test_what_is_wrong_with_a_recipe_names_it_and_options_of_this_job(self):
        words = ["bench", "scaling", "--recipes"]
        message = run(*words, "gpt_18.4b", code=2)  # in bf16, which a V100 does not multiply
        self.assertIn("gpt_18.4b: ", message)
        self.assertIn("fix:  --dtype fp16", message)
        run(*words, "gpt_18.4b", "--dtype", "fp16")
        message = run(*words, "gpt_18.4b", "moe_tiny", "--hardware", "b200", "--world-size", 1024, code=2)
        self.assertIn("moe_tiny: ", message)
        self.assertIn("leave moe_tiny out of --recipes", message)
        self.assertNotIn("--global-batch-size", message)
        run(*words, "gpt_18.4b", "--hardware", "b200", "--world-size", 1024)

    def test_options_of_another_figure_than_the_one_asked_for_are_refused(self):
        for options, words in [(["--world-size", 8], ["--world-size", "--recipes"]),
                               (["--dtype", "fp16"], ["--dtype", "--recipes"]),
                               (["--steps", 7], ["--steps", "--measured"]),
                               (["--measured", "--world-size", 8], ["--world-size", "--measured"]),
                               (["--measured", "--recipes", "gpt_tiny"], ["--recipes", "--measured"]),
                               (["--recipes", "gpt_tiny", "--world-size", -1], ["--world-size"])]:
            message = run("bench", "scaling", *options, code=2)
            for word in [*words, "got:", "fix:"]:
                self.assertIn(word, message)


if __name__ == "__main__":
    unittest.main()
