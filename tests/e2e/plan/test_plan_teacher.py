"""The plan counts a teacher whose folder says how large it is, before libtorch is loaded."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import run  # noqa: E402

RECIPE = pathlib.Path(__file__).resolve().parents[3] / "configs/llama_tiny.toml"
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "vocab_size": 128,
         "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0,
         "tie_word_embeddings": False}
# Queries and output, keys and values, gate, value and their sum, two norms; the last norm, the tokens in and out.
NUMBERS = 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64) + 64 + 2 * 128 * 64


class PlanTeacher(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="megatron-e2e-")
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)
        self.describe(LLAMA)

    def describe(self, fields):
        (self.folder / "config.json").write_text(json.dumps(fields))

    def plan(self, *words, code=0):
        return run("plan", RECIPE, "--vocab-size", 128, "--train.dtype", "fp32", *words, code=code)

    def test_its_weights_are_a_row_and_in_the_total(self):
        without = json.loads(self.plan("--json"))["memory_bytes"]
        logits = without["logits"][0]
        taught = json.loads(self.plan("--json", "--distill.teacher", self.folder))["memory_bytes"]
        self.assertEqual(taught["teacher"], [4 * NUMBERS])
        more = taught["logits"][0] - logits  # those of both models
        self.assertEqual(taught["total"][0], without["total"][0] + 4 * NUMBERS + more)
        self.assertRegex(self.plan("--distill.teacher", self.folder), r"\n  teacher +0\.\d+ MB\n")

    def test_it_is_counted_within_the_limit_of_memory(self):
        total = json.loads(self.plan("--json", "--distill.teacher", self.folder))["memory_bytes"]["total"][0]
        limit = ["--train.memory_limit_gb", (total - 4 * NUMBERS // 2) / 1e9]
        self.plan(*limit)
        self.assertIn("train.memory_limit_gb must hold", self.plan("--distill.teacher", self.folder, *limit, code=2))
        self.plan("--distill.teacher", self.folder, "--train.memory_limit_gb", (total + 1) / 1e9)
        search = ["--search", "--global-batch-size", 4, "--world-size", 1, "--hardware", "dgx-h100", "--top", 1000,
                  "--fit"]
        found = json.loads(self.plan("--json", "--distill.teacher", self.folder, *search, "80GB"))
        smallest = min(row["memory_bytes"] for row in found["layouts"])
        self.assertIn("No layout", self.plan("--distill.teacher", self.folder, *search, smallest - 1, code=2))
        self.plan(*search, smallest - 1)

    def test_a_folder_that_training_alone_reads_is_said_not_to_be_counted(self):
        (self.folder / "latest").write_text("iter_0000001")
        self.assertRegex(self.plan("--distill.teacher", self.folder), r"\n  teacher +not counted")

    def test_what_training_would_refuse_is_refused(self):
        self.assertIn("nowhere", self.plan("--distill.teacher", self.folder / "nowhere", code=2))
        for changes, words, said in (({"vocab_size": 64}, (), "the student's tokens"),
                                     ({}, ("--world-size", 4, "--pp", 4), "a layer for each stage"),
                                     ({"num_hidden_layers": 4096, "num_local_experts": 4096, "num_experts_per_tok": 2,
                                       "model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}, (),
                                      "layers times experts")):
            self.describe(LLAMA | changes)
            self.assertIn(said, self.plan("--distill.teacher", self.folder, *words, code=2))

    def test_what_is_wrong_with_its_network_is_said(self):
        self.describe(LLAMA | {"attention_of_tomorrow": 2})
        self.assertIn("attention_of_tomorrow", self.plan("--distill.teacher", self.folder, code=2))
