"""A task learned through the command line alone: seeds, ensemble, going on, layouts."""
import json
import pathlib
import random
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import run  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "yes", "no", "may", "cat", "dog", "old", "new", "sees", "the"]
LABELS = {"yes": "entailment", "no": "contradiction", "may": "neutral"}
RECIPE = """
[model]
architecture = "bert"
num_layers = 1
hidden_size = 32
num_attention_heads = 4
hidden_dropout = 0.0
attention_dropout = 0.0
[task]
name = "mnli"
epochs = 12
[data]
seq_length = 24
[schedule]
lr = 1e-2
lr_decay_style = "linear"
[train]
dtype = "fp64"
micro_batch_size = 8
global_batch_size = 8
[parallel]
threads_per_rank = 1
"""


def table(count, seed, labelled=True):
    """Pairs whose second text says the label by its first word."""
    draw = random.Random(seed)
    lines = ["\t".join(["index", "sentence1", "sentence2"] + ["gold_label"] * labelled)]
    for index in range(count):
        key = draw.choice(list(LABELS))
        first, second = (" ".join(draw.choices(WORDS[8:], k=draw.randint(2, 6))) for _ in range(2))
        lines.append("\t".join([str(index), first, f"{key} {second}"] + [LABELS[key]] * labelled))
    return "\n".join(lines) + "\n"


class Finetune(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-finetune-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        (self.path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
        (self.path / "train.tsv").write_text(table(240, 1))
        (self.path / "valid.tsv").write_text(table(60, 2))
        (self.path / "test.tsv").write_text(table(10, 3, labelled=False))
        (self.path / "recipe.toml").write_text(RECIPE)

    def finetune(self, out, *options, code=0):
        return run("finetune", self.path / "recipe.toml", "--train-data", self.path / "train.tsv", "--valid-data",
                   self.path / "valid.tsv", "--tokenizer", self.path / "vocab.txt", "--train.out", self.path / out,
                   *options, code=code)

    def test_seeds_an_ensemble_and_going_on(self):
        options = ["--seeds", "1,2", "--ensemble", "--task.test", self.path / "test.tsv", "--eval-interval", 100]
        report = json.loads(self.finetune("out", *options, "--json"))
        self.assertEqual((report["task"], report["metric"], list(report["seeds"])), ("mnli", "accuracy", ["1", "2"]))
        self.assertGreater(report["median"]["accuracy"], 55)
        self.assertGreater(report["ensemble"]["accuracy"], 55)
        self.assertEqual(json.loads((self.path / "out/results.json").read_text()), report)
        self.assertIn("| median of 2 |", (self.path / "out/results.md").read_text())
        predictions = (self.path / "out/seed_1/predictions.tsv").read_text().splitlines()
        truth = [line.split("\t")[-1] for line in (self.path / "valid.tsv").read_text().splitlines()[1:]]
        right = sum(line.split("\t")[1] == label for line, label in zip(predictions[1:], truth))
        self.assertAlmostEqual(100 * right / 60, report["seeds"]["1"]["accuracy"])
        self.assertEqual(len((self.path / "out/seed_2/test/predictions.tsv").read_text().splitlines()), 11)

        # What is done stays done; what is not is run; with other options it is another result.
        before = (self.path / "out/seed_1/result.json").stat().st_mtime_ns
        (self.path / "out/seed_2/result.json").unlink()
        self.assertEqual(json.loads(self.finetune("out", *options, "--json")), report)
        self.assertEqual((self.path / "out/seed_1/result.json").stat().st_mtime_ns, before)
        self.assertIn("another recipe", self.finetune("out", *options, "--lr", 1e-3, code=2))

        # From the folder, without training and on other ranks: the same.
        again = json.loads(self.finetune("again", "--load", self.path / "out/seed_1", "--epochs", 0, "--world-size", 4,
                                         "--tp", 2, "--sp", "--micro-batch-size", 4, "--json"))
        self.assertEqual(again["median"], report["seeds"]["1"])

    def test_wrong_input_ends_before_it_begins(self):
        self.assertIn("must name the task's file", run("finetune", self.path / "recipe.toml", code=2))
        self.assertIn("data.sft", self.finetune("out", "--sft", code=2))
        self.assertFalse((self.path / "out").exists())


if __name__ == "__main__":
    unittest.main()
