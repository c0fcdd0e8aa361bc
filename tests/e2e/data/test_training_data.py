"""What a run can learn from, on small texts: blends, packed documents, conversations, fill-in-the-middle, numbers."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import RunFolder, SMALL_MODEL, run, text_of_sentences  # noqa: E402

MARKS = ["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
            "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def write(path, objects):
    path.write_text("".join(json.dumps(one) + "\n" for one in objects))
    return path


def losses_of(folder):
    """Of each step, which also says how long it waited for its samples."""
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [step for step in steps if "loss" in step]
    if min(step["data_wait_ms"] for step in steps) < 0:
        raise AssertionError(f"{folder}: a wait below 0")
    return [step["loss"] for step in steps]


class TrainingData(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder(tokenizer=cls.make_tokenizer())
        cls.addClassCleanup(cls.place.close)

    @classmethod
    def make_tokenizer(cls):
        folder = tempfile.TemporaryDirectory(prefix="megatron-e2e-")
        cls.addClassCleanup(folder.cleanup)
        place = pathlib.Path(folder.name)
        (place / "text.txt").write_text("\n".join(text_of_sentences(1000)))
        run("tokenizer", "train", "--input", place / "text.txt", "--vocab-size", 330, "--output", place,
            "--special-tokens", *MARKS)
        (place / "chat_template.jinja").write_text(TEMPLATE)
        return place

    def learned_by_one_rank_and_by_two(self, name, *options):
        """The losses, which are the same and fall."""
        losses = []
        for ranks in (1, 2):
            out = self.place.path / f"{name}{ranks}"
            run("train", self.place.recipe, "--tokenizer", self.place.tokenizer, "--train.out", out, "--train-iters", 6,
                "--world-size", ranks, "--train.dtype", "fp64", *options)
            losses.append(losses_of(out))
        self.assertEqual((len(losses[0]), len(losses[1])), (6, 6))
        for one, two in zip(*losses):
            self.assertAlmostEqual(one, two, delta=1e-9)
        self.assertLess(losses[0][-1], losses[0][0] - 0.3, name)
        return tuple(losses[0])

    def test_every_kind_is_learned_the_same_by_one_rank_and_by_two(self):
        path = self.place.path
        other = write(path / "other.jsonl", [{"text": line} for line in text_of_sentences(500, seed=2)])
        run("data", "preprocess", "--input", other, "--tokenizer", self.place.tokenizer, "--output-prefix",
            path / "other", "--append-eod")
        asked = text_of_sentences(400, seed=3)
        chats = write(path / "chats.jsonl", [
            {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
            for question, answer in zip(asked[::2], asked[1::2])])
        blend = ["--data-path", "0.3", path / "tokens_text_document", "0.7", path / "other_text_document"]
        conversations = ["--data-path", chats, "--data.sft", "--data.seq_length", 96]
        kinds = {
            "one": ["--data-path", path / "tokens_text_document"],
            "blend": blend,
            "packed": [*blend, "--data.packed"],
            "fim": [*blend, "--data.fim_data", "--fim-rate", 1],
            "sft": conversations,
            "sft_packed": [*conversations, "--data.packed"],
        }
        losses = {self.learned_by_one_rank_and_by_two(name, *options) for name, options in kinds.items()}
        self.assertEqual(len(losses), len(kinds), "each kind reads something else")

    def test_special_tokens_may_lie_behind_the_rows_of_a_folder(self):
        """As in a folder of Gemma 3 for texts: what is trained is the same, and a document that has one is named."""
        place = RunFolder()
        self.addCleanup(place.close)
        place.train("run", "--train-iters", 2)
        folder = place.path / "folder"
        run("checkpoint", "export", "--load", place.path / "run", "--output", folder)
        file = json.loads((folder / "tokenizer.json").read_text())
        rows = json.loads((folder / "config.json").read_text())["vocab_size"]

        def write_tokenizer(name):
            extra = {"id": rows, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                     "normalized": False, "special": True}
            (folder / "tokenizer.json").write_text(
                json.dumps({**file, "added_tokens": [*file["added_tokens"], extra]}))

        def train(name, data, code=0):
            return run("train", place.recipe, "--load", folder, "--use-checkpoint-args", "--tokenizer", folder,
                       "--data-path", data, "--train.out", place.path / name, "--train-iters", 3, code=code)

        tokens = place.path / "tokens_text_document"
        train("before", tokens)
        write_tokenizer("<image_soft_token>")
        train("after", tokens)
        self.assertEqual(losses_of(place.path / "after"), losses_of(place.path / "before"))
        run("plan", place.path / "after" / "recipe.toml")
        texts = write(place.path / "pictures.jsonl", [{"text": line} for line in ["5 6 7", f"8 {rows} 9"] * 90])
        run("data", "preprocess", "--input", texts, "--tokenizer", rows + 1, "--tokenizer-type", "NullTokenizer",
            "--output-prefix", place.path / "pictures")  # texts of ids
        self.assertRegex(train("refused", place.path / "pictures_text_document", code=2),
                         rf"pictures_text_document, sequence 1: (?s:.*)token {rows}\b")
        pairs, task = place.path / "pairs.tsv", place.path / "task.toml"
        pairs.write_text("index\tsentence1\tsentence2\tgold_label\n" +
                         "".join(f"{i}\tthe cat\ta <image_soft_token>\tneutral\n" for i in range(4)))
        task.write_text('[task]\nname = "mnli"\n[train]\nmicro_batch_size = 4\nglobal_batch_size = 4\n')
        run("finetune", task, "--load", folder, "--train-data", pairs, "--valid-data", pairs, "--seq-length", 32,
            "--epochs", 1, "--train.out", place.path / "tuned")  # a task's texts have no special tokens
        write_tokenizer("<|end|>")
        (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
        self.assertIn("must hold the tokenizer's tokens", train("no_end", tokens, code=2))


class Numbers(unittest.TestCase):
    def test_numbers_are_learned_without_a_vocabulary_and_counted_on(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-e2e-")
        self.addCleanup(folder.cleanup)
        path, numbers = pathlib.Path(folder.name), ["--tokenizer", 40, "--tokenizer-type", "NullTokenizer"]
        (path / "recipe.toml").write_text(SMALL_MODEL)
        counting = write(path / "numbers.jsonl", [
            {"text": " ".join(str(number % 40) for number in range(first, first + 50))} for first in range(400)])
        run("data", "preprocess", "--input", counting, *numbers, "--output-prefix", path / "numbers", "--append-eod")
        run("train", path / "recipe.toml", *numbers, "--data-path", path / "numbers_text_document", "--train.out",
            path / "counted", "--train-iters", 60)
        losses = losses_of(path / "counted")
        self.assertEqual(len(losses), 60)
        self.assertLess(losses[-1], losses[0] - 2)
        answer = json.loads(run("generate", "--load", path / "counted", "--prompt", "36 37 38", "--temperature", 0,
                                "--max-new-tokens", 4, "--json"))
        self.assertEqual(answer["new_ids"], [39, 0, 1, 2])
        self.assertEqual(answer["text"].split(), ["39", "0", "1", "2"])


if __name__ == "__main__":
    unittest.main()
