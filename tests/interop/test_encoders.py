"""Encoders against transformers: tiny models at random. Folders come back bit by bit; the loss of masked tokens, its
gradients, and the logits of fine-tuned models are transformers'. Needs torch, transformers, peft,
safetensors."""
import array
import json
import pathlib
import random
import shutil
import sys
import tempfile
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import run, text_of_sentences  # noqa: E402

torch, transformers, peft, safetensors, MISSING = peers("torch", "transformers", "peft", "safetensors.torch")
if not MISSING:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

TOLERANCE = 1e-5
LENGTH = 40
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LABELS = ["contradiction", "entailment", "neutral"]
LINE = "the old man never answers my friend on monday, and the cat sees a dog."
RECIPE = f"""
[data]
seq_length = {LENGTH}
split = "1,0,0"
short_seq_prob = 0.0
[train]
micro_batch_size = 1
global_batch_size = 1
train_iters = 1
eval_interval = 0
[parallel]
threads_per_rank = 1
[optimizer]
name = "sgd"
sgd_momentum = 0.0
weight_decay = 0.0
clip_grad = 0.0
[schedule]
lr = 1.0
min_lr = 1.0
"""


def tensors_of(folder):
    return {name: tensor for file in pathlib.Path(folder).glob("model*.safetensors")
            for name, tensor in safetensors.load_file(file).items()}


@unittest.skipIf(MISSING, MISSING)
class Encoders(unittest.TestCase):
    sample = None

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="megatron-encoders-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        (cls.path / "recipe.toml").write_text(RECIPE)
        text = cls.path / "text.txt"
        text.write_text("\n".join(text_of_sentences(2000, seed=3)) + "\n" + LINE)
        cls.tokenizer = cls.path / "tokenizer"
        run("tokenizer", "train", "--input", text, "--vocab-size", 320, "--output", cls.tokenizer, "--special-tokens",
            *SPECIALS)
        cls.theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(cls.tokenizer / "tokenizer.json"))
        cls.cls_id, cls.pad, cls.sep, _, cls.mask = cls.theirs.convert_tokens_to_ids(SPECIALS)
        rows = cls.path / "rows.jsonl"
        rows.write_text((json.dumps({"text": LINE}) + "\n") * 20)  # every sample has the same tokens
        run("data", "preprocess", "--input", rows, "--tokenizer", cls.tokenizer, "--output-prefix", cls.path / "rows",
            "--split-sentences")
        cls.data = next(cls.path.glob("rows*.bin")).with_suffix("")

    def encoded(self, text):
        return self.theirs(text, add_special_tokens=False)["input_ids"]

    def save(self, name, model):
        """A folder of transformers, none of whose numbers are 0 or 1."""
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        folder = self.path / name
        model.save_pretrained(folder)
        for file in self.tokenizer.iterdir():
            shutil.copy(file, folder)
        return folder

    def check_weights(self, name, folder):
        run("checkpoint", "import", "--from", folder, "--output", self.path / f"{name}-ours")
        run("checkpoint", "export", "--load", self.path / f"{name}-ours", "--output", self.path / f"{name}-back")
        a, b = tensors_of(folder), tensors_of(self.path / f"{name}-back")
        self.assertEqual(sorted(a), sorted(b))
        for key, tensor in a.items():
            self.assertTrue(torch.equal(tensor, b[key]), key)

    def step(self, folder, out, seed, *options, code=0):
        return run("train", self.path / "recipe.toml", "--data-path", self.data, "--tokenizer", self.tokenizer,
                   "--load", folder, "--use-checkpoint-args", "--train.out", self.path / out, "--train.seed", seed,
                   "--hidden-dropout", 0, "--attention-dropout", 0, *options, code=code)

    def masked_sample(self, name, folder):
        """A seed, the tokens of its first sample, and the labels: what stood where a token is another. A masked token
        may stay as it is; seeds are tried until all that are masked have changed. The same of every model."""
        if self.sample is not None:
            return self.sample
        text = [self.cls_id, *self.encoded(LINE), self.sep]
        masked = round(len(text) * 0.15)
        for seed in range(40, 60):
            self.step(folder, f"{name}-{seed}", seed, "--guard.on_nan", "stop", "--guard.inject_faults", "nan:1",
                      code=1)
            batch = next((self.path / f"{name}-{seed}/batches").glob("*.bin")).with_suffix("")
            ids = json.loads(run("data", "cat", batch, "--range", "0", "--json"))["sequences"][0]["ids"]
            self.assertEqual(len(ids), LENGTH)
            self.assertEqual(ids[len(text):], [self.pad] * (LENGTH - len(text)))
            labels = [was if now != was else -100 for now, was in zip(ids, text)]
            if sum(label != -100 for label in labels) == masked:
                type(self).sample = seed, torch.tensor([ids[:len(text)]]), torch.tensor([labels])
                return self.sample
        self.fail("no seed changes all tokens that it masks")

    def check_masked(self, name, model):
        """Weights bit by bit; the loss of a sample; and its gradient, which a step of plain descent at the rate 1
        subtracts."""
        folder = self.save(name, model.eval())
        self.check_weights(name, folder)
        seed, ids, labels = self.masked_sample(name, folder)
        out = f"{name}-run"
        self.step(folder, out, seed)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        steps = [json.loads(line) for line in (self.path / out / "metrics.jsonl").read_text().splitlines()]
        ours = next(step["loss"] for step in steps if "loss" in step)
        self.assertAlmostEqual(ours / loss.item(), 1, delta=TOLERANCE)
        run("checkpoint", "export", "--load", self.path / out, "--output", self.path / f"{name}-after")
        after, report = type(model).from_pretrained(self.path / f"{name}-after", output_loading_info=True)
        self.assertFalse(report["missing_keys"] or report["unexpected_keys"], report)
        moved = 0
        with torch.no_grad():
            for (key, parameter), (_, now) in zip(model.named_parameters(), after.named_parameters()):
                gradient = parameter.grad
                moved += gradient.abs().max() > 1e-3
                self.assertLess((parameter - now - gradient).abs().max(),
                                TOLERANCE * max(1, gradient.abs().max().item()), f"{name}: {key}")
        self.assertGreater(moved, 10)

    def roberta(self, kind="Roberta", **more):
        return getattr(transformers, kind + "Config")(
            vocab_size=320, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=50 + self.pad + 1, type_vocab_size=1, pad_token_id=self.pad,
            bos_token_id=self.cls_id, eos_token_id=self.sep, **more)

    def test_masked_tokens_of_a_roberta(self):
        torch.manual_seed(5)
        self.check_masked("roberta", transformers.RobertaForMaskedLM(self.roberta()))

    def test_adapters_of_a_roberta(self):
        """The loss with PEFT's adapters, and their gradients, which a step of plain descent subtracts."""
        for dora in (False, True):
            with self.subTest(dora=dora):
                torch.manual_seed(6)
                folder = self.save("adapted", transformers.RobertaForMaskedLM(self.roberta()))
                model = peft.get_peft_model(
                    transformers.RobertaForMaskedLM.from_pretrained(folder),
                    peft.LoraConfig(r=4, lora_alpha=12, init_lora_weights=False, use_dora=dora, target_modules=[
                        "query", "key", "value", "intermediate.dense", "output.dense"]))
                theirs, out, back = (self.path / f"adapter-{name}-{dora}" for name in ("theirs", "run", "back"))
                model.save_pretrained(theirs)
                seed, ids, labels = self.masked_sample("adapted", folder)
                loss = model.eval()(input_ids=ids, labels=labels).loss
                loss.backward()
                for layout in ([], ["--world-size", 2, "--tp", 2, "--sp"]):
                    shutil.rmtree(out, ignore_errors=True)
                    shutil.rmtree(back, ignore_errors=True)
                    self.step(theirs, out, seed, "--lora.base", folder, "--lora.rank", 4, "--lora.alpha", 12,
                              "--lora.dora", str(dora).lower(), *layout)
                    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
                    ours = next(step["loss"] for step in steps if "loss" in step)
                    self.assertAlmostEqual(ours / loss.item(), 1, delta=TOLERANCE)
                    run("checkpoint", "export", "--load", out, "--output", back, "--format", "peft")
                    after = peft.PeftModel.from_pretrained(transformers.RobertaForMaskedLM.from_pretrained(folder),
                                                           back, is_trainable=True)
                    trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
                    now = {key: value for key, value in after.named_parameters() if value.requires_grad}
                    self.assertEqual(trained.keys(), now.keys())
                    for key, value in trained.items():
                        self.assertGreater(value.grad.abs().max().item(), 0, key)
                        self.assertLess((value - now[key] - value.grad).abs().max().item(),
                                        TOLERANCE * max(1, value.grad.abs().max().item()), key)

    def modern(self, **more):
        return transformers.ModernBertConfig(
            vocab_size=320, hidden_size=32, num_hidden_layers=5, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=64, pad_token_id=self.pad, bos_token_id=self.cls_id, eos_token_id=self.sep,
            cls_token_id=self.cls_id, sep_token_id=self.sep, local_attention=8, **more)

    def test_masked_tokens_of_a_modernbert(self):
        torch.manual_seed(8)
        rope = {kind: dict(rope_type="default", rope_theta=base)
                for kind, base in (("full_attention", 1000.0), ("sliding_attention", 50.0))}
        self.check_masked("modern", transformers.ModernBertForMaskedLM(self.modern(rope_parameters=rope)))

    def test_masked_tokens_of_a_modernbert_with_biases(self):
        torch.manual_seed(9)
        self.check_masked("modern-biased", transformers.ModernBertForMaskedLM(self.modern(
            norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True)))

    def test_weights_of_a_modernbert_without_head(self):
        torch.manual_seed(10)
        self.check_weights("modern-bare", self.save("modern-bare", transformers.ModernBertModel(self.modern())))

    def test_weights_of_a_roberta_with_other_heads(self):
        torch.manual_seed(6)
        for kind in ("Roberta", "XLMRoberta"):
            for head in ("Model", "ForMultipleChoice", "ForQuestionAnswering"):
                model = getattr(transformers, kind + head)(self.roberta(kind))
                self.check_weights(kind + head, self.save(kind + head, model))

    def test_classes_of_a_roberta(self):
        torch.manual_seed(7)
        config = self.roberta(id2label=dict(enumerate(LABELS)), label2id={label: i for i, label in enumerate(LABELS)})
        theirs = self.save("classes", transformers.RobertaForSequenceClassification(config))
        self.check_weights("classes", theirs)
        draw = random.Random(4)
        pairs = [(*(" ".join(draw.choices(LINE.split(), k=draw.randint(2, 6))) for _ in range(2)), draw.choice(LABELS))
                 for _ in range(8)]
        data = self.path / "mnli.tsv"
        data.write_text("index\tsentence1\tsentence2\tgold_label\n" +
                        "".join(f"{i}\t" + "\t".join(pair) + "\n" for i, pair in enumerate(pairs)))
        for folder, epochs in ((theirs, 0), (self.save("bare", transformers.RobertaModel(self.roberta())), 2)):
            out = self.path / f"tuned-{epochs}"
            recipe = self.path / "finetune.toml"
            recipe.write_text(f"[data]\nseq_length = {LENGTH}\n[schedule]\nlr = 1e-3\n[train]\nmicro_batch_size = 4\n"
                              "global_batch_size = 4\n[parallel]\nthreads_per_rank = 1\n")
            run("finetune", recipe, "--task", "mnli", "--train-data", data, "--valid-data", data, "--load", folder,
                "--train.out", out, "--epochs", epochs, "--json")
            values = array.array("f")
            values.frombytes((out / "seed_1234/valid_logits.f32").read_bytes())
            ours = torch.tensor(values.tolist()).view(len(pairs), -1)
            if epochs > 0:
                folder = self.path / "tuned-back"
                run("checkpoint", "export", "--load", out / "seed_1234", "--output", folder)
            model, report = transformers.RobertaForSequenceClassification.from_pretrained(folder,
                                                                                         output_loading_info=True)
            self.assertFalse(report["missing_keys"] or report["unexpected_keys"], report)
            for (first, second, _), logits in zip(pairs, ours):
                ids = [self.cls_id, *self.encoded(first), self.sep, self.sep, *self.encoded(second), self.sep]
                with torch.no_grad():
                    wanted = model.eval()(input_ids=torch.tensor([ids])).logits[0]
                self.assertLess((logits - wanted).abs().max(), TOLERANCE, folder)


if __name__ == "__main__":
    unittest.main()
