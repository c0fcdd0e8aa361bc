"""What a T5 answers is what transformers generates. Needs torch, transformers, peft."""
import copy
import json
import pathlib
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
