"""transformers loads what the program exports, and computes the same. Needs torch, transformers, safetensors."""
import json
import pathlib
import sys
import tempfile
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import GOLDEN_MODELS as GOLDEN, MODELS, UNPACKED, RunFolder, run  # noqa: E402

MEGATRON_GOLDEN = UNPACKED / "interchange"
torch, transformers, safetensors, MISSING = peers("torch", "transformers", "safetensors.torch")
if not MISSING:
    transformers.logging.set_verbosity_error()
NO_GOLDEN = "" if GOLDEN.exists() else f"{GOLDEN} is not there"

SIZES = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
LLAMA_3 = dict(rope_type="llama3", rope_theta=50000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=16)


EXPERTS = dict(head_dim=12, moe_intermediate_size=24, num_experts=6)
# What Llama-like folders can differ in.
VARIANTS = {
    "untied": ("Llama", dict(tie_word_embeddings=False)),
    "biases": ("Llama", dict(attention_bias=True, mlp_bias=True)),
    "scaled": ("Llama", dict(rope_parameters=LLAMA_3)),
    "head_dim": ("Llama", dict(head_dim=12)),
    "mistral": ("Mistral", dict(sliding_window=None)),
    "window": ("Mistral", dict(sliding_window=7)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True)),
    "qwen3": ("Qwen3", dict(head_dim=12)),
    "mixtral": ("Mixtral", dict(num_local_experts=4)),
    "qwen3_moe": ("Qwen3Moe", dict(EXPERTS, num_experts_per_tok=3, norm_topk_prob=True)),
    "scores": ("Qwen3Moe", dict(EXPERTS, num_experts_per_tok=1)),
}


def variant(name, **others):
    """A tiny model that transformers makes."""
    kind, fields = VARIANTS[name]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **others}, **fields)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def tensors_of(folder):
    files = pathlib.Path(folder).glob("model*.safetensors")
    tensors = {name: tensor for file in files for name, tensor in safetensors.load_file(file).items()}
    tensors.pop("embeddings.position_ids", None)  # 0, 1, 2, …
    return tensors


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits(folder, ids):
    with torch.no_grad():
        return loaded(folder)(ids).logits


def continued(model, ids, count):
    """The `count` tokens that transformers finds likeliest after `ids`."""
    seen = ids.shape[1]
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids[0, seen:].tolist()


@unittest.skipIf(MISSING, MISSING)
class Interchange(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-interop-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        torch.manual_seed(5)

    def there_and_back(self, folder, name):
        run("checkpoint", "import", "--from", folder, "--output", self.path / f"{name}-ours")
        run("checkpoint", "export", "--load", self.path / f"{name}-ours", "--output", self.path / f"{name}-back")
        return self.path / f"{name}-back"

    def same_tensors(self, first, second):
        a, b = tensors_of(first), tensors_of(second)
        self.assertEqual(sorted(a), sorted(b))
        for name, tensor in a.items():
            self.assertEqual(tensor.dtype, b[name].dtype, name)
            self.assertTrue(torch.equal(tensor, b[name]), name)

    @unittest.skipIf(NO_GOLDEN, NO_GOLDEN)
    def test_an_imported_folder_is_exported_bit_by_bit_and_computes_the_same(self):
        for name in ("tiny_gpt2", "tiny_llama"):
            back = self.there_and_back(GOLDEN / name, name)
            self.same_tensors(GOLDEN / name, back)
            expected = safetensors.load_file(GOLDEN / name / "expected.safetensors")
            ids = expected["input.input_ids"]
            self.assertTrue(torch.equal(logits(back, ids), logits(GOLDEN / name, ids)), name)
            self.assertLess((logits(back, ids) - expected["output.logits"]).abs().max(), 1e-4)

    @unittest.skipIf(NO_GOLDEN, NO_GOLDEN)
    def test_bert_is_exported_bit_by_bit(self):
        back = self.there_and_back(GOLDEN / "tiny_bert", "bert")
        self.same_tensors(GOLDEN / "tiny_bert", back)
        ids = safetensors.load_file(GOLDEN / "tiny_bert/expected.safetensors")["input.input_ids"]
        outputs = []
        for folder in (GOLDEN / "tiny_bert", back):
            model = transformers.BertForPreTraining.from_pretrained(folder).eval()
            with torch.no_grad():
                outputs.append(model(ids))
        self.assertTrue(torch.equal(outputs[0].prediction_logits, outputs[1].prediction_logits))
        self.assertTrue(torch.equal(outputs[0].seq_relationship_logits, outputs[1].seq_relationship_logits))

    def test_a_bert_of_the_papers_order_is_a_megatron_bert(self):
        torch.manual_seed(5)
        config = transformers.MegatronBertConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2,
                                                 num_attention_heads=4, intermediate_size=48,
                                                 max_position_embeddings=40)
        theirs = self.path / "megatron-bert"
        for kind in ("MegatronBertForPreTraining", "MegatronBertForMaskedLM", "MegatronBertModel"):
            model = getattr(transformers, kind)(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            model.save_pretrained(theirs)
            back = self.there_and_back(theirs, kind)
            self.same_tensors(theirs, back)
            _, report = getattr(transformers, kind).from_pretrained(back, output_loading_info=True)
            self.assertFalse(report["missing_keys"] or report["unexpected_keys"], report)

    def test_both_kinds_of_t5_are_exported_bit_by_bit_and_compute_the_same(self):
        sizes = dict(vocab_size=96, d_model=32, d_kv=6, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=4,
                     decoder_start_token_id=0)
        first = transformers.T5Config(**sizes, feed_forward_proj="relu")
        second = transformers.T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
        ids = torch.randint(0, 96, (2, 20))
        for name, config in (("first", first), ("second", second)):
            model = transformers.T5ForConditionalGeneration(config)
            if name == "second":
                model.lm_head.weight = torch.nn.Parameter(torch.randn(96, 32))
            model.to(torch.bfloat16).save_pretrained(self.path / name)
            back = self.there_and_back(self.path / name, name)
            self.same_tensors(self.path / name, back)
            outputs = []
            for folder in (self.path / name, back):
                loaded = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
                with torch.no_grad():
                    outputs.append(loaded(input_ids=ids, labels=ids).logits)
            self.assertTrue(torch.equal(*outputs), name)

    def test_every_kind_of_llama_is_exported_bit_by_bit_and_computes_the_same(self):
        ids = torch.randint(0, SIZES["vocab_size"], (2, 40))
        for name in VARIANTS:
            model, folder = variant(name), self.path / name
            with torch.no_grad():
                for parameter in model.parameters():  # biases and norms that are not 0 and 1
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="20KB")
            self.assertGreater(len(list(folder.glob("model*.safetensors"))), 1, name)
            back = self.there_and_back(folder, name)
            self.same_tensors(folder, back)
            self.assertTrue(torch.equal(logits(back, ids), logits(folder, ids)), name)

    def test_megatron_weights_become_folders_that_transformers_loads(self):
        for name, count in (("gpt2", 28), ("llama", 39)):
            run("checkpoint", "export", "--load", MEGATRON_GOLDEN / name, "--output", self.path / name)
            model, report = transformers.AutoModelForCausalLM.from_pretrained(self.path / name,
                                                                              output_loading_info=True)
            self.assertFalse(report["missing_keys"] or report["unexpected_keys"], report)
            self.assertEqual(len(tensors_of(self.path / name)), count)
            self.assertEqual(model.config.vocab_size, 20 if name == "gpt2" else 24)

    def test_transformers_continues_from_a_model_trained_here_as_it_does_itself(self):
        place = RunFolder()
        self.addCleanup(place.close)
        llama = ["--normalization", "RMSNorm", "--position-embedding-type", "rope", "--swiglu", "--disable-bias-linear",
                 "--num-query-groups", 2, "--untie-embeddings-and-output-weights"]
        for name, options in (("gpt2", []), ("llama", llama)):
            place.train(name, *options, "--hidden-dropout", 0, "--attention-dropout", 0)
            run("checkpoint", "export", "--load", place.path / name, "--output", self.path / name)
            ours = json.loads(run("generate", "--load", place.path / name, "--prompt", "the old man", "--json",
                                  "--temperature", 0, "--max-new-tokens", 12, "--ignore-eos"))
            self.assertTrue((self.path / name / "tokenizer.json").exists())
            ids = torch.tensor([ours["prompt_ids"]])
            self.assertEqual(continued(loaded(self.path / name), ids, 12), ours["new_ids"], name)

    def test_fine_tuning_begins_with_the_folders_weights(self):
        place = RunFolder()
        self.addCleanup(place.close)
        config = transformers.LlamaConfig(**{**SIZES, "vocab_size": 320}, rope_parameters=LLAMA_3)
        transformers.LlamaForCausalLM(config).save_pretrained(self.path / "theirs")
        options = [
            "--load", self.path / "theirs", "--train-iters", 1, "--vocab-size", 320, "--hidden-size", 32,
            "--num-query-groups", 2, "--ffn-hidden-size", 48, "--max-position-embeddings", 64,
            "--normalization", "RMSNorm", "--norm-epsilon", 1e-6, "--position-embedding-type", "rope", "--swiglu",
            "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--rope-scaling-factor", 8,
            "--model.rope_original_positions", 16]
        message = place.train("wrong", *options, code=2)
        self.assertIn("rotary_base: 10000, and 50000", message)
        place.train("run", *options, "--rotary-base", 50000, "--lr", 0, "--min-lr", 0)
        run("checkpoint", "export", "--load", place.path / "run", "--output", self.path / "back")
        self.same_tensors(self.path / "theirs", self.path / "back")

    @unittest.skipUnless(MODELS.exists(), f"{MODELS} is not there")
    def test_trained_models_are_exported_bit_by_bit(self):
        for name in ("smollm2-135m-instruct", "minilm-l6", "rxn-bert"):
            self.same_tensors(MODELS / name, self.there_and_back(MODELS / name, name))

    @unittest.skipUnless(MODELS.exists(), f"{MODELS} is not there")
    def test_loss_and_text_are_those_of_transformers(self):
        """Of kinds of layers without a small published model: weights at random, with a published tokenizer."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / "smollm2-135m-instruct")
        text = self.path / "text.txt"
        text.write_text("the cat sees my friend on friday.\nmy friend never answers a dog on monday.\n" * 3)
        for name in ("qwen3", "window", "mixtral", "scores"):
            model = variant(name, vocab_size=len(tokenizer), max_position_embeddings=128)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            folder = self.path / f"{name}-words"
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            ours = json.loads(run("eval", "loss", "--load", folder, "--data", text, "--json"))
            ids = tokenizer(text.read_text(), return_tensors="pt")["input_ids"]
            with torch.no_grad():
                self.assertAlmostEqual(ours["loss"] / model(ids, labels=ids).loss.item(), 1, delta=1e-5)
            prompt = "the old man never answers my friend on monday, and the cat"
            ours = json.loads(run("generate", "--load", folder, "--prompt", prompt, "--json", "--temperature", 0,
                                  "--max-new-tokens", 12, "--ignore-eos"))
            ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
            self.assertEqual(continued(loaded(folder), ids, 12), ours["new_ids"], name)

    @unittest.skipUnless(MODELS.exists(), f"{MODELS} is not there")
    def test_a_trained_model_that_was_fine_tuned_computes_the_same_in_transformers(self):
        theirs = MODELS / "smollm2-135m-instruct"
        place = RunFolder(theirs, pathlib.Path(__file__).resolve().parents[2] / "configs/smollm2_135m.toml")
        self.addCleanup(place.close)
        place.train("run", "--load", theirs, "--seq-length", 32, "--micro-batch-size", 2, "--global-batch-size", 2,
                    "--lr", 3e-4, "--lr-warmup-samples", 0, "--eval-interval", 0, "--train-iters", 3)
        run("checkpoint", "export", "--load", place.path / "run", "--output", self.path / "tuned")
        text = self.path / "text.txt"
        text.write_text("the cat sees my friend on friday.\nmy friend never answers a dog on monday.\n")
        ours = json.loads(run("eval", "loss", "--load", place.path / "run", "--data", text, "--json"))
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.path / "tuned")
        ids = tokenizer(text.read_text(), return_tensors="pt")["input_ids"]
        model = transformers.AutoModelForCausalLM.from_pretrained(self.path / "tuned", dtype=torch.float64).eval()
        with torch.no_grad():
            # Thirty layers in float32 keep five to six digits.
            self.assertAlmostEqual(ours["loss"] / model(ids, labels=ids).loss.item(), 1, delta=1e-5)
        prompt = "the old man never"
        ours = json.loads(run("generate", "--load", place.path / "run", "--prompt", prompt, "--json",
                              "--temperature", 0, "--max-new-tokens", 8, "--ignore-eos"))
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        self.assertEqual(ids[0].tolist(), ours["prompt_ids"])
        self.assertEqual(continued(model.float(), ids, 8), ours["new_ids"])

    def test_a_folder_that_cannot_be_read_exactly_is_refused_by_name(self):
        model = variant("qwen2")
        model.config.use_sliding_window = True
        model.save_pretrained(self.path / "window")
        message = run("checkpoint", "import", "--from", self.path / "window", "--output", self.path / "x", code=2)
        self.assertIn("sliding_window", message)
        self.assertFalse((self.path / "x").exists())


if __name__ == "__main__":
    unittest.main()
