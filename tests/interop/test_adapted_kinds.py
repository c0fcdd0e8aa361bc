"""Adapters of latent attention and of experts against peft and transformers, step by step. Needs torch, transformers,
peft."""
import json
import unittest

from peers import peers
from test_tuning import LAYOUTS, Tuned, run

torch, transformers, peft, safetensors, MISSING = peers("torch", "transformers", "peft", "safetensors.torch")

LATENT = dict(vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
              num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=False, kv_lora_rank=24,
              qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, n_routed_experts=8, n_shared_experts=2,
              num_experts_per_tok=4, moe_intermediate_size=20, first_k_dense_replace=1, n_group=4, topk_group=2)
EXPERTS = dict(vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False)


class Kinds(Tuned):
    """At a rate at which transformers in float32 is within 1e-5 of itself in float64; at ten times that its matrices
    are 2e-4 off after five steps, since Adam's steps by gradients that are rounding are as large as others."""
    rate = 1e-3

    def begin(self, model):
        """Puts `model`, none of whose numbers are 0 or 1, in the folder `base`."""
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        model.save_pretrained(self.base)
        self.ids = self.alike_ids()

    def their_losses(self, model):
        return self.steps(model, lambda: torch.nn.functional.cross_entropy(model(self.ids[:, :-1]).logits[0],
                                                                           self.ids[0, 1:]))

    def train_adapters(self, name, *options):
        run("train", self.place.recipe, "--tokenizer", self.place.tokenizer, "--train.out", self.place.path / name,
            *self.plain(), "--data-path", self.place.path / "alike_text_document", "--seq-length",
            self.ids.shape[1] - 1, "--micro-batch-size", 1, "--global-batch-size", 2, "--use-checkpoint-args",
            "--hidden-dropout", 0, "--attention-dropout", 0, "--lora.base", self.base, "--lora.rank", 4,
            "--lora.alpha", 12, "--load", self.place.path / "adapter", *options)
        losses = self.place.losses(name)
        return [losses[i + 1] for i in range(len(losses))]

    def export(self, load, name, *options):
        run("checkpoint", "export", "--load", self.place.path / load, "--output", self.place.path / name, *options)
        return self.place.path / name

    def merged_logits(self, load):
        """Of the model that the program makes of adapters and their base."""
        folder = self.export(load, f"{load}-merged")
        return self.logits(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())


@unittest.skipIf(MISSING, MISSING)
class LatentAdapters(Kinds):
    """DeepSeek-V3's attention, with and without latents of queries; the MLPs and the experts stay as they are."""

    def check(self, q_rank, layouts, *words, **options):
        torch.manual_seed(7)
        self.begin(transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**LATENT, q_lora_rank=q_rank)))
        targets = ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"] + (["q_a_proj", "q_b_proj"] if q_rank else ["q_proj"])
        model = peft.get_peft_model(self.model(), peft.LoraConfig(r=4, lora_alpha=12, target_modules=targets,
                                                                  init_lora_weights=False, **options))
        model.save_pretrained(self.place.path / "adapter")
        before = self.logits(model)
        want = self.their_losses(model)
        self.assertGreater(abs(want[0] - want[-1]), 0.05)
        after = peft.get_peft_model_state_dict(model)
        for name, layout in layouts.items():
            with self.subTest(name):
                got = self.train_adapters(name, "--lora.targets", *targets, *words, *layout)
                self.check_losses(got, want)
                back = self.export(name, f"{name}-adapter", "--format", "peft")
                read = peft.PeftModel.from_pretrained(self.model(), back)
                ours = peft.get_peft_model_state_dict(read)
                self.assertEqual(ours.keys(), after.keys())
                for key, value in after.items():
                    self.check_close(ours[key], value, 1e-4)
        self.check_close(self.merged_logits("one"), self.logits(model), 1e-4)
        self.check_close(self.merged_logits("adapter"), before)

    def test_losses_and_matrices_are_pefts_with_latents_of_queries(self):
        self.check(20, LAYOUTS)

    def test_losses_and_matrices_are_pefts_without_latents_of_queries(self):
        self.check(None, {"one": [], "tp2_sp": LAYOUTS["tp2_sp"]})

    def test_losses_and_magnitudes_are_pefts(self):
        self.check(20, {"one": [], "tp2_pp2": LAYOUTS["tp2_pp2"]}, "--lora.dora", use_dora=True)


def low_rank(matrices, scale, rows):
    """Adds B A of each part, gate and up or the layer alone, to a matrix [out, in] or to the stacked ones of experts
    [E, out, in], whose dimension `rows` is that of outputs."""

    class LowRank(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList([torch.nn.ParameterDict(part) for part in matrices])

        def forward(self, weight):
            return weight + scale * torch.cat([part["B"] @ part["A"] for part in self.parts], dim=rows)

    return LowRank()


@unittest.skipIf(MISSING, MISSING)
class ExpertAdapters(Kinds):
    """An A and a B of each matrix of each expert. transformers 5 holds the experts of a layer in two tensors, of which
    peft adapts gate and up by one A: the truth is a parametrization of them, and peft reads what is exported."""

    PARTS = {"mixtral": ("block_sparse_moe.experts", "w1", "w3", "w2"),
             "qwen3_moe": ("mlp.experts", "gate_proj", "up_proj", "down_proj"),
             "deepseek_v3": ("mlp.experts", "gate_proj", "up_proj", "down_proj")}

    def adapted(self, model, rank=4, alpha=12):
        """Adapters of all experts of `model`, and their tensors under the names that they had where each expert was a
        module."""
        kind = model.config.model_type
        theirs, gate, up, down = self.PARTS[kind]
        generator = torch.Generator().manual_seed(3)
        self.tensors, self.dense = {}, {}

        def part(layer, names, experts, out, into):
            made = {"A": torch.nn.Parameter(torch.randn(experts, rank, into, generator=generator) * 0.1),
                    "B": torch.nn.Parameter(torch.randn(experts, out, rank, generator=generator) * 0.1)}
            for matrix, value in made.items():
                self.tensors[f"{layer}.{{}}.{names}.lora_{matrix}.weight"] = value
            return made

        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for name, module in list(model.named_modules()):  # dense layers, and shared experts
            if isinstance(module, torch.nn.Linear) and name.rsplit(".", 1)[-1] in (gate, up, down):
                made = {matrix: torch.nn.Parameter(torch.randn(*shape, generator=generator) * 0.1)
                        for matrix, shape in (("A", (rank, module.in_features)), ("B", (module.out_features, rank)))}
                for matrix, value in made.items():
                    self.dense[f"base_model.model.{name}.lora_{matrix}.weight"] = value
                torch.nn.utils.parametrize.register_parametrization(module, "weight", low_rank([made], alpha / rank, 0))
        for number, layer in enumerate(model.model.layers):
            experts = getattr(layer.mlp, "experts", None)
            if experts is None:
                continue
            count, width, hidden = experts.down_proj.shape[0], experts.down_proj.shape[2], experts.down_proj.shape[1]
            prefix = f"base_model.model.model.layers.{number}.{theirs}"
            first = [part(prefix, name, count, width, hidden) for name in (gate, up)]
            second = [part(prefix, down, count, hidden, width)]
            for name, matrices in (("gate_up_proj", first), ("down_proj", second)):
                torch.nn.utils.parametrize.register_parametrization(experts, name, low_rank(matrices, alpha / rank, 1))
        self.targets = [gate, up, down]
        self.alpha, self.rank = alpha, rank
        return model

    def apart(self):
        """The tensors of every expert as they are now."""
        return {**{name: value.detach().clone() for name, value in self.dense.items()},
                **{name.format(e): value[e].detach().clone() for name, value in self.tensors.items()
                   for e in range(value.shape[0])}}

    def save(self):
        folder = self.place.path / "adapter"
        folder.mkdir()
        safetensors.save_file({name: value.contiguous() for name, value in self.apart().items()},
                              folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(dict(
            peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path=str(self.base), r=self.rank,
            lora_alpha=self.alpha, lora_dropout=0.0, bias="none", target_modules=self.targets)))

    def check(self, model, layouts, *words):
        self.begin(model)
        model = self.adapted(self.model())
        self.save()
        before = self.logits(model)
        want = self.their_losses(model)
        self.assertGreater(abs(want[0] - want[-1]), 0.05)
        after = self.apart()
        for name, layout in layouts.items():
            with self.subTest(name):
                got = self.train_adapters(name, "--lora.targets", "gate_proj", "up_proj", "down_proj",
                                          "--moe-aux-loss-coeff", 0, *words, *layout)
                self.check_losses(got, want)
                back = self.export(name, f"{name}-adapter", "--format", "peft")
                ours = safetensors.load_file(back / "adapter_model.safetensors")
                for key, value in after.items():
                    self.check_close(ours[key], value, 1e-4)
        self.check_close(self.merged_logits("one"), self.logits(model), 1e-4)
        self.check_close(self.merged_logits("adapter"), before)
        if not self.dense:  # peft finds no gate_proj of other layers where it takes those of experts together
            read = peft.PeftModel.from_pretrained(self.model(), self.place.path / "one-adapter")
            self.check_close(self.logits(read.eval()), self.logits(model), 1e-4)
        self.check_kept()

    def check_kept(self):
        """Beside their base they write what merged weights write; some experts' alone are refused."""
        adapter = self.place.path / "adapter"

        def generate(*words, code=0):
            return run("generate", *words, "--tokenizer", self.place.tokenizer, "--prompt", "the cat", "--temperature",
                       0, "--max-new-tokens", 12, "--ignore-eos", "--json", code=code)

        kept, merged, split, base = (json.loads(generate("--load", *words))["new_ids"] for words in (
            (self.base, "--adapter", adapter), (adapter,), (self.base, "--adapter", adapter, "--tp", 2), (self.base,)))
        self.assertEqual((kept, split), (merged, merged))
        self.assertNotEqual(kept, base)
        missing = next(iter(self.tensors)).rsplit(".lora_", 1)[0].format(1)
        some = {name: value for name, value in safetensors.load_file(adapter / "adapter_model.safetensors").items()
                if not name.startswith(missing)}
        safetensors.save_file(some, adapter / "adapter_model.safetensors")
        self.assertIn("all of a layer's experts must have an adapter",
                      generate("--load", self.base, "--adapter", adapter, code=2))

    def test_mixtral(self):
        torch.manual_seed(7)
        layouts = {"one": [], "ep2": ["--world-size", 2, "--ep", 2],
                   "tp2_ep2_etp1": ["--world-size", 2, "--tp", 2, "--sp", "--ep", 2, "--etp", 1],
                   "tp2_pp2": LAYOUTS["tp2_pp2"]}
        self.check(transformers.MixtralForCausalLM(transformers.MixtralConfig(
            **EXPERTS, num_local_experts=4, num_experts_per_tok=2)), layouts)

    def test_qwen3_moe(self):
        torch.manual_seed(7)
        self.check(transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
            **EXPERTS, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2)), {"one": []})

    def test_deepseek_v3_with_shared_experts_and_a_dense_layer(self):
        torch.manual_seed(7)
        self.check(transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**LATENT, q_lora_rank=20)),
                   {"one": [], "tp2_sp": LAYOUTS["tp2_sp"]})
