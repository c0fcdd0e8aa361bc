"""The tables of `megatron bench step --profile` and `bench generate --profile` count what was computed."""
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import run  # noqa: E402

# Two layers of width 64 over 128 tokens.
MODEL = """
[model]
num_layers = 2
hidden_size = 64
num_attention_heads = 4
vocab_size = 512
make_vocab_size_divisible_by = 128
"""


class Profile(unittest.TestCase):
    def test_the_operators_of_a_step_are_all_there_with_their_flops(self):
        with tempfile.TemporaryDirectory(prefix="megatron-profile-") as folder:
            recipe, picture = pathlib.Path(folder) / "small.toml", pathlib.Path(folder) / "flame.svg"
            recipe.write_text(MODEL)
            small = ["bench", "step", "--model", recipe, "--seq-length", 64, "--micro-batch-size", 2, "--steps", 2,
                     "--warmup", 0, "--profile"]
            printed = json.loads(run(*small, "--json", "--svg", picture))
            rows = {row["operator"]: row for row in printed["profile"]}
            tokens, width, vocab = 128, 64, 512
            for name, calls, shape in (("linear 192 x 64", 2, (192, 64)), ("linear_activation 256 x 64", 2, (256, 64)),
                                       ("linear_activation_gradient 64 x 256", 2, (64, 256)),
                                       ("linear_weight_gradient 512 x 64", 1, (vocab, width))):
                self.assertEqual(rows[name]["calls"], calls, name)
                self.assertAlmostEqual(rows[name]["gflop"], calls * 2e-9 * tokens * shape[0] * shape[1], msg=name)
            # Forward and twice as much backward, but five products of attention for two; causal: 65 of 128 halves.
            attention = 2 * 2e-9 * 2 * (64 * 65 / 2) * width * 2
            self.assertAlmostEqual(rows["attention"]["gflop"], attention)
            self.assertAlmostEqual(rows["attention_backward"]["gflop"], 2.5 * attention)
            linear = sum(row["gflop"] for name, row in rows.items() if name.startswith("linear"))
            self.assertAlmostEqual(linear, 3 * 2e-9 * tokens * (2 * 12 * width * width + vocab * width))
            self.assertAlmostEqual(sum(row["share"] for row in rows.values()), 1, places=6)
            self.assertIn("outside of operators", rows)
            labels = {node.text for node in xml.etree.ElementTree.parse(picture).iter() if node.tag.endswith("title")}
            self.assertTrue(any(label.startswith("backward, ") for label in labels), labels)
            table = run(*small)
            for name in (*rows, "step", "of bound"):
                self.assertIn(name, table)
        self.assertIn("--profile --svg", run("bench", "step", "--svg", "x.svg", code=2))

    def test_the_operators_of_a_prompt_too(self):
        with tempfile.TemporaryDirectory(prefix="megatron-profile-") as folder:
            recipe = pathlib.Path(folder) / "small.toml"
            recipe.write_text(MODEL + "[data]\nseq_length = 64\n")
            words = ["bench", "generate", "--model", recipe, "--prefill-tokens", 64, "--prompt-tokens", 2,
                     "--new-tokens", 2, "--repeats", 2, "--profile"]
            rows = {row["operator"]: row for row in json.loads(run(*words, "--json"))["profile"]}
            self.assertEqual(rows["linear 192 x 64"]["calls"], 2)
            self.assertAlmostEqual(rows["linear 192 x 64"]["gflop"], 2 * 2e-9 * 64 * 192 * 64)
            self.assertAlmostEqual(sum(row["share"] for row in rows.values()), 1, places=6)
            table = run(*words)
            for name in (*rows, "prompt", "of bound"):
                self.assertIn(name, table)
            self.assertIn("--device cpu", run(*words, "--device", "cuda", code=2))


class Memory(unittest.TestCase):
    def test_frozen_weights_count_in_what_is_measured_as_in_what_is_planned(self):
        with tempfile.TemporaryDirectory(prefix="megatron-step-") as folder:
            recipe = pathlib.Path(folder) / "small.toml"
            for adapters in ("", "[lora]\nrank = 4\n"):
                recipe.write_text(MODEL + adapters)
                printed = json.loads(run("bench", "step", "--model", recipe, "--seq-length", 64, "--steps", 1,
                                         "--warmup", 0, "--json"))
                planned, measured = (printed[name] for name in ("planned_bytes_per_parameter", "bytes_per_parameter"))
                self.assertAlmostEqual(measured / planned, 1, delta=0.01)
                self.assertEqual(measured < 8, bool(adapters), "few of the weights have gradients and moments")


if __name__ == "__main__":
    unittest.main()
