"""A BERT from text to checkpoints and back, through the command line alone."""
import array
import collections
import json
import math
import pathlib
import random
import statistics
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import run  # noqa: E402

WORDS = ["cat", "dog", "bird", "fish", "horse", "mouse", "snake", "whale"]

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
train_iters = 100
micro_batch_size = 8
global_batch_size = 16
eval_interval = 50
eval_iters = 2
[log]
interval = 10
[parallel]
threads_per_rank = 1
"""


def documents(count):
    """Each says one word over and over: a masked one is told by those around it, and by nothing else."""
    draw = random.Random(1)
    return [" ".join(" ".join([word] * draw.randint(3, 7)).capitalize() + "." for _ in range(6))
            for word in draw.choices(WORDS, k=count)]


class Bert(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="megatron-bert-")
        self.addCleanup(self._folder.cleanup)
        self.path = pathlib.Path(self._folder.name)
        text = self.path / "text.jsonl"
        text.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents(400)))
        run("tokenizer", "train", "--kind", "wordpiece", "--input", text, "--vocab-size", 60, "--output",
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

    def entropy_of_tokens(self):
        """Nats: the loss of a prediction that knows how often each token comes and does not look at the others."""
        tokens = array.array("H", (self.path / "tokens_text_sentence.bin").read_bytes())
        return sum(-n / len(tokens) * math.log(n / len(tokens)) for n in collections.Counter(tokens).values())

    def test_learns_masked_words_and_goes_on_from_its_checkpoint(self):
        lines = self.train("run", "--world-size", 2, "--tp", 2, "--sequence-parallel", "--save-interval", 50)
        steps = self.metrics("run")
        for step in steps:
            self.assertAlmostEqual(step["loss"], step["lm_loss"] + step["sop_loss"], places=9)
        chance = self.entropy_of_tokens()
        self.assertGreater(steps[0]["lm_loss"], chance)
        learned = statistics.mean(step["lm_loss"] for step in steps[-10:])
        self.assertLess(learned, chance / 2, "the words around a masked one were not looked at")
        self.assertAlmostEqual(steps[0]["sop_loss"], math.log(2), delta=0.1)
        self.assertRegex(lines, r"\| lm loss: \S+ \| sop loss: \S+ \| loss scale")
        valid = self.metrics("run", "valid_loss")
        self.assertAlmostEqual(valid[-1]["valid_loss"], valid[-1]["valid_lm_loss"] + valid[-1]["valid_sop_loss"])
        self.train("again", "--load", self.path / "run/checkpoints/iter_0000050", "--world-size", 4, "--pp", 2,
                   "--cp", 2)
        again = self.metrics("again")
        self.assertEqual([step["iteration"] for step in again], list(range(51, 101)))
        for one, other in zip(again, steps[50:]):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=2e-3 * other["loss"])

    def test_goes_out_to_a_hugging_face_folder_and_comes_back(self):
        original = ["--apply-residual-connection-post-layernorm", "--model.activation", "gelu"]
        self.train("run", *original, "--train-iters", 40)
        run("checkpoint", "export", "--load", self.path / "run", "--output", self.path / "hf")
        config = json.loads((self.path / "hf/config.json").read_text())
        self.assertEqual(config["architectures"], ["BertForPreTraining"])
        # The same samples, once with the weights as the run saved them and once with those that went out and came back.
        first = {}
        for name, source in (("saved", "run"), ("returned", "hf")):
            self.train(name, *original, "--load", self.path / source, "--finetune", "--train-iters", 1, "--lr", 0)
            first[name] = self.metrics(name)[0]
        for loss in ("lm_loss", "sop_loss"):
            self.assertAlmostEqual(first["returned"][loss], first["saved"][loss], delta=1e-6)
        self.assertLess(first["saved"]["lm_loss"], self.entropy_of_tokens(), "weights that know nothing are compared")
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
