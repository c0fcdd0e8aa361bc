"""Families of dense models against transformers: tiny models at random, whose layers have what single families have.
Folders come back bit by bit; logits, loss, gradients and greedy text are transformers'. Needs torch, transformers,
safetensors."""
import copy
import json
import math
import pathlib
import shutil
import sys
import tempfile
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import RunFolder, run, text_of_sentences  # noqa: E402

torch, transformers, safetensors, MISSING = peers("torch", "transformers", "safetensors.torch")
if not MISSING:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

VOCABULARY = 320
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
             max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None)
FALCON = {name: value for name, value in dict(SIZES, ffn_hidden_size=48).items() if name != "intermediate_size"}
GROUPED = dict(SIZES, num_key_value_heads=2)
YARN = dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, original_max_position_embeddings=64)
# DeepSeek's: latent attention with values of another width, experts behind a dense layer.
LATENT = dict(SIZES, num_key_value_heads=4, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
              n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=4, moe_intermediate_size=20,
              first_k_dense_replace=1, num_hidden_layers=3)
LATENT_YARN = dict(YARN, mscale=0.7, mscale_all_dim=0.8)
LONGROPE = dict(rope_type="longrope", rope_theta=1000.0, short_factor=[1.0, 1.5, 1.25, 2.0],
                long_factor=[1.0, 3.0, 6.0, 12.5])
TOLERANCE = 1e-5


def families():
    """Name: the class of the configuration, its fields, how the class of the model begins."""
    return {
        "gemma": ("Gemma", dict(GROUPED, head_dim=12)),
        "gemma2": ("Gemma2", dict(GROUPED, head_dim=12, query_pre_attn_scalar=20, sliding_window=9,
                                  attn_logit_softcapping=2.0, final_logit_softcapping=1.5)),
        "gemma3": ("Gemma3", dict(GROUPED, head_dim=12, query_pre_attn_scalar=20, sliding_window=9,
                                  layer_types=["sliding_attention", "sliding_attention", "full_attention",
                                               "sliding_attention"],
                                  rope_parameters={
                                      "full_attention": dict(rope_type="linear", factor=2.0, rope_theta=5000.0),
                                      "sliding_attention": dict(rope_type="default", rope_theta=100.0)})),
        "olmo2": ("Olmo2", dict(GROUPED)),
        "olmo3": ("Olmo3", dict(GROUPED, sliding_window=9, rope_parameters=YARN)),
        "smollm3": ("SmolLM3", dict(GROUPED, no_rope_layer_interval=2)),
        "phi3": ("Phi3", dict(GROUPED, sliding_window=11,
                              rope_parameters=dict(rope_type="default", rope_theta=1000.0,
                                                   partial_rotary_factor=0.5))),
        "phi3_long": ("Phi3", dict(GROUPED, original_max_position_embeddings=8, rope_parameters=LONGROPE)),
        "phi3_short": ("Phi3", dict(GROUPED, original_max_position_embeddings=128,
                                    rope_parameters=dict(LONGROPE, attention_factor=1.3))),
        "pythia": ("GPTNeoX", dict(SIZES, rope_parameters=dict(rope_type="default", rope_theta=1000.0,
                                                               partial_rotary_factor=0.5))),
        "neox_in_sequence": ("GPTNeoX", dict(SIZES, use_parallel_residual=False, attention_bias=False)),
        "falcon_one_key": ("Falcon", dict(FALCON)),
        "falcon_all_keys": ("Falcon", dict(FALCON, multi_query=False, bias=True, tie_word_embeddings=False)),
        "falcon_groups": ("Falcon", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2)),
        "falcon_groups_one_norm": ("Falcon", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2,
                                                  num_ln_in_parallel_attn=1, activation="gelu_pytorch_tanh")),
        "starcoder2": ("Starcoder2", dict(GROUPED, sliding_window=9)),
        "llama": ("Llama", dict(GROUPED, tie_word_embeddings=True)),
        "mistral": ("Mistral", dict(GROUPED, sliding_window=9)),
        "qwen2": ("Qwen2", dict(GROUPED, tie_word_embeddings=True)),
        "qwen3": ("Qwen3", dict(GROUPED, head_dim=12)),
        "llama_attention_bias": ("Llama", dict(GROUPED, attention_bias=True)),
        "llama_mlp_bias": ("Llama", dict(GROUPED, mlp_bias=True,
                                         rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0))),
        "llama_yarn": ("Llama", dict(GROUPED, rope_parameters=YARN)),
        "gpt_oss": ("GptOss", dict(GROUPED, head_dim=16, num_local_experts=6, num_experts_per_tok=3, sliding_window=9,
                                   rope_parameters=dict(YARN, truncate=False))),
        "gpt_oss_plain": ("GptOss", dict(GROUPED, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                                         sliding_window=9, attention_bias=False, num_hidden_layers=3,
                                         rope_parameters=dict(rope_type="default", rope_theta=1000.0))),
        "gpt_oss_full": ("GptOss", dict(GROUPED, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                                        layer_types=["full_attention"] * 4,
                                        rope_parameters=dict(rope_type="default", rope_theta=1000.0))),
        "mixtral": ("Mixtral", dict(GROUPED, num_local_experts=4, num_experts_per_tok=2)),
        "deepseek_v2": ("DeepseekV2", dict(LATENT, q_lora_rank=None, routed_scaling_factor=1.5)),
        "deepseek_v2_groups": ("DeepseekV2", dict(LATENT, q_lora_rank=20, topk_method="group_limited_greedy", n_group=4,
                                                  topk_group=2, rope_parameters=LATENT_YARN)),
        "deepseek_v3": ("DeepseekV3", dict(LATENT, q_lora_rank=20, n_group=4, topk_group=2,
                                           rope_parameters=LATENT_YARN)),
        "deepseek_v3_plain": ("DeepseekV3", dict(LATENT, q_lora_rank=None, v_head_dim=26, n_group=1, topk_group=1,
                                                 num_experts_per_tok=3, rope_interleave=False)),
    }


def made(name):
    kind, fields = families()[name]
    config_class = getattr(transformers, kind + ("TextConfig" if kind == "Gemma3" else "Config"))
    model = getattr(transformers, kind + "ForCausalLM")(config_class(**fields))
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms that are not 0 and 1
            parameter.add_(torch.randn_like(parameter) * 0.1)
        if kind == "DeepseekV3":  # which decide a choice
            for layer in model.model.layers[1:]:
                layer.mlp.gate.e_score_correction_bias.add_(torch.randn(8) * 0.2)
        if kind == "GptOss":  # so that the clamps at 7 hold some
            for layer in model.model.layers:
                layer.mlp.experts.gate_up_proj.mul_(10)
    return model.float().eval()


def tensors_of(folder):
    return {name: tensor for file in pathlib.Path(folder).glob("model*.safetensors")
            for name, tensor in safetensors.load_file(file).items()}


def loaded(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                              attn_implementation="eager")
    return scaled_scores(plain_in_windows(model.eval()))


def scaled_scores(model):
    """A DeepSeek-V2 as its authors have it: scores are multiplied by the square of YaRN's factor for mscale_all_dim, as
    transformers 5.12.1 does in a V3 alone; and its groups of experts, which look for a name that is not there."""
    if model.config.model_type == "deepseek_v2":
        for layer in model.model.layers[model.config.first_k_dense_replace:]:
            layer.mlp.num_experts = model.config.n_routed_experts
    if model.config.model_type == "deepseek_v2" and model.config.rope_parameters.get("mscale_all_dim"):
        rope = model.config.rope_parameters
        factor = 0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1
        for layer in model.model.layers:
            layer.self_attn.scaling *= factor ** 2
    return model


def plain_in_windows(model):
    """An OLMo 3 as its authors have it: layers with a window have positions that are not stretched. transformers 4.57
    computed so; 5.12.1 stretches those of every layer."""
    if model.config.model_type != "olmo3" or model.config.rope_parameters["rope_type"] == "default":
        return model
    config = copy.deepcopy(model.config)
    config.rope_parameters = dict(rope_type="default", rope_theta=config.rope_parameters["rope_theta"])
    plain = type(model.model.rotary_emb)(config)
    for layer in model.model.layers:
        if layer.self_attn.sliding_window is not None:
            layer.register_forward_pre_hook(
                lambda module, args, kwargs: (args, {**kwargs, "position_embeddings": plain(
                    args[0] if args else kwargs["hidden_states"], kwargs["position_ids"])}), with_kwargs=True)
    return model


class FamilyFolders(unittest.TestCase):
    """Folders of these models with a tokenizer, and a text."""

    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        folder = tempfile.TemporaryDirectory(prefix="megatron-families-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        text = " ".join(text_of_sentences(4, seed=3))
        cls.text = cls.path / "text.txt"
        cls.text.write_text(text)
        rows = cls.path / "one.jsonl"
        rows.write_text(json.dumps({"text": text}) + "\n")
        run("data", "preprocess", "--input", rows, "--tokenizer", cls.place.tokenizer, "--output-prefix",
            cls.path / "one")
        cls.ids = [int(id) for id in run("tokenizer", "encode", "--tokenizer", cls.place.tokenizer,
                                         stdin=text + "\n").split()]

    def folder_of(self, name):
        torch.manual_seed(5)
        model, folder = made(name), self.path / name
        model.save_pretrained(folder)
        for file in pathlib.Path(self.place.tokenizer).iterdir():
            shutil.copy(file, folder)
        return model, folder

    def exported(self, name, load):
        back = self.path / f"{name}-back"
        run("checkpoint", "export", "--load", load, "--output", back)
        return back

    def loss_of(self, folder):
        return json.loads(run("eval", "loss", "--load", folder, "--data", self.text, "--json"))["loss"]

    def expect_loss(self, folder, model):
        """Ours of the folder is that of transformers' `model`, which is returned."""
        ids = torch.tensor([self.ids])
        with torch.no_grad():
            theirs = model(ids, labels=ids).loss.item()
        self.assertAlmostEqual(self.loss_of(folder) / theirs, 1, delta=TOLERANCE)
        return theirs


@unittest.skipIf(MISSING, MISSING)
class Families(FamilyFolders):
    def check_weights(self, name, model, folder, ids):
        run("checkpoint", "import", "--from", folder, "--output", self.path / f"{name}-ours")
        back = self.exported(name, self.path / f"{name}-ours")
        a, b = tensors_of(folder), tensors_of(back)
        self.assertEqual(sorted(a), sorted(b))
        for key, tensor in a.items():
            self.assertTrue(torch.equal(tensor, b[key]), key)
        with torch.no_grad():
            self.assertTrue(torch.equal(loaded(folder)(ids).logits, loaded(back)(ids).logits), name)
        shutil.rmtree(back)

    def check_text(self, folder, model):
        """Of greedy text, with the logarithms of its probabilities: of single tokens from a cache."""
        prompt = "the old man never answers my friend on monday. the cat"
        ours = json.loads(run("generate", "--load", folder, "--prompt", prompt, "--json", "--temperature", 0,
                              "--max-new-tokens", 12, "--ignore-eos", "--logprobs", 0))
        ids = torch.tensor([ours["prompt_ids"]])
        with torch.no_grad():
            for step in range(12):
                likely = torch.log_softmax(model(ids).logits[0, -1], -1)
                self.assertAlmostEqual(likely.max().item(), ours["logprobs"][step], delta=TOLERANCE)
                ids = torch.cat([ids, likely.argmax().view(1, 1)], dim=1)
        self.assertEqual(ids[0, len(ours["prompt_ids"]):].tolist(), ours["new_ids"])

    def check_gradients(self, name, folder, model, ids):
        """A step of plain descent at the rate 1 subtracts the gradient."""
        seen = len(ids[0]) - 1
        out = self.path / f"{name}-run"
        run("train", self.place.recipe, "--data-path", self.path / "one_text_document", "--tokenizer",
            self.place.tokenizer, "--train.out", out, "--load", folder, "--use-checkpoint-args", "--seq-length", seen,
            "--data.split", "1,0,0", "--global-batch-size", 1, "--train.micro_batch_size", 1, "--train-iters", 1,
            "--optimizer", "sgd", "--sgd-momentum", 0, "--lr", 1, "--min-lr", 1, "--weight-decay", 0, "--clip-grad", 0,
            "--hidden-dropout", 0, "--attention-dropout", 0)
        after = loaded(self.exported(name, out))
        loss = model(ids[:, :-1], labels=None).logits[0]
        torch.nn.functional.cross_entropy(loss, ids[0, 1:]).backward()
        with torch.no_grad():
            for (key, parameter), (_, now) in zip(model.named_parameters(), after.named_parameters()):
                gradient = parameter.grad
                self.assertLess((parameter - now - gradient).abs().max(),
                                TOLERANCE * max(1, gradient.abs().max().item()), f"{name}: {key}")

    def check(self, name):
        _, folder = self.folder_of(name)
        model = loaded(folder)
        ids = torch.tensor([self.ids])
        self.assertGreater(ids.shape[1], 30)
        self.check_weights(name, model, folder, ids)
        self.expect_loss(folder, model)
        self.check_text(folder, model)
        self.check_gradients(name, folder, model, ids)

    def test_gemma(self):
        self.check("gemma")

    def test_gemma2(self):
        self.check("gemma2")

    def test_gemma3(self):
        self.check("gemma3")

    def test_olmo2(self):
        self.check("olmo2")

    def test_olmo3(self):
        self.check("olmo3")

    def test_smollm3(self):
        self.check("smollm3")

    def test_phi3(self):
        self.check("phi3")

    def test_phi3_with_longrope(self):
        """Text, loss and step are of more than 8 tokens, so that the long factors hold."""
        self.check("phi3_long")

    def test_phi3_with_longrope_of_short_texts(self):
        self.check("phi3_short")

    def test_pythia(self):
        self.check("pythia")

    def test_neox_in_sequence(self):
        self.check("neox_in_sequence")

    def test_falcon_with_one_key_and_value(self):
        self.check("falcon_one_key")

    def test_falcon_with_a_key_and_value_per_head(self):
        self.check("falcon_all_keys")

    def test_falcon_with_groups_and_two_norms(self):
        self.check("falcon_groups")

    def test_falcon_with_groups_and_one_norm(self):
        self.check("falcon_groups_one_norm")

    def test_starcoder2(self):
        self.check("starcoder2")

    def test_llama(self):
        self.check("llama")

    def test_mistral(self):
        self.check("mistral")

    def test_qwen2(self):
        self.check("qwen2")

    def test_qwen3(self):
        self.check("qwen3")

    def test_llama_attention_bias(self):
        self.check("llama_attention_bias")

    def test_llama_mlp_bias(self):
        self.check("llama_mlp_bias")

    def test_llama_yarn(self):
        self.check("llama_yarn")

    def test_deepseek_v2(self):
        self.check("deepseek_v2")

    def test_deepseek_v2_with_groups_and_latents_of_queries(self):
        self.check("deepseek_v2_groups")

    def test_deepseek_v3(self):
        self.check("deepseek_v3")

    def test_deepseek_v3_without_groups(self):
        self.check("deepseek_v3_plain")

    def test_deepseek_v3_in_bf16_comes_back_bit_by_bit(self):
        torch.manual_seed(7)
        folder = self.path / "deepseek-bf16"
        made("deepseek_v3").bfloat16().save_pretrained(folder)
        tensors = {name: tensor.clone() for name, tensor in tensors_of(folder).items()}  # not of the file written next
        for name in tensors:  # as the published weights have these
            if name.endswith("e_score_correction_bias"):
                tensors[name] = torch.randn(8)
        tensors["model.layers.3.embed_tokens.weight"] = torch.zeros(2, 2)  # of a layer that predicts further tokens
        safetensors.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        run("checkpoint", "import", "--from", folder, "--output", self.path / "deepseek-bf16-ours")
        back = tensors_of(self.exported("deepseek-bf16", self.path / "deepseek-bf16-ours"))
        del tensors["model.layers.3.embed_tokens.weight"]
        self.assertEqual(sorted(tensors), sorted(back))
        for key, tensor in tensors.items():
            self.assertEqual(back[key].dtype, tensor.dtype, key)
            self.assertTrue(torch.equal(back[key], tensor), key)

    def test_gpt_oss(self):
        model, _ = self.folder_of("gpt_oss")
        held = []
        for layer in model.model.layers:
            layer.mlp.experts._apply_gate = lambda u, apply=layer.mlp.experts._apply_gate: [
                held.append((u > 7).float().mean().item()), apply(u)][1]
        with torch.no_grad():
            model(torch.arange(3, 60).view(1, -1))
        self.assertGreater(min(held), 0.01)
        self.check("gpt_oss")

    def test_gpt_oss_without_biases_of_attention(self):
        self.check("gpt_oss_plain")

    def test_gpt_oss_in_bf16_comes_back_bit_by_bit(self):
        torch.manual_seed(7)
        folder = self.path / "oss-bf16"
        model = made("gpt_oss").bfloat16()
        model.save_pretrained(folder)
        run("checkpoint", "import", "--from", folder, "--output", self.path / "oss-bf16-ours")
        self.expect_same_tensors(folder, self.exported("oss-bf16", self.path / "oss-bf16-ours"), torch.bfloat16)

    def expect_same_tensors(self, folder, back, dtype):
        a, b = tensors_of(folder), tensors_of(back)
        self.assertEqual(sorted(a), sorted(b))
        for key, tensor in a.items():
            self.assertEqual(b[key].dtype, dtype)
            self.assertTrue(torch.equal(tensor, b[key]), key)

    def test_gpt_oss_in_four_bits_has_the_values_of_transformers(self):
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors
        torch.manual_seed(9)
        config = transformers.GptOssConfig(**dict(families()["gpt_oss"][1], hidden_size=64, intermediate_size=96))
        model = transformers.GptOssForCausalLM(config).bfloat16()
        folder, packed = self.path / "oss-plain", self.path / "oss-mxfp4"
        model.save_pretrained(folder)
        shutil.copytree(folder, packed)
        tensors, values = tensors_of(folder), {}
        for name in [name for name in tensors if name.endswith("_proj")]:
            experts, inputs, outputs = tensors.pop(name).shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(100, 140, (experts, outputs, inputs // 32), dtype=torch.uint8)
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
            values[name] = convert_moe_packed_tensors(blocks, scales)
        self.assertEqual(len(values), 2 * config.num_hidden_layers)
        safetensors.save_file(tensors, packed / "model.safetensors", {"format": "pt"})
        written = json.loads((packed / "config.json").read_text())
        written["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])
        (packed / "config.json").write_text(json.dumps(written))
        run("checkpoint", "import", "--from", packed, "--output", self.path / "oss-mxfp4-ours")
        back = tensors_of(self.exported("oss-mxfp4", self.path / "oss-mxfp4-ours"))
        self.assertEqual(sorted(back), sorted(tensors_of(folder)))
        for name, value in values.items():
            self.assertEqual(back[name].dtype, torch.bfloat16)
            self.assertTrue(torch.equal(back[name], value), name)
        for name, tensor in tensors.items():
            if "_proj_blocks" not in name and "_proj_scales" not in name:
                self.assertTrue(torch.equal(back[name], tensor), name)
        written["quantization_config"]["quant_method"] = "gptq"
        (packed / "config.json").write_text(json.dumps(written))
        message = run("checkpoint", "import", "--from", packed, "--output", self.path / "no", code=2)
        self.assertIn("quantization_config.quant_method", message)


@unittest.skipIf(MISSING, MISSING)
class Fields(FamilyFolders):
    """Fields of config.json that are left out, or stand in place of others."""

    def changed(self, folder, change, name):
        """A copy of a folder whose config.json is changed."""
        copy_of = self.path / f"{folder.name}-{name}"
        shutil.copytree(folder, copy_of)
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (copy_of / "config.json").write_text(json.dumps(config))
        return copy_of

    def expect_refused(self, folder, word):
        self.assertIn(word, run("eval", "loss", "--load", folder, "--data", self.text, code=2))

    def test_a_rope_scaling_stands_in_place_of_rope_parameters(self):
        yarn = {key: value for key, value in YARN.items() if key != "rope_theta"}
        linear = dict(rope_type="linear", factor=4.0)
        for name, fields in (("olmo2", dict(rope_scaling=yarn)), ("olmo2", dict(rope_scaling=yarn, rope_theta=300.0)),
                             ("pythia", dict(rope_scaling=linear, rotary_emb_base=300.0, rope_theta=700.0)),
                             ("gemma3", dict(rope_scaling=dict(linear, factor=8.0))),
                             ("gpt_oss_plain", dict(rope_scaling=dict(yarn, truncate=False)))):
            with self.subTest(name=name, fields=fields):
                _, folder = self.folder_of(name)
                before = self.expect_loss(folder, loaded(folder))
                folder = self.changed(folder, lambda config: config.update(fields), "-".join(fields))
                after = self.expect_loss(folder, loaded(folder))
                self.assertGreater(abs(after / before - 1), 10 * TOLERANCE)
                back = self.exported(f"{name}-{len(fields)}-scaled", folder)
                self.assertAlmostEqual(self.expect_loss(back, loaded(back)) / after, 1, delta=TOLERANCE)

    def test_what_a_mixtral_leaves_out(self):
        _, folder = self.folder_of("mixtral")

        def leave_out(config):
            for key in ("rope_parameters", "rms_norm_eps"):
                del config[key]

        folder = self.changed(folder, leave_out, "short")
        self.expect_loss(folder, loaded(folder))

    def test_an_exported_gpt_oss_without_windows_is_one_that_transformers_computes(self):
        _, folder = self.folder_of("gpt_oss_full")
        back = self.exported("gpt_oss_full", folder)
        self.assertAlmostEqual(self.expect_loss(back, loaded(back)) / self.loss_of(folder), 1, delta=TOLERANCE)

    def test_windows_without_a_length_are_refused_where_transformers_does(self):
        for name in ("gpt_oss", "gemma2", "gemma3", "olmo3"):
            _, folder = self.folder_of(name)
            folder = self.changed(folder, lambda config: config.update(sliding_window=None), "null")
            with self.assertRaises((TypeError, ValueError)):
                loaded(folder)(torch.tensor([self.ids]))
            self.expect_refused(folder, "sliding_window")

    def test_a_cap_of_scores_that_transformers_does_not_apply_is_refused(self):
        _, folder = self.folder_of("gemma3")
        capped = self.changed(folder, lambda config: config.update(attn_logit_softcapping=0.5), "capped")
        self.expect_loss(folder, loaded(capped))
        self.expect_refused(capped, "attn_logit_softcapping")

    def test_a_tied_output_layer_with_numbers_of_its_own_is_refused(self):
        _, folder = self.folder_of("gemma")
        tensors = tensors_of(folder)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        safetensors.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        tied = self.expect_loss(folder, loaded(folder))
        tensors["lm_head.weight"] += torch.randn_like(tensors["lm_head.weight"]) * 0.1
        safetensors.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        self.expect_refused(folder, '"tie_word_embeddings": false')
        untied = self.changed(folder, lambda config: config.update(tie_word_embeddings=False), "untied")
        own = self.expect_loss(untied, loaded(untied))
        self.assertGreater(abs(own / tied - 1), 100 * TOLERANCE)
        self.expect_loss(untied, loaded(folder))  # transformers 5 does not tie them, whatever config.json says


if __name__ == "__main__":
    unittest.main()
