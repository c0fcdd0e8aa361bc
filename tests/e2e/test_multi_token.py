"""A GPT with depths of multi-token prediction trains in any layout, and writes texts by its own drafts."""
import json
import pathlib
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import MEGATRON, RunFolder, run  # noqa: E402

LLAMA = ["--normalization", "RMSNorm", "--position-embedding-type", "rope", "--swiglu", "--disable-bias-linear",
         "--eval-interval", 0]
MODEL = [*LLAMA, "--mtp-num-layers", 2, "--mtp-loss-scaling-factor", 0.3]


class MultiToken(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)

    def test_a_checkpoint_of_one_layout_resumes_in_another(self):
        options = [*MODEL, "--train.dtype", "fp64", "--train-iters", 6, "--save-interval", 2]
        self.place.check_layouts(self, options, [
            ["--world-size", 2, "--pp", 2], ["--world-size", 4, "--tp", 2, "--sp", "--use-distributed-optimizer",
                                             "--data-parallel-sharding-strategy", "optim_grads_params"],
            ["--world-size", 2, "--pp", 2, "--vpp", 1, "--train.recompute", "full"]])
        for depth in (1, 2):
            one, many = ([step[f"mtp_{depth}_loss"] for step in self.place.metrics(name)] for name in ("one", "many"))
            for got, wanted in zip(many, one, strict=True):
                self.assertAlmostEqual(got / wanted, 1, delta=1e-10)
        self.assertNotIn("mtp_3_loss", self.place.metrics("one")[0])

    def test_texts_are_those_of_plain_decoding_and_drafts_are_accepted(self):
        printed = self.place.train("run", *MODEL, "--train-iters", 150)
        self.assertIn(" mtp_1 loss: ", printed)
        self.assertIn(" mtp_2 loss: ", printed)
        words = ["generate", "--load", self.place.path / "run", "--prompt", "the old man", "a dog likes",
                 "--max-new-tokens", 20, "--ignore-eos", "--dtype", "fp64", "--json"]
        for temperature in (0, 0.7):
            plain = json.loads(run(*words, "--temperature", temperature))
            for more in ([], ["--num-speculative-tokens", 1], ["--pp", 2]):
                drafted = json.loads(run(*words, "--temperature", temperature, "--speculative-method", "mtp", *more))
                counts = drafted.pop("speculation")
                self.assertEqual(drafted, plain)
                written = sum(len(text["new_ids"]) for text in drafted["texts"])
                self.assertEqual(written, 2 + counts["passes"] + counts["accepted_tokens"])
                self.assertAlmostEqual(counts["acceptance_rate"], counts["accepted_tokens"] / counts["draft_tokens"])
                if temperature == 0:
                    self.assertGreater(counts["acceptance_rate"], 0.3)
        result = subprocess.run([MEGATRON, *map(str, words[:-1]), "--temperature", "0", "--speculative-method", "mtp"],
                                capture_output=True, text=True, timeout=300, check=True)
        self.assertRegex(result.stderr, r"speculation: \d+ of \d+ drafted tokens accepted \(\d+ %\) in \d+ passes")

    def test_what_has_no_depths_or_no_place_for_them_says_so(self):
        self.place.train("plain", *LLAMA, "--train-iters", 2)
        message = run("generate", "--load", self.place.path / "plain", "--prompt", "a", "--speculative-method", "mtp",
                      code=2)
        self.assertIn("needs a model with depths of multi-token prediction", message)
        message = run("generate", "--load", self.place.path / "plain", "--prompt", "a", "--num-speculative-tokens", 2,
                      code=2)
        self.assertIn("needs --speculative-method mtp", message)
        learned = self.place.train("wrong", "--mtp-num-layers", 1, code=2)
        self.assertIn("needs model.position_embedding_type rope or none", learned)
        shared = self.place.train("wrong", *MODEL, "--world-size", 2, "--cp", 2, code=2)
        self.assertIn("reads tokens ahead", shared)
        self.assertIn("excludes model.mtp_num_layers", self.place.train("wrong", *MODEL, "--lora.rank", 4, code=2))

    def test_folders_of_others_hold_the_model_without_them(self):
        self.place.train("run", *MODEL, "--train-iters", 4, "--save-interval", 4)
        text = ["--prompt", "the old man", "--temperature", 0, "--max-new-tokens", 12, "--ignore-eos"]
        ours = run("generate", "--load", self.place.path / "run", *text)
        for output, more in (("folder", []), ("dist", ["--format", "torch_dist"])):
            words = ["checkpoint", "export", "--load", self.place.path / "run", "--output", self.place.path / output]
            result = subprocess.run([MEGATRON, *map(str, words), *more], capture_output=True, text=True, timeout=300,
                                    check=True)
            self.assertEqual("depths of multi-token prediction" in result.stderr, not more)
            self.assertEqual(run("generate", "--load", self.place.path / output, "--tokenizer", self.place.tokenizer,
                                 *text), ours)
        self.assertFalse([name for name in (self.place.path / "folder").iterdir() if "mtp" in name.read_bytes()
                          .decode("latin-1")])
        run("checkpoint", "import", "--from", self.place.path / "dist", "--output", self.place.path / "back")
        drafted = run("generate", "--load", self.place.path / "back", "--tokenizer", self.place.tokenizer, *text,
                      "--speculative-method", "mtp")
        self.assertEqual(drafted, ours)


if __name__ == "__main__":
    unittest.main()
