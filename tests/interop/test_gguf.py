"""The package gguf reads what the program exports as GGUF, bit by bit, and transformers reads the same model; the
program reads such files, and those that the package writes. Needs gguf, numpy, safetensors, sentencepiece, tokenizers,
torch, transformers."""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from peers import peers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/testing"))
sys.path.append(str(ROOT / "scripts"))
from fetch_models import LAYER_NAMES, unpermute  # noqa: E402
from program import MEGATRON, MODELS, run  # noqa: E402

gguf, np, safetensors, sentencepiece, tokenizers, torch, transformers, MISSING = peers(
    "gguf", "numpy", "safetensors.torch", "sentencepiece", "tokenizers", "torch", "transformers")
if not MISSING:
    transformers.logging.disable_progress_bar()
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
TRAIN = ROOT / "tests/golden/text/train.txt"
SMOLLM2 = MODELS / "smollm2-135m-instruct"
PUBLISHED = MODELS / "smollm2-135m-instruct.gguf"  # from which the folder was made
# Of the embedding's Q8_0 blocks in the GGUF file that llama.cpp's tools made of SmolLM2-135M-Instruct, from the wheel
# that scripts/fetch_models.py reads; the folder's weights are those blocks, dequantized.
PUBLISHED_EMBEDDING = "0d728edd2a012d1663a6069567240d124c752bab88b6fcbe1a985eae428193c3"
LLAMA_3 = dict(rope_type="llama3", rope_theta=50000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=16)
KINDS = {
    "llama": ("Llama", dict(tie_word_embeddings=False, rope_parameters=LLAMA_3)),
    "biases": ("Llama", dict(attention_bias=True, mlp_bias=True, head_dim=12)),
    "mistral": ("Mistral", dict(sliding_window=None)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True)),
}
CUTS = {"llama-bpe": r"\p{N}{1,3}", "qwen2": r"\p{N}"}
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def learned_tokenizer(folder, cuts):
    """tokenizer.json as the folders of Llama 3 and Qwen2 have it, with fewer tokens, and what is beside it."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=cuts == "llama-bpe"))
    expression = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + CUTS[cuts] +
                  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    steps = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = steps.Sequence([
        steps.Split(tokenizers.Regex(expression), "isolated"),
        steps.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if cuts == "qwen2":
        tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.train([str(TRAIN)], tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|begin|>", "<|end|>"], show_progress=False,
        initial_alphabet=steps.ByteLevel.alphabet()))
    tokenizer.add_tokens([tokenizers.AddedToken("<tool> call", normalized=False)])
    if cuts == "llama-bpe":
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"},
        "chat_template": CHAT}))
    return tokenizer


def fields_of(reader):
    return {key: field.contents() for key, field in reader.fields.items()}


@unittest.skipIf(MISSING, MISSING)
class Gguf(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="megatron-interop-")
        cls.addClassCleanup(folder.cleanup)
        cls.shared = pathlib.Path(folder.name)  # what methods make of the same model, once; none changes it
        cls.made, cls.exported = {}, {}

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-interop-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        torch.manual_seed(5)

    def sentencepiece_folder(self):
        """The Llama's folder with SentencePiece's tokenizer.model as its tokenizer, and that model."""
        folder = shutil.copytree(self.model("llama")[0], self.path / "llama")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / file).unlink()
        sentencepiece.SentencePieceTrainer.train(
            input=str(TRAIN), model_prefix=str(folder / "tokenizer"), vocab_size=410, model_type="bpe",
            byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
        return folder, sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))

    def model(self, name):
        """Folder and tokenizer of a model of KINDS."""
        if name not in self.made:
            kind, more = KINDS[name]
            torch.manual_seed(5)
            config = getattr(transformers, f"{kind}Config")(
                vocab_size=416, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, **more)
            model = getattr(transformers, f"{kind}ForCausalLM")(config)
            with torch.no_grad():
                for parameter in model.parameters():  # biases and norms that are not 0 and 1
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            model.save_pretrained(self.shared / name)
            cuts = "qwen2" if name == "qwen2" else "llama-bpe"
            self.made[name] = self.shared / name, learned_tokenizer(self.shared / name, cuts)
        return self.made[name]

    def models(self):
        """Name, folder, tokenizer: what the two architectures can differ in."""
        for name in KINDS:
            yield name, *self.model(name)

    def export(self, folder, *options):
        """The GGUF file that the program makes of a folder, and its reader."""
        if (folder, options) not in self.exported:
            place = self.path if folder.parent == self.path else self.shared
            output = place / f"{folder.name}-{len(self.exported)}.gguf"
            run("checkpoint", "export", "--load", folder, "--output", output, *options)
            self.exported[folder, options] = output
        return self.exported[folder, options], gguf.GGUFReader(self.exported[folder, options])

    def hugging_face_name(self, name):
        if not name.startswith("blk."):
            return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
                    "output.weight": "lm_head.weight"}[name]
        _, layer, kind, part = name.split(".")
        return f"model.layers.{layer}.{LAYER_NAMES[kind]}.{part}"

    def same_tensors(self, reader, folder, dtype):
        """Each tensor is gguf's own conversion of the folder's, whose rows of q and k lie as llama.cpp wants them."""
        fields = fields_of(reader)
        architecture = fields["general.architecture"]
        heads = {"attn_q": fields[f"{architecture}.attention.head_count"],
                 "attn_k": fields[f"{architecture}.attention.head_count_kv"]}
        theirs = safetensors.load_file(folder / "model.safetensors")
        wanted = getattr(gguf.GGMLQuantizationType, dtype)
        self.assertEqual(fields["general.file_type"],
                         {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}[dtype])
        for tensor in reader.tensors:
            self.assertEqual(tensor.data_offset % 32, 0, tensor.name)
            if tensor.name == "rope_freqs.weight":
                continue
            source = theirs.pop(self.hugging_face_name(tensor.name)).float().numpy()
            self.assertEqual([int(size) for size in reversed(tensor.shape)], list(source.shape), tensor.name)
            kind = wanted if source.ndim > 1 else gguf.GGMLQuantizationType.F32
            if dtype.startswith("Q") and source.ndim > 1:
                if tensor.name in ("token_embd.weight", "output.weight"):
                    kind = gguf.GGMLQuantizationType.Q8_0
                if source.shape[1] % 32:  # no whole blocks
                    kind = gguf.GGMLQuantizationType.F16
            self.assertEqual(tensor.tensor_type, kind, tensor.name)
            part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
            if architecture == "llama" and part in heads:  # what puts rows back gives the folder's
                rows = gguf.quants.dequantize(tensor.data, kind).reshape(len(source), -1)
                back = unpermute(np.arange(len(source))[:, None], heads[part])[:, 0]
                order = np.argsort(back)
                source = source[order]
                if dtype == "F32":
                    self.assertEqual(unpermute(rows, heads[part]).tobytes(), source[back].tobytes())
            self.assertEqual(tensor.data.tobytes(), gguf.quants.quantize(source, kind).tobytes(), tensor.name)
        self.assertEqual(set(theirs), set())

    def test_every_tensor_is_the_folders_in_every_type(self):
        for name, folder, _ in self.models():
            for option, dtype in (("fp32", "F32"), ("fp16", "F16"), ("bf16", "BF16"), ("q8_0", "Q8_0"),
                                  ("q4_1", "Q4_1"), ("q4_0", "Q4_0")):
                with self.subTest(name=name, dtype=option):
                    _, reader = self.export(folder, "--dtype", option)
                    self.same_tensors(reader, folder, dtype)
        _, reader = self.export(folder)  # where nothing is said
        self.same_tensors(reader, folder, "F32")

    def test_transformers_reads_the_same_model(self):
        for name, folder, _ in self.models():
            if name == "mistral":  # the file says llama, as llama.cpp's converter does
                continue
            output, _ = self.export(folder, "--format", "gguf")
            with self.subTest(name=name):
                model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                read = load_gguf_checkpoint(str(output), return_tensors=True, model_to_load=model)
                tensors = {key: torch.as_tensor(value) for key, value in read["tensors"].items()}
                tensors.pop("rope_freqs.weight", None)  # which transformers does not know
                wanted = safetensors.load_file(folder / "model.safetensors")
                self.assertEqual(sorted(tensors), sorted(wanted))
                for key, tensor in wanted.items():
                    self.assertTrue(torch.equal(tensors[key], tensor), key)
                theirs = model.config.to_dict()
                for key, value in read["config"].items():
                    if key in theirs and key not in ("rope_parameters", "head_dim"):
                        self.assertEqual(np.float32(value) if isinstance(value, float) else value,
                                         np.float32(theirs[key]) if isinstance(value, float) else theirs[key], key)

    def test_scaled_positions_are_factors_of_the_frequencies(self):
        folder, _ = self.model("llama")
        _, reader = self.export(folder, "--dtype", "fp32")
        factors = next(tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight").data
        config = transformers.AutoConfig.from_pretrained(folder)
        scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        plain = 1 / 50000.0 ** (torch.arange(0, 16, 2) / 16)
        np.testing.assert_allclose(factors, (plain / scaled).numpy(), rtol=1e-5)

    def test_the_tokenizer_is_the_folders(self):
        for name, folder, tokenizer in self.models():
            with self.subTest(name=name):
                fields = fields_of(self.export(folder, "--dtype", "fp32")[1])
                file = json.loads((folder / "tokenizer.json").read_text())
                size = tokenizer.get_vocab_size()
                self.assertEqual(fields["tokenizer.ggml.model"], "gpt2")
                self.assertEqual(fields["tokenizer.ggml.pre"], "qwen2" if name == "qwen2" else "llama-bpe")
                tokens = [tokenizer.id_to_token(i) for i in range(size)] + [f"[PAD{i}]" for i in range(size, 416)]
                self.assertEqual(fields["tokenizer.ggml.tokens"], tokens)
                self.assertEqual(fields["tokenizer.ggml.token_type"],
                                 [3, 3] + [1] * (size - 3) + [4] + [5] * (416 - size))
                self.assertEqual(fields["tokenizer.ggml.merges"], [" ".join(pair) for pair in file["model"]["merges"]])
                self.assertEqual([fields[f"tokenizer.ggml.{key}_token_id"] for key in ("bos", "eos")], [0, 1])
                self.assertEqual([fields[f"tokenizer.ggml.add_{key}_token"] for key in ("bos", "eos")],
                                 [name != "qwen2", False])
                self.assertEqual(fields["tokenizer.chat_template"], CHAT)

    def test_a_sentencepiece_model_keeps_its_scores_and_types(self):
        folder, model = self.sentencepiece_folder()
        fields = fields_of(self.export(folder)[1])
        self.assertEqual(fields["tokenizer.ggml.model"], "llama")
        self.assertTrue(fields["tokenizer.ggml.add_space_prefix"])
        kinds = [(model.is_unknown, 2), (model.is_control, 3), (model.is_unused, 5), (model.is_byte, 6)]
        for i in range(410):
            self.assertEqual(fields["tokenizer.ggml.tokens"][i], model.id_to_piece(i))
            self.assertEqual(np.float32(fields["tokenizer.ggml.scores"][i]), np.float32(model.get_score(i)))
            self.assertEqual(fields["tokenizer.ggml.token_type"][i], next((n for is_it, n in kinds if is_it(i)), 1))

    @unittest.skipUnless(SMOLLM2.exists(), f"{SMOLLM2} is not there")
    def test_smollm2s_embedding_is_that_of_llama_cpps_file(self):
        _, reader = self.export(SMOLLM2, "--dtype", "q8_0")
        self.same_tensors(reader, SMOLLM2, "Q8_0")
        embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
        self.assertEqual(hashlib.sha256(embedding.data.tobytes()).hexdigest(), PUBLISHED_EMBEDDING)
        fields = fields_of(reader)
        file = json.loads((SMOLLM2 / "tokenizer.json").read_text())
        self.assertEqual(fields["tokenizer.ggml.pre"], "smollm")
        self.assertEqual(fields["tokenizer.ggml.tokens"], list(file["model"]["vocab"]))
        self.assertEqual([fields[f"tokenizer.ggml.{key}_token_id"] for key in ("bos", "eos", "unknown", "padding")],
                         [1, 2, 0, 2])
        self.assertFalse(fields["tokenizer.ggml.add_bos_token"])
        sizes = dict(block_count=30, context_length=8192, embedding_length=576, feed_forward_length=1536,
                     vocab_size=49152)
        self.assertEqual({key: fields[f"llama.{key}"] for key in sizes}, sizes)
        self.assertEqual(fields["llama.rope.dimension_count"], 64)
        self.assertEqual(fields["llama.rope.freq_base"], 100000)
        self.assertEqual(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]), np.float32(1e-5))

    def rewritten(self, reader, kind, path, blocks=None):
        """The same file as the package gguf writes it, matrices as `kind`, which blocks(rows) makes."""
        writer = gguf.GGUFWriter(path, fields_of(reader)["general.architecture"])
        for key, field in reader.fields.items():
            if key.startswith("GGUF.") or key == "general.architecture":
                continue
            inner = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)
        for tensor in reader.tensors:
            rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(
                [int(size) for size in reversed(tensor.shape)])
            if rows.ndim > 1:
                writer.add_tensor(tensor.name, blocks(rows) if blocks else gguf.quants.quantize(rows, kind),
                                  raw_dtype=kind)
            else:
                writer.add_tensor(tensor.name, rows)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def folder_of(self, file, name, *options):
        """The Hugging Face folder that the program makes of a GGUF file."""
        run("checkpoint", "export", "--load", file, "--output", self.path / name, *options)
        return safetensors.load_file(self.path / name / "model.safetensors")

    def test_reads_what_it_has_written(self):
        for name, folder, tokenizer in self.models():
            wanted = safetensors.load_file(folder / "model.safetensors")
            theirs = json.loads((folder / "config.json").read_text())
            for dtype in ("fp32", "bf16", "q8_0"):
                with self.subTest(name=name, dtype=dtype):
                    file, _ = self.export(folder, "--dtype", dtype)
                    got = self.folder_of(file, f"{file.stem} back")
                    self.assertEqual(sorted(got), sorted(wanted))
                    for key, tensor in wanted.items():
                        whole = tensor.float().numpy()
                        if dtype == "q8_0" and tensor.ndim > 1:
                            kind = gguf.GGMLQuantizationType[("F16" if tensor.shape[1] % 32 else "Q8_0")]
                            whole = gguf.quants.dequantize(gguf.quants.quantize(whole, kind), kind)
                        elif dtype == "bf16" and tensor.ndim > 1:
                            whole = tensor.bfloat16().float().numpy()
                        self.assertEqual(got[key].float().numpy().tobytes(), whole.tobytes(), key)
                    config = json.loads((self.path / f"{file.stem} back" / "config.json").read_text())
                    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                                "intermediate_size", "rms_norm_eps", "vocab_size", "max_position_embeddings"):
                        self.assertEqual(config[key], theirs[key], key)
                    if name == "llama":
                        rope = config["rope_parameters"]
                        self.assertEqual({key: rope[key] for key in LLAMA_3}, LLAMA_3)
            text = "the cat sees 1234 dogs,  and <|end|> <tool> call\n"
            ids = run("tokenizer", "encode", "--tokenizer", file, stdin=text).split()
            expected = tokenizer.encode(text.rstrip("\n"), add_special_tokens=False).ids
            self.assertEqual([int(id) for id in ids], expected, name)

    def test_reads_blocks_as_the_package_does(self):
        for name, folder, _ in self.models():
            if name not in ("llama", "qwen2"):
                continue
            _, reader = self.export(folder, "--dtype", "fp32")
            for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16", "F16"):
                with self.subTest(name=name, kind=kind):
                    kind = gguf.GGMLQuantizationType[kind]
                    file = self.rewritten(reader, kind, self.path / f"{name}-{kind.name}.gguf")
                    got = self.folder_of(file, f"{name} of {kind.name}", "--dtype", "fp32")
                    for tensor in gguf.GGUFReader(file).tensors:
                        if tensor.name == "rope_freqs.weight":
                            continue
                        rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(
                            [int(size) for size in reversed(tensor.shape)])
                        part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
                        if name == "llama" and part in ("attn_q", "attn_k"):
                            rows = unpermute(rows, {"attn_q": 4, "attn_k": 2}[part])
                        self.assertEqual(got[self.hugging_face_name(tensor.name)].numpy().tobytes(),
                                         np.ascontiguousarray(rows).tobytes(), tensor.name)

    def test_reads_blocks_of_256_as_the_package_does(self):
        """The package does not write them: any bytes are such blocks, as long as their scales are numbers."""
        config = transformers.LlamaConfig(vocab_size=416, hidden_size=256, intermediate_size=512, num_hidden_layers=1,
                                          num_attention_heads=4, num_key_value_heads=2, bos_token_id=0, eos_token_id=1)
        folder = self.path / "wide"
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        learned_tokenizer(folder, "llama-bpe")
        _, reader = self.export(folder)
        random = np.random.default_rng(5)
        for name, scales in (("Q4_K", [0, 2]), ("Q5_K", [0, 2]), ("Q6_K", [208])):
            kind = gguf.GGMLQuantizationType[name]
            size = gguf.GGML_QUANT_SIZES[kind][1]
            wanted = {}

            def blocks(rows, kind=kind, size=size, scales=scales):
                data = random.integers(0, 256, (rows.shape[0], rows.shape[1] // 256, size), dtype=np.uint8)
                for at in scales:
                    numbers = random.normal(0, 1e-3, data.shape[:2] + (1,)).astype(np.float16)
                    data[..., at:at + 2] = numbers.view(np.uint8)
                return data.reshape(rows.shape[0], -1)

            file = self.rewritten(reader, kind, self.path / f"{name}.gguf", blocks)
            got = self.folder_of(file, f"of {name}", "--dtype", "fp32")
            for tensor in gguf.GGUFReader(file).tensors:
                rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(
                    [int(size) for size in reversed(tensor.shape)])
                part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
                if part in ("attn_q", "attn_k"):
                    rows = unpermute(rows, {"attn_q": 4, "attn_k": 2}[part])
                wanted[self.hugging_face_name(tensor.name)] = np.ascontiguousarray(rows)
            self.assertEqual(sorted(got), sorted(wanted))
            for key, rows in wanted.items():
                self.assertEqual(got[key].numpy().tobytes(), rows.tobytes(), f"{name}: {key}")

    def test_writes_blocks_of_256_that_the_package_reads(self):
        config = transformers.LlamaConfig(vocab_size=416, hidden_size=256, intermediate_size=544, num_hidden_layers=1,
                                          num_attention_heads=4, num_key_value_heads=2, bos_token_id=0, eos_token_id=1)
        folder = self.path / "narrow"
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        learned_tokenizer(folder, "llama-bpe")
        wanted = safetensors.load_file(folder / "model.safetensors")
        file, reader = self.export(folder, "--dtype", "q4_k")
        back = self.folder_of(file, "narrow back", "--dtype", "fp32")
        kinds = {}
        for tensor in reader.tensors:
            if len(tensor.shape) == 1:
                continue
            name = self.hugging_face_name(tensor.name)
            rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else tensor.name
            if part in ("attn_q", "attn_k"):
                rows = unpermute(rows, {"attn_q": 4, "attn_k": 2}[part])
            self.assertEqual(back[name].numpy().tobytes(), np.ascontiguousarray(rows).tobytes(), tensor.name)
            whole = wanted[name].float().numpy()
            kinds[part], off = tensor.tensor_type.name, np.sqrt(((rows - whole) ** 2).mean() / (whole ** 2).mean())
            self.assertLess(off, 0.01 if kinds[part] == "Q8_0" else 0.09, tensor.name)
        self.assertEqual(kinds, {"token_embd.weight": "Q8_0", "output.weight": "Q8_0", "ffn_down": "Q4_1",
                                 **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"),
                                                 "Q4_K")})

    def test_a_file_generates_and_imports_as_its_folder_does(self):
        folder, _ = self.model("llama")
        file, _ = self.export(folder, "--dtype", "fp32")
        words = ["--prompt", "the cat", "--temperature", 0, "--max-new-tokens", 12, "--json", "--ignore-eos"]
        of_folder = json.loads(run("generate", "--load", folder, *words))
        self.assertEqual(json.loads(run("generate", "--load", file, *words)), of_folder)
        run("checkpoint", "import", "--from", file, "--output", self.path / "imported")
        self.assertEqual(json.loads(run("generate", "--load", self.path / "imported", *words)), of_folder)
        self.assertEqual((self.path / "imported/chat_template.jinja").read_text(), CHAT)
        chat = ["--chat", *words]
        self.assertEqual(run("generate", "--load", file, *chat), run("generate", "--load", folder, *chat))

    def test_a_sentencepiece_tokenizer_is_read(self):
        folder, model = self.sentencepiece_folder()
        file, _ = self.export(folder)
        for line in ("the cat  sees 12 dogs", " never\u00e9 \u4e16"):
            ids = run("tokenizer", "encode", "--tokenizer", file, stdin=line + "\n").split()
            self.assertEqual([int(id) for id in ids], model.encode(line), line)

    def test_what_would_compute_another_result_is_refused(self):
        folder, _ = self.model("llama")
        output, _ = self.export(folder, "--dtype", "fp32")
        whole = output.read_bytes()
        for old, new in [(b"llama.block_count", b"llama.blok_count2"), (b"rope_freqs.weight", b"rope_fregs.weight"),
                         (b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
                          b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0lamma"), (b"GGUF\x03", b"GGUF\x01")]:
            self.assertEqual(whole.count(old), 1, old)
            (self.path / "changed.gguf").write_bytes(whole.replace(old, new))
            error = run("generate", "--load", self.path / "changed.gguf", "--prompt", "the", code=2)
            self.assertIn("changed.gguf", error)
        (self.path / "changed.gguf").write_bytes(whole[:len(whole) - 4096])
        self.assertIn("must lie in the file", run("generate", "--load", self.path / "changed.gguf", "--prompt", "the",
                                                  code=2))

    @unittest.skipUnless(SMOLLM2.exists(), f"{SMOLLM2} is not there")
    def test_smollm2_in_blocks_writes_alike_from_folder_and_file(self):
        output, _ = self.export(SMOLLM2, "--dtype", "q8_0")
        words = ["--prompt", "The capital of France is", "--temperature", 0, "--max-new-tokens", 8, "--json",
                 "--weights", "q8_0"]
        of_folder = json.loads(run("generate", "--load", SMOLLM2, *words))
        self.assertIn("Paris", of_folder["text"])
        self.assertEqual(json.loads(run("generate", "--load", output, *words)), of_folder)

    @unittest.skipUnless(PUBLISHED.exists() and SMOLLM2.exists(), f"{PUBLISHED} is not there")
    def test_llama_cpps_own_file_is_the_folder_that_was_made_of_it(self):
        got = self.folder_of(PUBLISHED, "published")
        wanted = safetensors.load_file(SMOLLM2 / "model.safetensors")
        self.assertEqual(sorted(got), sorted(wanted))
        for key, tensor in wanted.items():
            self.assertTrue(torch.equal(got[key], tensor), key)
        words = ["--prompt", "The capital of France is", "--temperature", 0, "--max-new-tokens", 8, "--json"]
        of_folder = json.loads(run("generate", "--load", SMOLLM2, *words))
        self.assertEqual(json.loads(run("generate", "--load", PUBLISHED, *words)), of_folder)
        text = TRAIN.read_text()[:20000]
        ids = [run("tokenizer", "encode", "--tokenizer", path, stdin=text) for path in (PUBLISHED, SMOLLM2)]
        self.assertEqual(ids[0], ids[1])

    @unittest.skipUnless(PUBLISHED.exists(), f"{PUBLISHED} is not there")
    def test_make_chat_serves_it_and_talks(self):
        result = subprocess.run([ROOT / "scripts/chat.sh", "--temperature", "0", "--max-new-tokens", "12"],
                                input="What is the capital city of France called?\n/quit\n",
                                capture_output=True, text=True,
                                timeout=300, env={**os.environ, "MEGATRON": os.path.abspath(MEGATRON)})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("smollm2-135m-instruct.gguf is served at http://127.0.0.1:", result.stdout)
        self.assertIn("Paris", result.stdout)

    @unittest.skipUnless(SMOLLM2.exists(), f"{SMOLLM2} is not there")
    def test_smollm2s_perplexity_in_blocks_is_near_that_of_float32(self):
        words = ["eval", "loss", "--load", SMOLLM2, "--data", TRAIN, "--window", 256, "--limit-tokens", 2048, "--json"]
        whole = json.loads(run(*words))
        # The folder's weights are levels of Q4_1, which blocks of Q4_1 keep: of Q4_0 each loses up to half a level.
        for weights, bound in (("q8_0", 0.01), ("q4_1", 0.04), ("q4_0", 0.25)):
            blocks = json.loads(run(*words, "--weights", weights))
            self.assertLess(abs(blocks["perplexity"] / whole["perplexity"] - 1), bound, weights)
            self.assertNotEqual(blocks["loss"], whole["loss"])


if __name__ == "__main__":
    unittest.main()
