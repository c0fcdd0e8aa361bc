"""A mixture of experts trains on ranks that share the experts, and its checkpoints load in other layouts."""
import json
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import RunFolder, run  # noqa: E402
from server import Server  # noqa: E402

MODEL = ["--normalization", "RMSNorm", "--position-embedding-type", "rope", "--swiglu", "--disable-bias-linear",
         "--num-experts", 4, "--moe-ffn-hidden-size", 48, "--moe-shared-expert-intermediate-size", 32,
         "--moe-aux-loss-coeff", 0.05, "--train.dtype", "fp64", "--train-iters", 6, "--save-interval", 2,
         "--eval-interval", 0]


BALANCED = ["--moe-router-score-function", "sigmoid", "--moe-router-topk", 2, "--moe-router-num-groups", 2,
            "--moe-router-group-topk", 1, "--moe-router-enable-expert-bias", "--moe-router-bias-update-rate", 0.05,
            "--moe-expert-capacity-factor", 1.25, "--moe-per-layer-logging"]


class Experts(unittest.TestCase):
    def test_a_checkpoint_of_one_layout_resumes_in_another(self):
        self.check_layouts(MODEL)

    def test_so_does_one_with_groups_biases_and_a_capacity(self):
        place = self.check_layouts([*MODEL, *BALANCED])
        one, many = place.metrics("one"), place.metrics("many")
        for field in ("expert_loads", "expert_dropped", "expert_imbalance"):
            self.assertEqual([step[field] for step in one], [step[field] for step in many])
        self.assertTrue(all(0 < step["expert_dropped"] < 0.5 for step in one))
        for step in one:
            self.assertAlmostEqual(step["expert_imbalance"], max(
                max(loads) * len(loads) / sum(loads) for loads in step["expert_loads"]), delta=1e-9)
            copies = [sum(loads) for loads in step["expert_loads"]]
            self.assertEqual(copies, [8 * 32 * 2] * len(copies))  # batch, tokens of a sample, top-k
        picture = place.path / "loads.svg"
        table = run("plot", place.path / "one", "--field", "expert_loads", "--output", picture)
        self.assertEqual(len(table.splitlines()), 2 + len(one[0]["expert_loads"]))
        self.assertIn("expert 3: ", picture.read_text())

    def check_layouts(self, model):
        place = RunFolder()
        self.addCleanup(place.close)
        place.check_layouts(self, model, [
            ["--world-size", 2, "--ep", 2, "--use-distributed-optimizer"], ["--world-size", 2, "--tp", 2],
            ["--world-size", 4, "--ep", 4]])
        return place

    def test_ranks_that_do_not_fit_are_refused(self):
        place = RunFolder()
        self.addCleanup(place.close)
        message = place.train("wrong", *MODEL, "--world-size", 4, "--ep", 3, code=2)
        self.assertIn("parallel.ep must divide the data-parallel size", message)
        biased = [word for word in MODEL if word != "--disable-bias-linear"]
        message = place.train("wrong", *biased, "--moe-shared-expert-intermediate-size", 16, code=2)
        self.assertIn("A shared expert has no biases", message)


class TrainedExperts(unittest.TestCase):
    """Of a trained model whose experts are whole on tensor-parallel ranks, or split otherwise than the rest."""

    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        few = ["--train-iters", 2, "--train.dtype", "fp64", "--num-experts", 4, "--moe-ffn-hidden-size", 48]
        cls.place.train("shared", *MODEL, *few)
        cls.place.train("biased", *few)

    def generate(self, model, *layout):
        return run("generate", "--load", self.place.path / model, "--prompt", "the old man", "--temperature", 0,
                   "--max-new-tokens", 24, "--ignore-eos", *layout)

    def test_the_same_is_written_on_ranks_that_share_them(self):
        for model in ("shared", "biased"):
            one = self.generate(model)
            for layout in [("--tp", 2, "--etp", 1), ("--tp", 2, "--etp", 1, "--ep", 1, "--pp", 2),
                           ("--tp", 4, "--ep", 2, "--etp", 2)]:
                self.assertEqual(self.generate(model, *layout), one, (model, layout))

    def test_the_same_is_served(self):
        request = {"prompt": "the old man", "max_tokens": 24, "temperature": 0, "logprobs": 1}
        answers = []
        for layout in [(), ("--tp", 2, "--etp", 1)]:
            server = Server(self.place.path / "shared", "--max-texts", 3, *layout)
            self.addCleanup(server.close)
            answers.append(server.post("/v1/completions", request)["choices"][0])
            server.close()
        one, two = answers
        self.assertEqual(one["text"], two["text"])
        for a, b in zip(one["logprobs"]["token_logprobs"], two["logprobs"]["token_logprobs"], strict=True):
            self.assertAlmostEqual(a, b, delta=1e-10)

    def test_the_loss_of_a_text_is_the_same_on_ranks_that_share_windows_too(self):
        def loss(*layout):
            return json.loads(run("eval", "loss", "--load", self.place.path / "shared", "--data",
                                  self.place.path / "tokens_text_document", "--limit", 6, "--batch-size", 2, "--json",
                                  *layout))["loss"]
        self.assertAlmostEqual(loss(), loss("--tp", 2, "--etp", 1, "--dp", 2), delta=1e-12)

    def test_what_does_not_fit_the_ranks_is_refused_with_a_way_that_works(self):
        for layout, fix in [(["--tp", 2, "--etp", 4], ["--etp", "2"]), (["--tp", 2, "--ep", 2], ["--etp", "1"]),
                            (["--tp", 2, "--ep", 4, "--etp", 1], ["--ep", "1", "--etp", "0"])]:
            message = run("generate", "--load", self.place.path / "shared", "--prompt", "the", *layout, code=2)
            self.assertIn("--ep x --etp must divide --tp", message)
            self.assertIn("fix:  " + " ".join(fix), message)
            self.generate("shared", *layout, *fix)


if __name__ == "__main__":
    unittest.main()
