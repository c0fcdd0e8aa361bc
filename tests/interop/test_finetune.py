"""Fine-tuned models, both ways: transformers loads what the program exports and has the same logits, and the program
reads what transformers has written. Needs torch, transformers."""
import array
import json
import pathlib
import random
import sys
import tempfile
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import run  # noqa: E402

torch, transformers, MISSING = peers("torch", "transformers")
if not MISSING:
    transformers.logging.set_verbosity_error()

WORDS = ["the", "cat", "dog", "sees", "likes", "old", "new", "house", "who", "what", "on", "monday"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
LABELS = ["contradiction", "entailment", "neutral"]
LENGTH = 40
RECIPE = f"""
[data]
seq_length = {LENGTH}
[schedule]
lr = 1e-3
[train]
micro_batch_size = 4
global_batch_size = 4
[parallel]
threads_per_rank = 1
"""


def text(draw, least, most):
    return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))


@unittest.skipIf(MISSING, MISSING)
class FineTuned(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-interop-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        torch.manual_seed(3)
        self.draw = random.Random(4)
        self.config = transformers.BertConfig(vocab_size=len(VOCABULARY), hidden_size=32, num_hidden_layers=2,
                                              num_attention_heads=4, intermediate_size=48, max_position_embeddings=64)
        (self.path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
        (self.path / "recipe.toml").write_text(RECIPE)

    def save(self, name, model):
        """A folder of transformers, none of whose numbers are 0 or 1."""
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(self.path / name)
        (self.path / name / "vocab.txt").write_text((self.path / "vocab.txt").read_text())
        return self.path / name

    def ids(self, *texts):
        """[CLS] first [SEP] second [SEP], and the segments."""
        rows = [[VOCABULARY.index(word) for word in text.split()] + [3] for text in texts]
        return [2] + rows[0] + rows[1], [0] * (len(rows[0]) + 1) + [1] * len(rows[1])

    def theirs(self, folder, kind, samples):
        """Logits of each sample, whose rows are pairs of texts, by transformers alone."""
        model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
        self.assertFalse(report["missing_keys"] or report["unexpected_keys"], report)
        model.eval()
        outputs = []
        for rows in samples:
            if "Bert" not in kind:  # a GPT reads END first END second END
                ids, end = self.ids(*rows[0])[0], len(VOCABULARY)
                with torch.no_grad():
                    outputs.append(model(torch.tensor([[end if id in (2, 3) else id for id in ids]])).logits[0])
                continue
            pairs = [self.ids(*row) for row in rows]
            longest = max(len(ids) for ids, _ in pairs)
            filled = [[row + [0] * (longest - len(row)) for row in rows] for rows in zip(*pairs)]
            mask = [[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in pairs]
            inputs = [torch.tensor(x) for x in (*filled, mask)]
            if kind == "BertForMultipleChoice":
                inputs = [x.unsqueeze(0) for x in inputs]
            with torch.no_grad():
                output = model(input_ids=inputs[0], token_type_ids=inputs[1], attention_mask=inputs[2])
            outputs.append(torch.cat([output.start_logits[0], output.end_logits[0]]) if kind.endswith("Answering")
                           else output.logits[0])
        return outputs

    def query(self, task):
        """Questions are cut to fewer tokens than they are by themselves."""
        return [] if task == "mnli" else ["--max-query-length", 10]

    def finetune(self, task, data, load, out, *options):
        report = json.loads(run("finetune", self.path / "recipe.toml", "--task", task, "--train-data", data,
                                "--valid-data", data, "--load", load, "--train.out", self.path / out,
                                *self.query(task), "--json", *options))
        values = array.array("f")
        values.frombytes((self.path / out / "seed_1234/valid_logits.f32").read_bytes())
        return report["median"], torch.tensor(values.tolist())

    def there_and_back(self, task, kind, data, samples, head, base=None):
        """Learns a little from a folder without a head, exports, and compares; `head`: a model of transformers' own."""
        base = self.save(f"{task}-base", base or transformers.BertModel(self.config))
        metrics, logits = self.finetune(task, data, base, f"{task}-ours", "--epochs", 2)
        run("checkpoint", "export", "--load", self.path / f"{task}-ours/seed_1234", "--output",
            self.path / f"{task}-hf")
        scores = json.loads(run("eval", task, "--load", self.path / f"{task}-ours/seed_1234", "--data", data, "--json"))
        self.assertEqual({name: scores[name] for name in metrics}, metrics)  # cut as in the fine-tuning
        own = self.save(f"{task}-theirs", head)
        for folder, mine in ((self.path / f"{task}-hf", logits), (own, None)):
            again, read = self.finetune(task, data, folder, folder.name + "-read", "--epochs", 0)
            scores = json.loads(run("eval", task.rstrip("1"), "--load", folder, "--data", data, "--seq-length", LENGTH,
                                    *self.query(task), "--json"))
            self.assertEqual({name: scores[name] for name in again}, again)
            if mine is not None:
                self.assertEqual(again, metrics)
                self.assertTrue(torch.equal(read, mine))
            rows = read.view(len(samples), -1)
            for got, wanted in zip(rows, self.theirs(folder, kind, samples)):
                if kind.endswith("Answering"):
                    length = len(wanted) // 2
                    got = torch.cat([got[:length], got[LENGTH:LENGTH + length]])
                self.assertLess((got - wanted).abs().max(), 2e-5, folder.name)
        imported = self.path / f"{task}-imported"
        run("checkpoint", "import", "--from", own, "--output", imported)
        run("checkpoint", "export", "--load", imported, "--output", self.path / f"{task}-again")
        weights = [getattr(transformers, kind).from_pretrained(folder).state_dict()
                   for folder in (own, self.path / f"{task}-again")]  # their products depend on where weights lie
        self.assertEqual(weights[0].keys(), weights[1].keys())
        for name, weight in weights[0].items():
            self.assertTrue(torch.equal(weight, weights[1][name]), name)

    def pairs(self):
        pairs = [(text(self.draw, 2, 9), text(self.draw, 2, 9), self.draw.choice(LABELS)) for _ in range(10)]
        data = self.path / "mnli.tsv"
        data.write_text("index\tsentence1\tsentence2\tgold_label\n" +
                        "".join(f"{i}\t" + "\t".join(pair) + "\n" for i, pair in enumerate(pairs)))
        return data, pairs

    def classes_of_a_gpt(self, kind, config):
        end = len(VOCABULARY)
        (self.path / "vocab.txt").write_text("\n".join([*VOCABULARY, "<|endoftext|>"]) + "\n")
        config.update(dict(vocab_size=end + 1, bos_token_id=end, eos_token_id=end, pad_token_id=0,
                           id2label=dict(enumerate(LABELS)), label2id={label: i for i, label in enumerate(LABELS)}))
        data, pairs = self.pairs()
        name = f"{kind}ForSequenceClassification"
        self.there_and_back("mnli", name, data, [[pair[:2]] for pair in pairs], getattr(transformers, name)(config),
                            getattr(transformers, "GPT2Model" if kind == "GPT2" else f"{kind}ForCausalLM")(config))
        exported = json.loads((self.path / "mnli-hf/config.json").read_text())
        self.assertEqual((exported["architectures"], exported["id2label"]),
                         ([name], {str(i): label for i, label in enumerate(LABELS)}))

    def test_classes_of_a_gpt2(self):
        self.classes_of_a_gpt("GPT2", transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64))

    def test_classes_of_a_llama(self):
        self.classes_of_a_gpt("Llama", transformers.LlamaConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
            max_position_embeddings=64, tie_word_embeddings=False))

    def test_classes(self):
        data, pairs = self.pairs()
        self.config.id2label = dict(enumerate(LABELS))
        self.config.label2id = {label: i for i, label in enumerate(LABELS)}
        self.there_and_back("mnli", "BertForSequenceClassification", data, [[pair[:2]] for pair in pairs],
                            transformers.BertForSequenceClassification(self.config))
        exported = json.loads((self.path / "mnli-hf/config.json").read_text())
        self.assertEqual(exported["id2label"], {str(i): label for i, label in enumerate(LABELS)})
        self.assertEqual(json.loads((self.path / "mnli-again/config.json").read_text())["id2label"],
                         exported["id2label"])

    def test_learns_as_torch_does(self):
        """Without dropout and with all examples in each step, every step's loss is that of a loop in torch."""
        self.config.hidden_dropout_prob = self.config.attention_probs_dropout_prob = 0.0
        pairs = [(text(self.draw, 2, 9), text(self.draw, 2, 9), self.draw.randrange(3)) for _ in range(8)]
        data = self.path / "mnli.tsv"
        data.write_text("index\tsentence1\tsentence2\tgold_label\n" +
                        "".join(f"{i}\t{a}\t{b}\t{LABELS[label]}\n" for i, (a, b, label) in enumerate(pairs)))
        self.config.id2label = dict(enumerate(LABELS))
        self.config.label2id = {label: i for i, label in enumerate(LABELS)}
        model = transformers.BertForSequenceClassification(self.config)
        folder = self.save("start", model)
        steps, rate, warm, decay = 20, 2e-3, 4, 0.1
        self.finetune("mnli", data, folder, "out", "--epochs", steps, "--global-batch-size", 8, "--lr", rate,
                      "--lr-decay-style", "linear", "--lr-warmup-fraction", warm / steps, "--weight-decay", decay,
                      "--log-interval", 1)
        metrics = (self.path / "out/seed_1234/metrics.jsonl").read_text().splitlines()
        ours = [step["loss"] for step in map(json.loads, metrics) if "step_ms" in step]

        ids = [self.ids(a, b) for a, b, _ in pairs]
        longest = max(len(row) for row, _ in ids)
        inputs = {name: torch.tensor([row + [0] * (longest - len(row)) for row in rows]) for name, rows in
                  (("input_ids", [i for i, _ in ids]), ("token_type_ids", [t for _, t in ids]),
                   ("attention_mask", [[1] * len(i) for i, _ in ids]))}
        labels = torch.tensor([label for _, _, label in pairs])
        optimizer = torch.optim.AdamW([
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
            {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}], lr=rate)
        theirs = []
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate * (step / warm if step <= warm else (steps - step) / (steps - warm))
            loss = model(**inputs, labels=labels).loss
            theirs.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        self.assertLess(theirs[-1], 0.5 * theirs[0])
        for step, (mine, wanted) in enumerate(zip(ours, theirs, strict=True)):
            self.assertLess(abs(mine - wanted), 2e-4 * wanted, f"step {step + 1}: {ours}, torch {theirs}")

    def test_classes_of_a_bert_whose_blocks_begin_with_norms(self):
        """transformers' MegatronBert: the order of the 2019 paper, which a BERT that is trained here has."""
        config = transformers.MegatronBertConfig(**{name: getattr(self.config, name) for name in (
            "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "max_position_embeddings")}, id2label=dict(enumerate(LABELS)),
                                                 label2id={label: i for i, label in enumerate(LABELS)})
        data, pairs = self.pairs()
        self.there_and_back("mnli", "MegatronBertForSequenceClassification", data, [[pair[:2]] for pair in pairs],
                            transformers.MegatronBertForSequenceClassification(config),
                            transformers.MegatronBertModel(config))

    def test_options(self):
        articles = [{"id": f"a{i}", "article": text(self.draw, 8, 14), "questions": [text(self.draw, 2, 5) + " who"],
                     "options": [[text(self.draw, 1, 4) for _ in range(4)]], "answers": [self.draw.choice("ABCD")]}
                    for i in range(6)]
        data = self.path / "race.txt"
        data.write_text("".join(json.dumps(article) + "\n" for article in articles))
        samples = [[(a["questions"][0] + " " + option, a["article"]) for option in a["options"][0]] for a in articles]
        self.there_and_back("race", "BertForMultipleChoice", data, samples,
                            transformers.BertForMultipleChoice(self.config))

    def test_spans(self):
        paragraphs, samples = [], []
        for i in range(6):
            context, question = text(self.draw, 10, 20), text(self.draw, 2, 6)
            answer = context.split()[3]
            begin = len(" ".join(context.split()[:3])) + 1
            paragraphs.append({"context": context, "qas": [{"id": f"q{i}", "question": question, "answers": [
                {"text": answer, "answer_start": begin}]}]})
            samples.append([(question, context)])
        data = self.path / "squad.json"
        data.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
        self.there_and_back("squad1", "BertForQuestionAnswering", data, samples,
                            transformers.BertForQuestionAnswering(self.config))


if __name__ == "__main__":
    unittest.main()
