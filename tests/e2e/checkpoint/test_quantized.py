"""--weights q8_0, q4_1 and q4_0: the same model in every layout and job, and what cannot be held so."""
import json
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import RunFolder, run  # noqa: E402
from server import Server  # noqa: E402

BLOCKS = ["--weights", "q8_0"]
WORDS = ["--prompt", "the old man", "--max-new-tokens", 24, "--temperature", 0, "--json", "--logprobs", 0]


class Quantized(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.place.train("run")
        cls.model = cls.place.path / "run"

    def generate(self, *options):
        return json.loads(run("generate", "--load", self.model, *WORDS, *options))

    def test_writes_the_same_in_every_layout_and_job(self):
        alone = self.generate(*BLOCKS)
        whole = self.generate()
        for blocks, full in zip(alone["logprobs"][:8], whole["logprobs"][:8]):
            self.assertAlmostEqual(blocks, full, delta=0.05)
        self.assertNotEqual(alone["logprobs"], whole["logprobs"])
        # Where ranks add up in another order an input may be rounded to another of its 255 levels.
        for layout, delta in ((["--tp", 2], 0.01), (["--pp", 2], 0)):
            other = self.generate(*BLOCKS, *layout)
            self.assertEqual(other["new_ids"], alone["new_ids"], layout)
            for a, b in zip(other["logprobs"], alone["logprobs"]):
                self.assertAlmostEqual(a, b, delta=delta)
        server = Server(self.model, *BLOCKS)
        self.addCleanup(server.close)
        answer = server.post("/v1/completions", {"prompt": "the old man", "max_tokens": 24, "temperature": 0})
        self.assertEqual(answer["choices"][0]["text"], alone["text"])

    def test_its_perplexity_is_nearly_that_of_the_weights(self):
        text = self.place.path / "text.txt"
        text.write_text("\n".join(json.loads(line)["text"] for line in
                                  (self.place.path / "text.jsonl").read_text().splitlines()[:200]))
        words = ["eval", "loss", "--load", self.model, "--data", text, "--window", 32, "--json"]
        whole, blocks = (json.loads(run(*words, *more))["perplexity"] for more in ([], BLOCKS))
        self.assertLess(abs(blocks / whole - 1), 0.01)
        self.assertNotEqual(blocks, whole)
        for weights in ("q4_1", "q4_0"):
            self.assertLess(abs(json.loads(run(*words, "--weights", weights))["perplexity"] / whole - 1), 0.04, weights)

    def test_what_cannot_be_is_refused(self):
        words = ["generate", "--load", self.model, "--prompt", "the"]
        self.assertIn("whole blocks of 32", run(*words, *BLOCKS, "--tp", 4, code=2))
        self.assertIn("one of full, q8_0, q4_1, q4_0", run(*words, "--weights", "q4_2", code=2))
        self.assertIn("on the CPU alone", run(*words, *BLOCKS, "--device", "cuda", code=2))

    def test_a_bench_counts_what_is_read(self):
        words = ["bench", "generate", "--load", self.model, "--prompt-tokens", 2, "--new-tokens", 2,
                 "--prefill-tokens", 4, "--repeats", 1, "--json"]
        whole, blocks = (json.loads(run(*words, *more)) for more in ([], BLOCKS))
        self.assertEqual((whole["weights"], blocks["weights"]), ("full", "q8_0"))
        self.assertLess(blocks["weight_bytes"], 0.3 * whole["weight_bytes"])
        four = json.loads(run(*words, "--weights", "q4_0"))
        self.assertLess(four["weight_bytes"], blocks["weight_bytes"])


if __name__ == "__main__":
    unittest.main()
