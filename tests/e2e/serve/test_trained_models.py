"""Trained models as their users run them: SmolLM2's reference results (shared/golden/models/smollm2.json)."""
import json
import pathlib
import shutil
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import DATA, GOLDEN_MODELS, LONG, MODELS, RunFolder, run  # noqa: E402

SMOLLM2 = MODELS / "smollm2-135m-instruct"
WIKITEXT = DATA / "wikitext/wikitext-103.wiki.test.tokens"
LAMBADA = WIKITEXT.parents[1] / "lambada/lambada_test.jsonl"
CHAT = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n")


@unittest.skipUnless(SMOLLM2.exists() and GOLDEN_MODELS.exists(), f"{SMOLLM2} or {GOLDEN_MODELS} is not there")
class SmolLM2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = json.loads((GOLDEN_MODELS / "smollm2.json").read_text())

    def generate(self, row, *more):
        prompt = row["prompt"] if "prompt" in row else CHAT.format(row["chat"][0]["content"])
        answer = json.loads(run("generate", "--load", SMOLLM2, "--prompt", prompt, "--max-new-tokens", 32,
                                "--temperature", 0, "--json", *more))
        self.assertEqual(answer["prompt_ids"], row["prompt_ids"])
        return answer

    def test_writes_the_reference_tokens(self):
        for row in self.golden["greedy"]["rows"]:
            self.assertEqual(self.generate(row, "--ignore-eos")["new_ids"], row["new_ids"])

    def test_stops_at_the_end_that_the_folder_names(self):
        row = next(row for row in self.golden["greedy"]["rows"] if row["first_eos_index_in_new_ids"] is not None)
        answer = self.generate(row)
        self.assertEqual(answer["new_ids"], row["new_ids"][:row["first_eos_index_in_new_ids"] + 1])
        self.assertTrue(row["new_text"].startswith(answer["text"]))

    def test_writes_them_in_every_layout(self):
        row = self.golden["greedy"]["rows"][0]
        for layout in [["--tp", 3], ["--pp", 2], ["--tp", 3, "--pp", 2]] if LONG else [["--tp", 3, "--pp", 2]]:
            self.assertEqual(self.generate(row, "--ignore-eos", *layout)["new_ids"], row["new_ids"], layout)

    def test_says_why_two_ranks_cannot_split_its_heads(self):
        self.assertIn("num_attention_heads", run("generate", "--load", SMOLLM2, "--prompt", "a", "--tp", 2, code=2))

    def perplexity(self, text, index, *more):
        want = self.golden["perplexity"][text]["runs"][index]
        got = json.loads(run("eval", "wikitext", "--load", SMOLLM2, "--data", WIKITEXT, "--window", want["window"],
                             "--stride", want["stride"], "--limit-tokens", want["first_tokens"], "--json", *more,
                             *(["--detokenize"] if text == "detokenized" else [])))
        self.assertEqual(got["scored_tokens"], want["scored_tokens"])
        self.assertLess(abs(got["perplexity"] / want["perplexity"] - 1), 1e-4, (text, index))
        if text == "raw" and want["first_tokens"] == 4096:
            self.assertEqual(got["words"], self.golden["perplexity"]["raw"]["whitespace_separated_words_in_raw_prefix"])

    def test_has_the_reference_perplexity_in_every_setting(self):
        for text in ("raw", "detokenized"):
            for index in range(3) if LONG else {"raw": [0], "detokenized": [2]}[text]:
                self.perplexity(text, index)

    def test_has_it_over_ranks(self):
        for layout in [["--dp", 2], ["--pp", 2], ["--tp", 3]] if LONG else []:
            self.perplexity("raw", 2, *layout)
        self.last_words(8, "--tp", 3, "--pp", 2)

    def test_foresees_the_last_words_that_the_reference_foresees(self):
        self.last_words(40)

    def last_words(self, some, *more):
        want = self.golden["lambada"]
        got = json.loads(run("eval", "lambada", "--load", SMOLLM2, "--data", LAMBADA, "--limit", some, "--json", *more))
        self.assertEqual(got["examples"], some)
        self.assertEqual(got["right"], want["right_by_example"][:some].count("1"))
        rows = want["rows"][:some]
        self.assertEqual(got["scored_tokens"], sum(len(row["target"]) for row in rows))
        self.assertLess(abs(got["nll_sum"] / sum(row["nll"] for row in rows) - 1), 1e-5)

    def test_bf16_is_close(self):
        want = self.golden["perplexity"]["raw"]["runs"][0]
        got = json.loads(run("eval", "loss", "--load", SMOLLM2, "--data", WIKITEXT, "--window", want["window"],
                             "--stride", want["stride"], "--limit-tokens", want["first_tokens"], "--json",
                             "--dtype", "bf16"))
        self.assertLess(abs(got["loss"] - want["loss"]), 2e-2)


@unittest.skipUnless(SMOLLM2.exists(), f"{SMOLLM2} is not there")
class FineTuning(unittest.TestCase):
    of_one_rank = None

    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder(SMOLLM2, pathlib.Path(__file__).resolve().parents[3] / "configs/smollm2_135m.toml")
        cls.addClassCleanup(cls.place.close)

    def train(self, name, *options, code=0):
        return self.place.train(name, "--load", SMOLLM2, "--seq-length", 32, "--micro-batch-size", 2,
                                "--global-batch-size", 4, "--lr", 3e-4, "--lr-warmup-samples", 0,
                                "--lr-decay-samples", 20, "--eval-interval", 0,
                                *([] if "--train-iters" in options else ["--train-iters", 5]), *options, code=code)

    def losses_of(self, name, *options):
        """Trains without checkpoints, of which each would take more than a gigabyte."""
        self.train(name, "--save-interval", -1, *options)
        losses = self.place.losses(name)
        shutil.rmtree(self.place.path / name)
        return losses

    def losses_of_one_rank(self):
        """In float32: what both tests compare with."""
        if self.of_one_rank is None:
            type(self).of_one_rank = self.losses_of("fp32")
        return self.of_one_rank

    def assert_close(self, got, want, most, what):
        self.assertGreater(len(got), 1, what)
        for iteration, loss in got.items():
            self.assertLess(abs(loss / want[iteration] - 1), most, (what, iteration))

    def test_learns_the_same_in_every_layout(self):
        layouts = {"tp3": ["--world-size", 3, "--tp", 3], "pp2": ["--world-size", 2, "--pp", 2],
                   "tp3dp2": ["--world-size", 6, "--tp", 3, "--use-distributed-optimizer"]}
        layouts = layouts if LONG else {name: layouts[name] for name in ["pp2", "tp3"]}
        want = self.losses_of_one_rank()
        self.assertLess(want[5], want[1] - 1)
        for name, layout in layouts.items():
            self.assert_close(self.losses_of(name, *layout, "--train-iters", 3), want, 1e-5, name)
        # A step has 128 tokens, over which roundings to bf16 do not average out: one rank is up to 1.6 % from float32.
        for name, layout in {"one": [], **(layouts if LONG else {})}.items():
            got = self.losses_of(name, "--train.dtype", "bf16", *layout, "--train-iters", 3)
            self.assert_close(got, want, 0.03, ("bf16", name))

    def test_goes_on_in_another_layout_and_writes_what_it_learned(self):
        want = self.losses_of_one_rank()
        self.train("run", "--world-size", 3, "--tp", 3, "--train-iters", 3)
        self.train("run", "--world-size", 2, "--use-distributed-optimizer")
        self.assert_close(self.place.losses("run"), want, 1e-5, "tp 3, then two shards")
        answer = json.loads(run("generate", "--load", self.place.path / "run", "--prompt", "the old man", "--json",
                                "--temperature", 0, "--max-new-tokens", 3))
        self.assertRegex(answer["text"], "^ (sees|likes|follows|never answers|on)")

    def test_says_why_two_ranks_cannot_split_its_heads(self):
        self.assertIn("num_attention_heads", self.train("two", "--world-size", 2, "--tp", 2, code=2))


if __name__ == "__main__":
    unittest.main()
