"""Gradients of mixtures of experts are those of transformers, auxiliary loss included. Needs torch, transformers."""
import json
import pathlib
import sys
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import RunFolder, run  # noqa: E402

torch, transformers, MISSING = peers("torch", "transformers")
if not MISSING:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)

SIZES = dict(vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5)
WORDS = ["--num-layers", 1, "--hidden-size", 32, "--num-query-groups", 2, "--ffn-hidden-size", 48,
         "--max-position-embeddings", 64, "--normalization", "RMSNorm", "--norm-epsilon", 1e-5,
         "--position-embedding-type", "rope", "--swiglu", "--disable-bias-linear",
         "--untie-embeddings-and-output-weights", "--vocab-size", 320, "--hidden-dropout", 0, "--attention-dropout", 0]
PLAIN = ["--optimizer", "sgd", "--optimizer.sgd_momentum", 0, "--lr", 1, "--min-lr", 1, "--weight-decay", 0,
         "--lr-warmup-samples", 0, "--clip-grad", 0, "--train-iters", 1, "--micro-batch-size", 1,
         "--global-batch-size", 1, "--eval-interval", 0]
COEFFICIENT = 0.5


@unittest.skipIf(MISSING, MISSING)
class Experts(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)
        torch.manual_seed(5)
        # Documents that are all alike, each as long as a sample: so is every sample.
        text = self.place.path / "alike.jsonl"
        line = "the old man never answers my friend on monday, and the cat sees a dog."
        text.write_text((json.dumps({"text": line}) + "\n") * 50)
        run("data", "preprocess", "--input", text, "--tokenizer", self.place.tokenizer, "--output-prefix",
            self.place.path / "alike")
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.place.tokenizer)
        ids = tokenizer(line, return_tensors="pt")["input_ids"]
        self.ids = torch.cat([ids, ids[:, :1]], dim=1)

    def check(self, name, model, options):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        theirs, back = self.place.path / name, self.place.path / f"{name}-back"
        model.save_pretrained(theirs)
        run("train", self.place.recipe, "--data-path", self.place.path / "alike_text_document", "--tokenizer",
            self.place.tokenizer, "--train.out", self.place.path / f"{name}-run", *WORDS, *PLAIN, *options, "--load",
            theirs, "--seq-length", self.ids.shape[1] - 1, "--moe-aux-loss-coeff", COEFFICIENT, "--data.split", "1,0,0")
        run("checkpoint", "export", "--load", self.place.path / f"{name}-run", "--output", back)
        out = model(self.ids[:, :-1], output_router_logits=True)
        loss = torch.nn.functional.cross_entropy(out.logits[0], self.ids[0, 1:])
        self.assertAlmostEqual(self.place.losses(f"{name}-run")[1], loss.item(), delta=1e-5)
        chosen = model.config.num_experts_per_tok
        # Theirs is of all layers together and a token's choices add up: of one layer top_k times ours.
        balance = transformers.models.mixtral.modeling_mixtral.load_balancing_loss_func(
            out.router_logits, model.config.num_local_experts, chosen) / chosen
        (loss + COEFFICIENT * balance).backward()
        after = dict(transformers.AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32).named_parameters())
        for parameter, value in model.named_parameters():
            self.assertLess((value - after[parameter] - value.grad).abs().max().item(), 1e-5, f"{name} {parameter}")
            self.assertGreater(value.grad.abs().max().item(), 1e-3, parameter)

    def test_mixtral(self):
        config = transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
        self.check("mixtral", transformers.MixtralForCausalLM(config),
                   ["--num-experts", 4, "--rotary-base", 1e6, "--moe-router-topk", 2])

    def test_qwen3_moe_whose_scores_count_as_they_are(self):
        config = transformers.Qwen3MoeConfig(**SIZES, moe_intermediate_size=24, num_experts=6, num_experts_per_tok=3)
        self.check("qwen3", transformers.Qwen3MoeForCausalLM(config),
                   ["--num-experts", 6, "--moe-router-topk", 3, "--moe-ffn-hidden-size", 24, "--qk-layernorm",
                    "--moe-router-pre-softmax"])


if __name__ == "__main__":
    unittest.main()
