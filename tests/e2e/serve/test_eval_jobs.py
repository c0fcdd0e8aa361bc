"""`megatron eval` as its users run it, on a small model that this test trains."""
import json
import math
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import RunFolder, run, text_of_sentences  # noqa: E402


class EvalJobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.place.train("run", "--train-iters", 8, "--train.dtype", "fp64", "--parallel.threads-per-rank", 1)
        sentences = text_of_sentences(60, seed=5)
        cls.text = cls.place.path / "plain.txt"
        cls.text.write_text("\n".join(sentences))
        cls.passages = cls.place.path / "passages.txt"
        cls.passages.write_text("\n".join(sentences) + "\n")
        cls.questions = cls.place.path / "questions.jsonl"
        cls.questions.write_text("".join(json.dumps(
            {"context": line.rsplit(" ", 1)[0], "label": len(line) % 2,
             "choices": sorted(["monday.", "friday."], reverse=len(line) % 2 == line.endswith("friday."))}) + "\n"
            for line in sentences))

    def eval(self, task, *more, code=0):
        answer = run("eval", task, "--load", self.place.path / "run", "--json", *more, code=code)
        return json.loads(answer) if code == 0 else answer

    def same_in_layout(self, layout, task, *words):
        """One rank's report; that of the others must be it, over tp to rounding."""
        words = [*words, "--threads-per-rank", 1]
        want, got = self.eval(task, *words), self.eval(task, *words, *layout)
        for name in set(want) - {"seconds", "tokens_per_s"}:
            if "--tp" in layout and isinstance(want[name], float):
                self.assertLess(abs(got[name] - want[name]), 1e-12 * abs(want[name]) + 1e-15, name)
            else:
                self.assertEqual(got[name], want[name], name)
        return want

    def test_loss_is_the_same_over_stages_and_copies(self):
        got = self.same_in_layout(["--pp", 2, "--dp", 2], "loss", "--data", self.text, "--window", 24, "--stride", 5,
                                  "--limit", 40)
        self.same_in_layout(["--world-size", 4, "--pp", 2], "loss", "--data", self.text, "--limit", 40)
        self.assertEqual((got["windows"], got["tokens"], got["scored_tokens"]), (40, 24 + 39 * 5, 24 + 39 * 5 - 1))
        self.assertAlmostEqual(got["loss"], got["nll_sum"] / got["scored_tokens"], places=12)
        self.assertAlmostEqual(got["perplexity_high"], math.exp(got["loss"] + 1.96 * got["standard_error"]), places=9)
        self.assertAlmostEqual(got["bits_per_byte"],
                               got["loss"] * got["tokens"] / got["bytes"] / math.log(2), places=12)
        self.assertEqual(got["bytes"], len(self.text.read_bytes()[:got["bytes"]]))

    def test_last_words_and_answers_are_the_same_over_ranks(self):
        got = self.same_in_layout(["--tp", 2], "lambada", "--data", self.passages, "--format", "plain", "--limit", 30)
        self.assertEqual(got["examples"], 30)
        self.assertAlmostEqual(got["accuracy"], got["right"] / 30)
        got = self.same_in_layout(["--world-size", 3], "choice", "--data", self.questions)
        self.assertEqual((got["examples"], got["answers"]), (60, 120))

    def test_tokens_of_a_pair_are_those_of_its_text(self):
        run("data", "preprocess", "--input", self.text, "--format", "file", "--tokenizer", self.place.tokenizer,
            "--output-prefix", self.place.path / "pair")
        words = ["--window", 24, "--stride", 7, "--limit-tokens", 300]
        want = self.eval("loss", "--data", self.text, *words)
        for name in ("pair_text_document", "pair_text_document.bin"):
            self.assertEqual(self.eval("loss", "--data", self.place.path / name, *words)["nll_sum"], want["nll_sum"])

    def test_words_are_the_papers_where_its_way_is_asked_for(self):
        text = self.place.path / "wiki.txt"
        text.write_text(" \n = A @-@ b = \n \n the cat sees a dog , on monday . \n")
        plain, paper = (self.eval("wikitext", "--data", text, *more) for more in ([], ["--paper"]))
        self.assertEqual((plain["words"], paper["words"]), (14, 16))
        self.assertEqual((plain["stride"], paper["stride"]), (33, 32))
        self.assertEqual(paper["bytes"], len("= A-b =\n\nthe cat sees a dog, on monday ."))
        self.assertAlmostEqual(paper["word_perplexity"], math.exp(paper["nll_sum"] / 16), places=9)

    def test_a_model_that_gives_no_numbers_has_no_scores(self):
        folder = self.place.path / "nan"
        run("checkpoint", "export", "--load", self.place.path / "run", "--output", folder)
        weights = bytearray((folder / "model.safetensors").read_bytes())
        size = int.from_bytes(weights[:8], "little")
        header = json.loads(weights[8:8 + size])
        begin, end = next(entry["data_offsets"] for name, entry in header.items() if name.endswith("ln_f.bias"))
        weights[8 + size + begin:8 + size + end] = b"\xff" * (end - begin)  # a NaN in every type
        (folder / "model.safetensors").write_bytes(weights)
        for words in (["eval", "loss", "--data", self.text, "--limit", 2],
                      ["eval", "lambada", "--data", self.passages, "--format", "plain", "--limit", 2],
                      ["generate", "--prompt", "the"]):
            self.assertIn("logits are not finite", run(*words, "--load", folder, code=1), words)

    def test_says_what_is_wrong(self):
        bad = self.place.path / "bad"
        bad.write_text('{"context": "a"}\n')
        texts = self.place.path / "texts.jsonl"
        texts.write_text('{"text": "the cat sees"}\n')
        for task, words, part in (
                ("loss", ["--data", self.text, "--window", 34], "--window must be from 2 to 33"),
                ("loss", ["--data", self.text, "--limit", -1], "--limit"),
                ("loss", [], "--data must name"),
                ("loss", ["--data", self.place.path / "tokens_text_document", "--detokenize"], "for texts"),
                ("choice", ["--data", bad], "bad, line 1"), ("lambada", ["--data", bad], "bad, line 1"),
                ("lambada", ["--data", texts, "--format", "plain"], "--format jsonl"),
                ("lambada", ["--data", self.passages, "--format", "other"], "--format must be")):
            self.assertIn(part, self.eval(task, *words, code=2), (task, words))


if __name__ == "__main__":
    unittest.main()
