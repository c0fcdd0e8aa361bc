"""A BERT from text to checkpoints and back, through the command line alone."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import run, text_of_sentences  # noqa: E402

RECIPE = """
[model]
architecture = "bert"
num_layers = 2
hidden_size = 64
num_attention_heads = 4
[data]
seq_length = 48
split = "9,1,0"
[schedule]
lr = 5e-3
[train]
train_iters = 60
micro_batch_size = 8
global_batch_size = 16
eval_interval = 30
eval_iters = 2
[log]
interval = 10
"""


class Bert(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="megatron-bert-")
        self.addCleanup(self._folder.cleanup)
        self.path = pathlib.Path(self._folder.name)
        sentences = [line.capitalize() for line in text_of_sentences(2400)]
        documents = [" ".join(sentences[i:i + 6]) for i in range(0, len(sentences), 6)]
        text = self.path / "text.jsonl"
        text.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
        run("tokenizer", "train", "--kind", "wordpiece", "--input", text, "--vocab-size", 150, "--output",
            self.path / "tokenizer")
        run("data", "preprocess", "--input", text, "--tokenizer", self.path / "tokenizer", "--output-prefix",
            self.path / "tokens", "--split-sentences")
        (self.path / "recipe.toml").write_text(RECIPE)

    def train(self, name, *options, code=0, data="tokens_text_sentence"):
        return run("train", self.path / "recipe.toml", "--data-path", self.path / data, "--tokenizer",
                   self.path / "tokenizer", "--train.out", self.path / name, *options, code=code)

    def metrics(self, name, key="loss"):
        lines = (self.path / name / "metrics.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if key in entry]

    def test_learns_masked_words_and_goes_on_from_its_checkpoint(self):
        lines = self.train("run", "--world-size", 2, "--tp", 2, "--sequence-parallel", "--save-interval", 30)
        steps = self.metrics("run")
        for step in steps:
            self.assertAlmostEqual(step["loss"], step["lm_loss"] + step["sop_loss"], places=9)
        self.assertLess(steps[-1]["lm_loss"], steps[0]["lm_loss"] - 1.5)
        self.assertLess(abs(steps[0]["sop_loss"] - 0.69), 0.5)
        self.assertRegex(lines, r"\| lm loss: \S+ \| sop loss: \S+ \| loss scale")
        valid = self.metrics("run", "valid_loss")
        self.assertAlmostEqual(valid[-1]["valid_loss"], valid[-1]["valid_lm_loss"] + valid[-1]["valid_sop_loss"])
        self.train("again", "--load", self.path / "run/checkpoints/iter_0000030", "--world-size", 2, "--pp", 2)
        again = self.metrics("again")
        self.assertEqual([step["iteration"] for step in again], list(range(31, 61)))
        for one, other in zip(again, steps[30:]):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=2e-3 * other["loss"])

    def test_goes_out_to_a_hugging_face_folder_and_comes_back(self):
        original = ["--apply-residual-connection-post-layernorm", "--model.activation", "gelu"]
        self.train("run", *original, "--train-iters", 40)
        run("checkpoint", "export", "--load", self.path / "run", "--output", self.path / "hf")
        config = json.loads((self.path / "hf/config.json").read_text())
        self.assertEqual(config["architectures"], ["BertForPreTraining"])
        self.train("again", *original, "--load", self.path / "hf", "--train-iters", 1, "--lr", 0)
        last, first = self.metrics("run")[-1]["lm_loss"], self.metrics("again")[0]["lm_loss"]
        self.assertLess(abs(last - first), 0.7)
        self.assertIn("apply_residual", self.train("other", "--load", self.path / "hf", code=2))
        gpt = self.train("other", "--load", self.path / "hf", "--model.architecture", "gpt", code=2)
        self.assertIn("model.architecture", gpt)

    def test_has_one_segment_without_the_binary_head(self):
        self.train("run", "--bert-no-binary-head", "--train-iters", 2)
        self.assertNotIn("sop_loss", self.metrics("run")[0])

    def test_refuses_data_that_is_not_sentences_before_it_begins(self):
        run("data", "preprocess", "--input", self.path / "text.jsonl", "--tokenizer", self.path / "tokenizer",
            "--output-prefix", self.path / "whole")
        self.assertIn("--split-sentences", self.train("run", code=2, data="whole_text_document"))
        self.assertIn("sentences", self.train("run", "--data.packed", "true", code=2))
        self.assertFalse((self.path / "run").exists())


if __name__ == "__main__":
    unittest.main()
