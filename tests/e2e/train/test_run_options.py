"""Options of a run that change where it starts, what it reads and when it ends, through the command line alone."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, SMALL_MODEL, run, text_of_sentences  # noqa: E402

T5 = """
[model]
architecture = "t5"
num_layers = 1
hidden_size = 32
num_attention_heads = 4
position_embedding_type = "relative"
[data]
seq_length = 32
decoder_seq_length = 20
split = "9,1,0"
[train]
train_iters = 4
micro_batch_size = 2
global_batch_size = 8
"""


class RunOptions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-options-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.recipe = self.path / "recipe.toml"
        self.recipe.write_text(SMALL_MODEL)

    def train(self, name, *options, code=0, recipe=None):
        return run("train", recipe or self.recipe, "--train.out", self.path / name, *options, code=code)

    def losses(self, name):
        lines = (self.path / name / "metrics.jsonl").read_text().splitlines()
        return [line["loss"] for line in map(json.loads, lines) if "loss" in line]

    def test_a_run_without_files_ends_early_and_goes_on(self):
        mock = ("--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", 61)
        self.train("whole", *mock)
        self.train("parts", *mock, "--exit-interval", 20)
        self.assertEqual(len(self.losses("parts")), 20)
        self.train("parts", *mock, "--exit-interval", 20)
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        self.assertLess(self.losses("whole")[-1], 0.8 * self.losses("whole")[0], "counting can be learned")
        answer = json.loads(run("generate", "--load", self.path / "whole", "--prompt", "3 4 5", "--max-new-tokens", 3,
                                "--temperature", 0, "--json"))
        self.assertEqual(answer["prompt_ids"], [3, 4, 5])
        self.assertEqual(len(answer["new_ids"]), 3)
        error = self.train("none", "--mock-data", code=2)
        self.assertIn("model.vocab_size must be given", error)
        error = self.train("none", *mock, "--data-path", "text", code=2)
        self.assertIn("data.mock_data must go without options that name data", error)

    def test_encoders_too_train_without_files_in_any_layout(self):
        for kind in ("bert", "t5"):
            options = ["--mock-data", "--vocab-size", 61, "--model.architecture", kind, "--train-iters", 3,
                       "--hidden-dropout", 0.1]
            options += ["--position-embedding-type", "relative"] if kind == "t5" else []
            self.train(kind, *options)
            self.train(f"{kind}-spread", *options, "--tp", 2, "--dp", 2, "--world-size", 4)
            for one, other in zip(self.losses(kind), self.losses(f"{kind}-spread"), strict=True):
                self.assertAlmostEqual(one, other, delta=1e-4)

    def test_the_network_of_a_checkpoint_takes_the_place_of_what_is_given(self):
        mock = ("--mock-data", "--vocab-size", 61, "--train-iters", 2)
        self.train("first", *mock, "--swiglu", "--qk-layernorm")
        start = (*mock, "--load", self.path / "first", "--finetune", "--num-layers", 3)
        self.train("refused", *start, code=2)
        done = subprocess.run([MEGATRON, "train", self.recipe, "--train.out", self.path / "second",
                               *map(str, start), "--use-checkpoint-args"], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("note: checkpoint.use_checkpoint_args: model.num_layers 3 -> 2", done.stderr)
        self.assertIn("model.qk_layernorm false -> true", done.stderr)
        recipe = (self.path / "second/recipe.toml").read_text()
        for line in ("num_layers = 2", "qk_layernorm = true", "gated_linear_unit = true"):
            self.assertIn(line, recipe)
        self.assertLess(self.losses("second")[0], self.losses("first")[0], "begins with the weights")

    def test_a_fault_of_a_rank_that_the_run_does_not_have_is_named(self):
        words = ["train", self.recipe, "--train.out", self.path / "faults", "--mock-data", "--vocab-size", 61,
                 "--train-iters", 1, "--guard.inject_faults", "hang:9:0", "exit:1:3"]
        done = subprocess.run([MEGATRON, *map(str, words)], capture_output=True, text=True, timeout=300)
        self.assertIn("note: guard.inject_faults names rank 3, which this run does not have", done.stderr)
        self.assertNotIn("names rank 0", done.stderr)

    def test_dropout_is_that_of_the_run_that_resumes_and_not_that_of_weights_alone(self):
        mock = ("--mock-data", "--vocab-size", 61, "--train-iters", 2, "--use-checkpoint-args")
        first = self.path / "first"
        self.train("first", *mock, "--hidden-dropout", 0.3, "--attention-dropout", 0.2)
        for name, start in (("tuned", ("--load", first, "--finetune")),
                            ("adapted", ("--lora.rank", 2, "--lora.base", first)), ("resumed", ("--load", first))):
            with self.subTest(name):
                self.train(name, *mock, "--train-iters", 3, "--hidden-dropout", 0, "--attention-dropout", 0.1, *start)
                wanted = ("0.3", "0.2") if name == "resumed" else ("0(.0)?", "0.1")
                recipe = (self.path / name / "recipe.toml").read_text()
                self.assertRegex(recipe, rf"(?m)^hidden_dropout = {wanted[0]}$")
                self.assertRegex(recipe, rf"(?m)^attention_dropout = {wanted[1]}$")

    def test_sentinels_follow_a_word_piece_vocabulary(self):
        text = self.path / "text.jsonl"
        sentences = [line.capitalize() for line in text_of_sentences(300)]
        text.write_text("".join(json.dumps({"text": " ".join(sentences[i:i + 6])}) + "\n" for i in range(0, 300, 6)))
        tokenizer = self.path / "tokenizer"
        run("tokenizer", "train", "--kind", "wordpiece", "--input", text, "--vocab-size", 120, "--special-tokens",
            "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "--output", tokenizer)
        run("data", "preprocess", "--input", text, "--tokenizer", tokenizer, "--output-prefix", self.path / "tokens",
            "--split-sentences")
        recipe = self.path / "t5.toml"
        recipe.write_text(T5)
        options = ("--data-path", self.path / "tokens_text_sentence", "--tokenizer", tokenizer)
        self.assertIn("[EOS]", self.train("none", *options, recipe=recipe, code=2))
        self.train("t5", *options, "--vocab-extra-ids", 20, recipe=recipe)
        words = len(json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"])
        self.assertIn(f"\nvocab_size = {words + 22}\n", (self.path / "t5/recipe.toml").read_text())
        answer = json.loads(run("generate", "--load", self.path / "t5", "--prompt", "<extra_id_0> the",
                                "--max-new-tokens", 4, "--temperature", 0, "--json"))
        self.assertIn(words + 2, answer["prompt_ids"], "<extra_id_0> follows [BOS] and [EOS]")


if __name__ == "__main__":
    unittest.main()
