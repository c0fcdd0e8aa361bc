"""A GPT with depths of multi-token prediction trains in any layout, and writes texts by its own drafts."""
import json
import pathlib
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, run  # noqa: E402

LLAMA = ["--normalization", "RMSNorm", "--position-embedding-type", "rope", "--swiglu", "--disable-bias-linear",
         "--eval-interval", 0]
DEEPSEEK = [*LLAMA, "--multi-latent-attention", "--qk-layernorm", "--q-lora-rank", 24, "--kv-lora-rank", 16,
            "--qk-head-dim", 12, "--qk-pos-emb-head-dim", 4, "--v-head-dim", 12, "--norm-epsilon", "1e-6",
            "--num-experts", 4, "--moe-router-topk", 2, "--moe-ffn-hidden-size", 32,
            "--moe-shared-expert-intermediate-size", 32, "--model.first_k_dense_replace", 1,
            "--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias",
            "--untie-embeddings-and-output-weights", "--mtp-num-layers", 1]
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

    def test_so_does_that_of_a_gpt_with_learned_positions(self):
        options = ["--mtp-num-layers", 2, "--train.dtype", "fp64", "--train-iters", 6, "--save-interval", 2,
                   "--eval-interval", 0]
        self.place.check_layouts(self, options, [
            ["--world-size", 2, "--pp", 2], ["--world-size", 2, "--cp", 2], ["--world-size", 1]])

    def test_texts_are_those_of_plain_decoding_and_drafts_are_accepted(self):
        self.check_texts(MODEL, "llama")
        self.check_texts(["--mtp-num-layers", 2, "--eval-interval", 0], "gpt2")

    def check_texts(self, model, name):
        printed = self.place.train(name, *model, "--train-iters", 150)
        self.assertIn(" mtp_1 loss: ", printed)
        self.assertIn(" mtp_2 loss: ", printed)
        words = ["generate", "--load", self.place.path / name, "--prompt", "the old man", "a dog likes",
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
        message = self.place.train("wrong", *MODEL, "--lora.rank", 4, code=2)
        self.assertIn("excludes model.mtp_num_layers", message)
        self.assertIn("fix:  --mtp-num-layers 0", message)
        self.place.train("deep", *MODEL, "--train-iters", 1)  # whose network would bring its depths again
        message = self.place.train("wrong", *LLAMA, "--lora.rank", 4, "--lora.base", self.place.path / "deep",
                                   "--use-checkpoint-args", code=2)
        self.assertIn("fix:  leave --lora.rank and --lora.base out", message)

    def test_a_folder_of_deepseek_v3_has_them_as_layers_behind_the_last(self):
        self.place.train("run", *DEEPSEEK, "--train-iters", 4, "--save-interval", 4)
        folders = [self.place.path / name for name in ("folder", "again")]
        run("checkpoint", "export", "--load", self.place.path / "run", "--output", folders[0])
        run("checkpoint", "import", "--from", folders[0], "--output", self.place.path / "back")
        run("checkpoint", "export", "--load", self.place.path / "back", "--output", folders[1])
        tensors, again = ((folder / "model.safetensors").read_bytes() for folder in folders)
        self.assertEqual(tensors, again)
        header = json.loads(tensors[8:8 + int.from_bytes(tensors[:8], "little")])
        names = {name.removeprefix("model.layers.2.") for name in header if name.startswith("model.layers.2.")}
        # Those of DeepSeek-V3's own model.safetensors.index.json for its layer 61.
        self.assertLessEqual({"embed_tokens.weight", "enorm.weight", "hnorm.weight", "eh_proj.weight",
                              "shared_head.norm.weight", "shared_head.head.weight", "input_layernorm.weight",
                              "post_attention_layernorm.weight", "self_attn.q_a_proj.weight", "mlp.gate.weight",
                              "mlp.gate.e_score_correction_bias", "mlp.experts.3.down_proj.weight",
                              "mlp.shared_experts.up_proj.weight"}, names)
        self.assertEqual(header["model.layers.2.eh_proj.weight"]["shape"], [64, 128])
        self.assertEqual(json.loads((folders[0] / "config.json").read_text())["num_nextn_predict_layers"], 1)
        words = ["--tokenizer", self.place.tokenizer, "--prompt", "the old man", "--temperature", 0,
                 "--max-new-tokens", 12, "--ignore-eos"]
        texts = [run("generate", "--load", self.place.path / name, *words, *more) for name, more in (
            ("run", []), ("folder", ["--speculative-method", "mtp"]), ("back", ["--speculative-method", "mtp"]))]
        self.assertEqual(texts, texts[:1] * 3)

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
