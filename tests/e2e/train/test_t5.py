"""A T5 from text to checkpoints and back, through the command line alone."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, run, text_of_sentences  # noqa: E402

RECIPE = """
[model]
architecture = "t5"
num_layers = 2
hidden_size = 64
num_attention_heads = 4
kv_channels = 12
normalization = "RMSNorm"
activation = "gelu_tanh"
gated_linear_unit = true
add_bias_linear = false
position_embedding_type = "relative"
[data]
seq_length = 48
decoder_seq_length = 20
split = "9,1,0"
[schedule]
lr = 5e-3
[train]
train_iters = 40
micro_batch_size = 8
global_batch_size = 16
eval_interval = 20
eval_iters = 2
[log]
interval = 10
"""
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOS]"] + [f"<extra_id_{i}>" for i in range(12)]


class T5(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="megatron-t5-")
        self.addCleanup(self._folder.cleanup)
        self.path = pathlib.Path(self._folder.name)
        sentences = [line.capitalize() for line in text_of_sentences(1200)]
        documents = [" ".join(sentences[i:i + 6]) for i in range(0, len(sentences), 6)]
        text = self.path / "text.jsonl"
        text.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
        run("tokenizer", "train", "--kind", "wordpiece", "--input", text, "--vocab-size", 150, "--special-tokens",
            *SPECIAL, "--output", self.path / "tokenizer")
        run("data", "preprocess", "--input", text, "--tokenizer", self.path / "tokenizer", "--output-prefix",
            self.path / "tokens", "--split-sentences")
        (self.path / "recipe.toml").write_text(RECIPE)

    def train(self, name, *options, code=0):
        return run("train", self.path / "recipe.toml", "--data-path", self.path / "tokens_text_sentence", "--tokenizer",
                   self.path / "tokenizer", "--train.out", self.path / name, *options, code=code)

    def metrics(self, name, key="loss"):
        lines = (self.path / name / "metrics.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if key in entry]

    def answer(self, name, *options):
        prompt = "The cat <extra_id_0> the old man on friday."
        return json.loads(run("generate", "--load", self.path / name, "--prompt", prompt, "--max-new-tokens", 12,
                              "--json", *options))

    def check_answers(self, name):
        """The same in every layout, and with GPT's options none."""
        greedy = self.answer(name)
        self.assertTrue(greedy["text"].startswith("<extra_id_0>"), greedy)
        for layout in (["--tp", 2], ["--pp", 2], ["--tp", 2, "--pp", 3]):
            self.assertEqual(self.answer(name, *layout)["new_ids"], greedy["new_ids"], layout)
        beams = self.answer(name, "--num-beams", 4)
        self.assertEqual(self.answer(name, "--num-beams", 4, "--pp", 4)["new_ids"], beams["new_ids"])
        self.assertGreater(beams["score"], greedy["score"] - 1e-5)
        draw = ["--temperature", 1.5, "--top-p", 0.9, "--seed", 3]
        drawn = self.answer(name, *draw)
        self.assertEqual(self.answer(name, *draw, "--tp", 2, "--pp", 2)["new_ids"], drawn["new_ids"])
        self.assertNotEqual(self.answer(name, *draw[:-1], 4)["new_ids"], drawn["new_ids"])
        load = ["generate", "--load", self.path / name, "--prompt", "One"]
        self.assertEqual(run(*load, *draw), json.loads(run(*load, *draw, "--json"))["text"] + "\n")
        for word, *options in (("--temperature 1", "--top-k", 5), ("--chat", "--chat"),
                               ("num-beams", "--temperature", 1, "--num-beams", 2),
                               ("num-beams", "--num-beams", 0), ("early-stopping", "--early-stopping", "soon")):
            self.assertIn(word, run(*load, *options, code=2))
        return greedy, beams

    def test_learns_spans_goes_on_in_another_layout_and_to_a_hugging_face_folder_and_back(self):
        self.train("run", "--save-interval", 20, "--world-size", 2, "--tp", 2, "--sequence-parallel")
        steps = self.metrics("run")
        self.assertLess(steps[-1]["loss"], steps[0]["loss"] - 0.8)
        self.assertLess(self.metrics("run", "valid_loss")[-1]["valid_loss"], steps[0]["loss"] - 0.8)
        self.train("again", "--load", self.path / "run/checkpoints/iter_0000020", "--world-size", 4, "--pp", 2,
                   "--pipeline-model-parallel-split-rank", 1, "--cp", 2)
        again = self.metrics("again")
        self.assertEqual([step["iteration"] for step in again], list(range(21, 41)))
        for one, other in zip(again, steps[20:]):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=2e-3 * other["loss"])

        greedy, beams = self.check_answers("run")
        run("checkpoint", "export", "--load", self.path / "run", "--output", self.path / "hf")
        config = json.loads((self.path / "hf/config.json").read_text())
        self.assertEqual((config["model_type"], config["feed_forward_proj"], config["d_kv"]), ("t5", "gated-gelu", 12))
        self.assertEqual([config[f"{name}_token_id"] for name in ("decoder_start", "pad", "eos")],
                         [SPECIAL.index(token) for token in ("[PAD]", "[PAD]", "[EOS]")])
        self.assertEqual(self.answer("hf"), greedy)
        self.assertEqual(self.answer("hf", "--num-beams", 4), beams)
        alone = shutil.copy(MEGATRON, self.path / "megatron")  # without libtorch
        for name in ("run", "hf"):
            said = subprocess.run([alone, "generate", "--load", self.path / name, "--prompt", "a", "--logprobs", "1"],
                                  capture_output=True, text=True)
            self.assertEqual(said.returncode, 2)
            self.assertIn("--logprobs is an option of a GPT alone", said.stderr)
        self.train("back", "--load", self.path / "hf", "--train-iters", 1, "--lr", 0)
        last, first = steps[-1]["loss"], self.metrics("back")[0]["loss"]
        self.assertLess(abs(last - first), 0.7)
        gpt = self.train("other", "--load", self.path / "hf", "--model.architecture", "bert",
                         "--position-embedding-type", "learned_absolute", "--data.decoder_seq_length", 0, code=2)
        self.assertIn("model.architecture", gpt)

    def test_jobs_that_are_for_gpts_say_so(self):
        self.train("run", "--train-iters", 1, "--eval-interval", 0)
        said = run("eval", "loss", "--load", self.path / "run", "--data", self.path / "text.jsonl", code=2)
        self.assertIn("T5", said)


if __name__ == "__main__":
    unittest.main()
