"""What a T5 answers is what transformers generates, and its adapters learn what peft's do. Needs torch, transformers,
peft."""
import copy
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import run  # noqa: E402

torch, transformers, peft, MISSING = peers("torch", "transformers", "peft")
if not MISSING:
    transformers.logging.set_verbosity_error()

# The tokens of a tokenizer, most of them whole words.
WORDS = ["[PAD]", "</s>", "[UNK]", "<extra_id_0>", "<extra_id_1>"] + [f"w{i}" for i in range(91)]
PROMPTS = [" ".join(f"w{(7 * i * i + 3 * p) % 91}" for i in range(length)) for p, length in enumerate((18, 5, 11))]
SIZES = dict(vocab_size=len(WORDS), d_model=32, d_kv=6, d_ff=48, num_layers=3, num_decoder_layers=2, num_heads=4,
             decoder_start_token_id=0, eos_token_id=1, pad_token_id=0)
LINE = [f"w{7 * i % 91}" for i in range(26)]  # none of them twice
STEPS = 4
RATE = 1e-3  # at ten times that Adam's steps by gradients that are rounding differ more than losses may
TRAINING = ["--data.split", "1,0,0", "--seq-length", 36, "--decoder-seq-length", 16, "--data.short_seq_prob", 0,
            "--micro-batch-size", 1, "--global-batch-size", 1, "--train-iters", STEPS, "--eval-interval", 0,
            "--log.interval", 1, "--optimizer", "adam", "--adam-beta2", 0.95, "--weight-decay", 0, "--clip-grad", 0,
            "--lr", RATE, "--min-lr", RATE, "--lr-warmup-samples", 0, "--hidden-dropout", 0, "--attention-dropout", 0]


def first_end(ids, ends):
    """`ids` up to the first end; what follows is padding."""
    for i, token in enumerate(ids):
        if token in ends:
            return ids[:i + 1]
    return ids


@unittest.skipIf(MISSING, MISSING)
class T5(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-interop-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def models(self):
        """T5 v1.0 and v1.1, drawn so that their answers end early, late and never."""
        for name, more in (("first", dict(feed_forward_proj="relu")),
                           ("second", dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False))):
            torch.manual_seed(2)
            model = transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES, **more)).eval()
            yield name, self.drawn(model, name, own_head=name == "second")

    def drawn(self, model, name, own_head):
        """A folder of transformers with other weights than zeros and ones."""
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.copy_(torch.randn(parameter.shape) * (1.0 if parameter.shape[0] == 96 else 0.3))
            if own_head:
                model.lm_head.weight = torch.nn.Parameter(torch.randn(96, 32) * 0.3)
            model.lm_head.weight[1] *= 1.5
        model.save_pretrained(self.path / name)
        (self.path / name / "vocab.txt").write_text("".join(word + "\n" for word in WORDS))
        (self.path / name / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
        return model

    def answers(self, folder, *options):
        words = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
        return json.loads(run("generate", "--load", folder, *words, "--json", *options))["texts"]

    def expect_the_peers(self, model, answers, tokens, what, **options):
        for answer in answers:
            ids = answer["prompt_ids"]
            self.assertEqual(ids[-1], 1, what)
            beams = options.get("num_beams", 1)
            made = model.generate(input_ids=torch.tensor([ids]), max_new_tokens=tokens, do_sample=False,
                                  return_dict_in_generate=True, output_scores=True, **options)
            self.assertEqual(answer["new_ids"], first_end(made.sequences[0, 1:].tolist(), [1]), what)
            if beams > 1:
                score = made.sequences_scores[0].item()
                self.assertLess(abs(answer["score"] - score), 1e-4 * (1 + abs(score)), what)

    def test_greedy_and_beam_search_in_every_layout(self):
        lengths = set()
        for name, model in self.models():
            folder = self.path / name
            greedy = self.answers(folder, "--max-new-tokens", 40)
            self.expect_the_peers(model, greedy, 40, name)
            searches = ((2, 1, "likely", False), (4, 1, "full", True), (4, 0.3, "likely", False),
                        (4, 2, "never", "never"), (3, -0.5, "likely", False))
            for beams, penalty, stop, theirs in searches:
                options = ["--num-beams", beams, "--length-penalty", penalty, "--early-stopping", stop,
                           "--max-new-tokens", 20]
                answers = self.answers(folder, *options)
                self.expect_the_peers(model, answers, 20, (name, options), num_beams=beams,
                                      length_penalty=float(penalty), early_stopping=theirs)
                lengths.update(len(answer["new_ids"]) for answer in answers)
            for layout in (["--tp", 2], ["--tp", 4], ["--pp", 2], ["--pp", 5], ["--tp", 2, "--pp", 3]):
                for one, other in zip(answers, self.answers(folder, *options, *layout)):
                    self.assertEqual(one["new_ids"], other["new_ids"], layout)
            run("checkpoint", "import", "--from", folder, "--output", self.path / f"{name}-ours")
            self.assertEqual([answer["new_ids"] for answer in self.answers(self.path / f"{name}-ours", *options)],
                             [answer["new_ids"] for answer in answers])
        self.assertGreater(len(lengths), 3)

    def test_heads_that_are_shared_but_not_scaled_and_mt5(self):
        gated = dict(**SIZES, feed_forward_proj="gated-gelu")
        kinds = (("shared", "T5", dict(**gated, tie_word_embeddings=False), False), ("mt5-shared", "MT5", gated, False),
                 ("mt5", "MT5", gated, True))
        for name, kind, sizes, own_head in kinds:
            torch.manual_seed(3)
            model = getattr(transformers, f"{kind}ForConditionalGeneration")(
                getattr(transformers, f"{kind}Config")(**sizes)).eval()
            self.drawn(model, name, own_head)
            self.assertEqual((self.path / name / "model.safetensors").read_bytes().find(b"lm_head") > 0, own_head, name)
            beams = self.answers(self.path / name, "--num-beams", 3, "--max-new-tokens", 12)
            self.expect_the_peers(model, beams, 12, name, num_beams=3)
            # What is exported is a T5 v1.1, whichever it was.
            run("checkpoint", "export", "--load", self.path / name, "--output", self.path / f"{name}-back")
            self.expect_the_peers(
                transformers.T5ForConditionalGeneration.from_pretrained(self.path / f"{name}-back").eval(), beams, 12,
                name, num_beams=3)

    def test_adapters_are_merged_and_come_back(self):
        for name, made in self.models():
            for dora in (False, True):
                with self.subTest(name, dora=dora):
                    self.check_adapters(name, f"{name}-{dora}", ["wi"] if name == "first" else ["wi_0", "wi_1"],
                                        use_dora=dora)

    def check_adapters(self, base, name, inner, **options):
        def whole():
            return transformers.T5ForConditionalGeneration.from_pretrained(self.path / base)

        model = peft.get_peft_model(whole(), peft.LoraConfig(
            task_type="SEQ_2_SEQ_LM", r=4, lora_alpha=12, init_lora_weights=False,
            target_modules=["q", "k", "v", "o", *inner, "wo"], **options)).eval()
        theirs, out, back = (self.path / f"{name}-{what}" for what in ("theirs", "run", "back"))
        model.save_pretrained(theirs)
        ids, answer = torch.arange(20)[None] + 5, torch.arange(9)[None] * 7 + 6

        def logits(of):
            with torch.no_grad():
                return of.eval()(input_ids=ids, decoder_input_ids=answer).logits

        run("checkpoint", "export", "--load", theirs, "--output", self.path / f"{name}-merged")
        merged = transformers.T5ForConditionalGeneration.from_pretrained(self.path / f"{name}-merged").state_dict()
        for key, value in copy.deepcopy(model).merge_and_unload().state_dict().items():
            self.assertLess((merged[key] - value).abs().max().item(), 1e-6 * max(1, value.abs().max().item()), key)
        merged, *kept = (self.answers(self.path / folder, "--num-beams", 2, "--max-new-tokens", 12, *words)
                         for folder, *words in ((f"{name}-merged",), (base, "--adapter", theirs),
                                                (base, "--adapter", theirs, "--tp", 2, "--pp", 2)))
        for answers in kept:
            self.assertEqual([one["new_ids"] for one in answers], [one["new_ids"] for one in merged])
        # A run that begins with them, whose rate is 0.
        (self.path / "recipe.toml").write_text("")
        run("train", self.path / "recipe.toml", "--lora.base", self.path / base, "--load", theirs, "--lora.rank", 4,
            "--lora.alpha", 12, "--lora.dora", str(options["use_dora"]).lower(), "--use-checkpoint-args", "--mock-data",
            "--train.out", out, "--seq-length", 16, "--decoder-seq-length", 8, "--train-iters", 1,
            "--global-batch-size", 1, "--micro-batch-size", 1, "--lr", 0, "--min-lr", 0, "--eval-interval", 0)
        run("checkpoint", "export", "--load", out, "--output", back, "--format", "peft")
        again = peft.PeftModel.from_pretrained(whole(), back)
        self.assertEqual(peft.get_peft_model_state_dict(again).keys(), peft.get_peft_model_state_dict(model).keys())
        self.assertTrue(torch.equal(logits(again), logits(model)))

    def samples(self, train):
        """What the steps read: (the encoder's tokens, labels). A run that stops at a step writes the first; labels are
        what is missing there of a line that every sample has, behind its sentinels."""
        line = [WORDS.index(word) for word in LINE]
        samples = []
        for step in range(1, STEPS + 1):
            train(f"stopped-{step}", "--guard.on_nan", "stop", "--guard.inject_faults", f"nan:{step}", code=1)
            batch = next((self.path / f"stopped-{step}/batches").glob("*.bin")).with_suffix("")
            ids = json.loads(run("data", "cat", batch, "--range", "0", "--json"))["sequences"][0]["ids"]
            ids, labels, left = [token for token in ids if token > 0], [], list(line)
            for token, following in zip(ids, [*ids[1:], None]):
                if left and token == left[0]:
                    left.pop(0)
                    continue
                labels.append(token)
                while left and left[0] != following:
                    labels.append(left.pop(0))
            self.assertEqual(sorted(labels + ids), sorted(line + 2 * [i for i in ids if i in (3, 4)]))
            samples.append((torch.tensor([ids]), torch.tensor([labels + [1]])))
        return samples

    def test_losses_and_matrices_of_adapters_are_pefts_at_every_step(self):
        rows = self.path / "rows.jsonl"
        rows.write_text((json.dumps({"text": " ".join(LINE)}) + "\n") * 20)
        (self.path / "recipe.toml").write_text("")
        for base, model in self.models():
            with torch.no_grad():  # so that losses are of the size of one token's, not of logits drawn far apart
                for parameter in model.parameters():
                    parameter.mul_(0.3 if parameter.dim() > 1 else 1)
            model.save_pretrained(self.path / base)
            for dora in (False, True):
                with self.subTest(base, dora=dora):
                    self.check_steps(base, f"{base}-{dora}", rows, dora)

    def check_steps(self, base, name, rows, dora):
        inner = ["wi"] if base == "first" else ["wi_0", "wi_1"]
        torch.manual_seed(7)
        model = peft.get_peft_model(
            transformers.T5ForConditionalGeneration.from_pretrained(self.path / base),
            peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, lora_alpha=12, init_lora_weights=False, use_dora=dora,
                            target_modules=["q", "k", "v", "o", *inner, "wo"])).eval()
        theirs = self.path / f"{name}-theirs"
        model.save_pretrained(theirs)
        data = self.path / f"{base}-rows"
        if not data.with_name(data.name + "_text_sentence.idx").exists():
            run("data", "preprocess", "--input", rows, "--tokenizer", self.path / base, "--output-prefix", data,
                "--split-sentences")

        def train(out, *options, code=0):
            shutil.rmtree(self.path / out, ignore_errors=True)
            return run("train", self.path / "recipe.toml", "--data-path", f"{data}_text_sentence", "--tokenizer",
                       self.path / base, "--lora.base", self.path / base, "--load", theirs, "--lora.rank", 4,
                       "--lora.alpha", 12, "--lora.dora", str(dora).lower(), "--use-checkpoint-args", *TRAINING,
                       "--train.out", self.path / out, *options, code=code)

        trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
        optimizer = torch.optim.AdamW(trained.values(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
        losses = []
        for ids, labels in self.samples(train):
            loss = model(input_ids=ids, labels=labels).loss
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for layout in ([], ["--world-size", 2, "--tp", 2, "--sp"],
                       ["--world-size", 2, "--pp", 2, "--pp-layout", "balanced"]):
            train(f"{name}-run", *layout)
            lines = (self.path / f"{name}-run/metrics.jsonl").read_text().splitlines()
            ours = [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]
            for step, (got, want) in enumerate(zip(ours, losses, strict=True), 1):
                self.assertLess(abs(got - want), 1e-5 * max(1, want), f"{layout} step {step}")
            back = self.path / f"{name}-back"
            shutil.rmtree(back, ignore_errors=True)
            run("checkpoint", "export", "--load", self.path / f"{name}-run", "--output", back, "--format", "peft")
            again = peft.PeftModel.from_pretrained(
                transformers.T5ForConditionalGeneration.from_pretrained(self.path / base), back, is_trainable=True)
            now = {key: value for key, value in again.named_parameters() if value.requires_grad}
            self.assertEqual(trained.keys(), now.keys())
            for key, value in trained.items():
                self.assertLess((value - now[key]).abs().max().item(), 1e-4, key)

    def test_a_sentencepiece_model_without_sentinels_gets_those_of_transformers(self):
        try:
            import sentencepiece
        except ImportError as error:
            self.skipTest(str(error))
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES))
        model.save_pretrained(self.path / "pieces")
        text = [" ".join(f"{word}{i % 7}" for word in ("house", "garden", "river")) for i in range(50)]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_prefix=str(self.path / "pieces/spiece"), vocab_size=40,
            model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, hard_vocab_limit=False)
        (self.path / "pieces/tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 8, "eos_token": "</s>"}))
        peer = transformers.T5Tokenizer.from_pretrained(self.path / "pieces")
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(self.path / "pieces/spiece.model"))
        self.assertEqual(peer.convert_tokens_to_ids("<extra_id_0>"), len(pieces) + 7)
        for prompt in ("house1 <extra_id_0> river3 <extra_id_7>", "<extra_id_1>garden2<extra_id_2>", "river5"):
            answer = json.loads(run("generate", "--load", self.path / "pieces", "--prompt", prompt, "--json",
                                    "--max-new-tokens", 1))
            self.assertEqual(answer["prompt_ids"], peer(prompt).input_ids, prompt)


if __name__ == "__main__":
    unittest.main()
