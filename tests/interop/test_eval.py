"""`megatron eval` gives what transformers computes window by window.

Needs torch and transformers; the test with SmolLM2 also its folder."""
import json
import math
import pathlib
import sys
import tempfile
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import LONG, MODELS, run, text_of_sentences  # noqa: E402

torch, transformers, MISSING = peers("torch", "transformers")
SMOLLM2 = MODELS / "smollm2-135m-instruct"


@unittest.skipIf(MISSING, MISSING)
class Evaluation(unittest.TestCase):
    """A Llama with random weights beside a tokenizer of ours."""

    windows = (64, 64), (64, 32), (50, 7)  # and strides
    tokens, lines, questions = 220, 30, 40

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="megatron-interop-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        cls.sentences = text_of_sentences(80, seed=3)
        (cls.path / "text.txt").write_text("\n".join(cls.sentences))
        cls.folder = cls.path / "model"
        run("tokenizer", "train", "--input", cls.path / "text.txt", "--vocab-size", 300, "--output", cls.folder)
        torch.manual_seed(1)
        config = transformers.LlamaConfig(
            vocab_size=json.loads(run("tokenizer", "info", cls.folder, "--json"))["vocab_size"], hidden_size=32,
            intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, initializer_range=0.3)
        transformers.LlamaForCausalLM(config).save_pretrained(cls.folder)
        cls.open(cls.folder)

    @classmethod
    def open(cls, folder):
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        cls.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def scores(self, ids, first):
        """Of the tokens from `first` on: -ln p, and whether each is the likeliest."""
        with torch.no_grad():
            log_p = self.model(torch.tensor([ids])).logits[0, first - 1:-1].double().log_softmax(-1)
        target = torch.tensor(ids[first:])
        return -log_p.gather(1, target[:, None])[:, 0], log_p.argmax(-1) == target

    def eval(self, task, data, *more):
        return json.loads(run("eval", task, "--load", self.folder, "--data", data, "--json", *more))

    def expect_near(self, got, want, what):
        self.assertLess(abs(got / want - 1), 2e-6, what)

    def test_moves_the_same_windows(self):
        ids = self.ids("\n".join(self.sentences))[:self.tokens]
        for window, stride in self.windows:
            total, seen = 0.0, 0
            for begin in range(0, len(ids), stride):
                end = min(begin + window, len(ids))
                first = begin + 1 if stride == window else max(seen, 1)
                if first < end:
                    total += float(self.scores(ids[begin:end], first - begin)[0].sum())
                seen = end
                if end == len(ids):
                    break
            got = self.eval("loss", self.path / "text.txt", "--window", window, "--stride", stride, "--limit-tokens",
                            len(ids))
            self.expect_near(got["nll_sum"], total, (window, stride))
            self.assertAlmostEqual(got["bits_per_byte"] * got["bytes"] * math.log(2) / len(ids), got["loss"])

    def test_paper_gives_each_token_1024_before_it(self):
        """Shoeybi et al. 2019, appendix E.1: P(t_i | t_(i-1024) … t_(i-1)), 32 tokens at a time after the first 1025,
        all but the last of which have fewer before them."""
        folder = self.path / "long"
        torch.manual_seed(2)
        config = transformers.LlamaConfig(
            vocab_size=self.model.config.vocab_size, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=1024, initializer_range=0.5)
        model = transformers.LlamaForCausalLM(config).eval()
        model.save_pretrained(folder)
        (folder / "tokenizer.json").write_bytes((self.folder / "tokenizer.json").read_bytes())
        text = self.path / "long.txt"
        text.write_text("\n".join(text_of_sentences(200, seed=5)))
        ids = self.ids(text.read_text())[:1100]
        self.assertEqual(len(ids), 1100)
        total = 0.0
        for begin, scored in ((0, range(1, 1025)), (32, range(1025, 1057)), (64, range(1057, 1089)),
                              (96, range(1089, 1100))):
            with torch.no_grad():
                log_p = model(torch.tensor([ids[begin:begin + 1024]])).logits[0].double().log_softmax(-1)
            total -= sum(float(log_p[i - 1 - begin, ids[i]]) for i in scored)
        got = json.loads(run("eval", "wikitext", "--paper", "--load", folder, "--data", text, "--limit-tokens", 1100,
                             "--json"))
        self.assertEqual((got["scored_tokens"], got["windows"], got["words_estimated"]), (1099, 4, True))
        self.expect_near(got["nll_sum"], total, "the paper's windows")

    def test_foresees_the_same_last_words(self):
        lines = [line.rstrip(".") for line in self.sentences[:self.lines]]
        # A word that the model does foresee, so that both answers occur.
        (guess,) = self.model(torch.tensor([self.ids("the cat")])).logits[0, -1:].argmax(-1).tolist()
        lines.append("the cat" + self.tokenizer.decode([guess]))
        right, nll = 0, 0.0
        kept = [line for line in lines if " " in line[1:] and not line.endswith(" ")]
        for line in kept:
            ids, before = self.ids(line), self.ids(line.rsplit(" ", 1)[0])
            losses, hits = self.scores(ids, next(i for i, t in enumerate(ids) if before[i:i + 1] != [t]))
            right, nll = right + bool(hits.all()), nll + float(losses.sum())
        (self.path / "lambada.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in kept))
        got = self.eval("lambada", self.path / "lambada.jsonl")
        self.assertEqual((got["examples"], got["right"]), (len(kept), right))
        self.expect_near(got["nll_sum"], nll, "last words")

    def test_chooses_the_same_answers(self):
        questions = [{"context": line.split(" on ")[0], "choices": ["on monday.", "on friday, or later.", "never"],
                      "label": i % 3} for i, line in enumerate(self.sentences[:self.questions])]
        right = [0, 0, 0]
        for question in questions:
            before = self.ids(question["context"])
            costs = []
            for choice in question["choices"]:
                ids = self.ids(question["context"] + " " + choice)
                nll = float(self.scores(ids, len(before))[0].sum())
                costs.append((nll / (len(ids) - len(before)), nll / len(choice), nll))
            for kind in range(3):
                right[kind] += min(range(3), key=lambda i: costs[i][kind]) == question["label"]
        (self.path / "choice.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
        got = self.eval("choice", self.path / "choice.jsonl")
        self.assertEqual(got["right"], right[0])
        self.assertAlmostEqual(got["accuracy_bytes"], right[1] / self.questions)
        self.assertAlmostEqual(got["accuracy_sum"], right[2] / self.questions)


@unittest.skipIf(MISSING, MISSING)
@unittest.skipUnless(SMOLLM2.exists(), f"{SMOLLM2} is not there")
class SmolLM2(Evaluation):
    """The same of a trained model."""
    if not LONG:
        windows = (64, 64), (50, 20)
        tokens, lines, questions = 120, 10, 8

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = SMOLLM2
        cls.open(SMOLLM2)

    test_paper_gives_each_token_1024_before_it = None  # has a model of its own

    def test_moves_the_same_windows(self):
        super().test_moves_the_same_windows()

    def test_foresees_the_same_last_words(self):
        super().test_foresees_the_same_last_words()

    def test_chooses_the_same_answers(self):
        super().test_chooses_the_same_answers()


if __name__ == "__main__":
    unittest.main()
