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
        line = self.place.write_alike()
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

    def test_groups_and_biases_of_deepseek_v3(self):
        """Four steps with the router of transformers' DeepSeek-V3 in a Mixtral, its biases moved as Wang et al. do."""
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
        experts, rate, steps = 8, 0.05, 4
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(
            **SIZES, num_local_experts=experts, num_experts_per_tok=4))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        theirs = self.place.path / "deepseek"
        model.save_pretrained(theirs)
        run("train", self.place.recipe, "--data-path", self.place.path / "alike_text_document", "--tokenizer",
            self.place.tokenizer, "--train.out", self.place.path / "deepseek-run", *WORDS, *PLAIN, "--num-experts",
            experts, "--rotary-base", 1e6, "--load", theirs, "--load-strict", "false", "--seq-length",
            self.ids.shape[1] - 1, "--data.split", "1,0,0", "--train-iters", steps, "--moe-router-topk", 4,
            "--moe-router-score-function", "sigmoid", "--moe-router-num-groups", 4, "--moe-router-group-topk", 2,
            "--moe-router-topk-scaling-factor", 1.5, "--moe-router-enable-expert-bias",
            "--moe-router-bias-update-rate", rate, "--moe-per-layer-logging")

        mixture = DeepseekV3MoE(transformers.DeepseekV3Config(
            hidden_size=32, moe_intermediate_size=48, n_routed_experts=experts, num_local_experts=experts, n_group=4,
            topk_group=2, num_experts_per_tok=4, n_shared_experts=1, norm_topk_prob=True, routed_scaling_factor=1.5))
        layer = model.model.layers[0]
        with torch.no_grad():
            mixture.gate.weight.copy_(layer.mlp.gate.weight)
            mixture.experts.gate_up_proj.copy_(layer.mlp.experts.gate_up_proj)
            mixture.experts.down_proj.copy_(layer.mlp.experts.down_proj)
            mixture.shared_experts.down_proj.weight.zero_()  # there is none
        mixture.shared_experts.requires_grad_(False)
        layer.mlp = mixture
        chosen = []
        route = mixture.route_tokens_to_experts
        mixture.route_tokens_to_experts = lambda logits: [chosen.append(route(logits)), chosen[-1]][1]
        losses, loads = [], []
        for _ in range(steps):
            loss = torch.nn.functional.cross_entropy(model(self.ids[:, :-1]).logits[0], self.ids[0, 1:])
            model.zero_grad()
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad)
                load = torch.bincount(chosen[-1][0].flatten(), minlength=experts)
                loads.append(load.tolist())
                mixture.gate.e_score_correction_bias += rate * torch.sign(load.double().mean() - load)
        for ours, loss, load in zip(self.place.metrics("deepseek-run"), losses, loads, strict=True):
            self.assertAlmostEqual(ours["loss"], loss, delta=2e-5)
            self.assertEqual(ours["expert_loads"], [load])
        self.assertGreater(len({tuple(load) for load in loads}), 1, "the biases have changed nothing")
        import safetensors.torch
        file, = (self.place.path / "deepseek-run").rglob("rank_00000.safetensors")
        saved = safetensors.torch.load_file(file)
        bias = saved["decoder.layers.0.mlp.router.expert_bias"]
        self.assertLess((bias - mixture.gate.e_score_correction_bias).abs().max().item(), 1e-6)
        router = saved["decoder.layers.0.mlp.router.weight"]
        self.assertLess((router - mixture.gate.weight).abs().max().item(), 1e-4)


if __name__ == "__main__":
    unittest.main()
