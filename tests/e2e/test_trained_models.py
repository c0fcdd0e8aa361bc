"""Trained models as their users run them: SmolLM2's reference results (shared/golden/models/smollm2.json)."""
import json
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import GOLDEN_MODELS, MODELS, run  # noqa: E402

SMOLLM2 = MODELS / "smollm2-135m-instruct"
WIKITEXT = pathlib.Path(__file__).resolve().parents[3] / "shared/data/wikitext/wikitext-103.wiki.test.tokens"
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
        for layout in (["--tp", 3], ["--pp", 2], ["--tp", 3, "--pp", 2]):
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
            for index in range(3):
                self.perplexity(text, index)

    def test_has_it_over_ranks(self):
        self.perplexity("raw", 2, "--dp", 2)
        self.perplexity("raw", 2, "--pp", 2)
        self.perplexity("raw", 2, "--tp", 3)

    def test_bf16_is_close(self):
        want = self.golden["perplexity"]["raw"]["runs"][2]
        got = json.loads(run("eval", "loss", "--load", SMOLLM2, "--data", WIKITEXT, "--window", want["window"],
                             "--stride", want["stride"], "--limit-tokens", want["first_tokens"], "--json",
                             "--dtype", "bf16"))
        self.assertLess(abs(got["loss"] - want["loss"]), 2e-2)


if __name__ == "__main__":
    unittest.main()
