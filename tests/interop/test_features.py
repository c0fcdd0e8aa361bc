"""Rows of BERT against Hugging Face tokenizers: python3 -m unittest test_features, MEGATRON=path of the program. Needs
the package from PyPI and the shared data."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import DATA, run  # noqa: E402

VOCABULARY = DATA / "bert/vocab.txt"
try:
    from tokenizers import BertWordPieceTokenizer
    MISSING = "" if VOCABULARY.exists() else f"{VOCABULARY} is missing"
except ImportError as error:
    MISSING = f"{error}: pip install -r tests/interop/requirements.txt"

CLS, SEP = 101, 102


def rows_of(task, path, *options):
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "rows.jsonl"
        run("data", "features", "--task", task, "--input", path, "--tokenizer", VOCABULARY, "--output", output,
            *options)
        return [json.loads(line) for line in output.read_text().splitlines()]


def cut_longer(first, second, room):
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


def framed(first, second):
    return [CLS, *first, SEP, *second, SEP], [0] * (len(first) + 2) + [1] * (len(second) + 1)


@unittest.skipIf(MISSING, MISSING)
class Features(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.peer = BertWordPieceTokenizer(str(VOCABULARY))

    def ids(self, text):
        return self.peer.encode(text, add_special_tokens=False).ids

    def compare_squad(self, version, path, every, seq_length, stride):
        """A part of the questions, each with windows as the peer cuts them and the answer where its places say."""
        articles = json.loads(path.read_text())["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        for i, paragraph in enumerate(paragraphs):
            paragraph["qas"] = [question for k, question in enumerate(paragraph["qas"]) if (i + k) % every == 0]
        with tempfile.TemporaryDirectory() as folder:
            part = pathlib.Path(folder) / "part.json"
            part.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
            rows = iter(rows_of(version, part, "--seq-length", seq_length, "--doc-stride", stride))
        answers = windows = 0
        for paragraph in paragraphs:
            for question in paragraph["qas"]:
                query = self.ids(question["question"])
                room = seq_length - 3 - len(query)
                self.peer.enable_truncation(seq_length, stride=max(room - stride, 0), strategy="only_second")
                first = self.peer.encode(question["question"], paragraph["context"])
                self.peer.no_truncation()
                answer = question["answers"][0] if question["answers"] else None
                for window in [first, *first.overflowing]:
                    row = next(rows)
                    self.assertEqual(row["id"], question["id"])
                    self.assertEqual(row["ids"], window.ids, question)
                    self.assertEqual(row["types"], window.type_ids)
                    begin, end = len(query) + 2, len(window.ids) - 1
                    start = stop = 0
                    if answer:
                        left, right = answer["answer_start"], answer["answer_start"] + len(answer["text"])
                        if window.offsets[begin][0] <= left and window.offsets[end - 1][1] >= right:
                            start = max(i for i in range(begin, end) if window.offsets[i][0] <= left)
                            stop = min(i for i in range(begin, end) if window.offsets[i][1] >= right)
                            answers += 1
                    self.assertEqual((row["start"], row["end"]), (start, stop), question)
                    windows += 1
        self.assertIsNone(next(rows, None))
        return windows, answers

    def test_squad_windows_and_answers_are_equal(self):
        windows, answers = self.compare_squad("squad1", DATA / "squad/dev-v1.1.json", 1, 384, 128)
        self.assertGreater(min(windows, answers), 450)

    def test_squad_in_short_windows_with_questions_without_answer(self):
        windows, answers = self.compare_squad("squad2", DATA / "squad/dev-v2.0.cs224n-half.json", 1, 128, 32)
        self.assertGreater(windows, 900)
        self.assertGreater(answers, 200)

    def test_glue_pairs_are_equal(self):
        for task, name, texts in (("mnli", "mnli.tsv", ("sentence1", "sentence2")),
                                  ("qqp", "qqp.tsv", ("question1", "question2"))):
            lines = (DATA / "glue" / name).read_bytes().decode().rstrip("\n").split("\n")
            columns = [lines[0].split("\t").index(text) for text in texts]
            rows = rows_of(task, DATA / "glue" / name, "--seq-length", 32)
            self.assertEqual(len(rows), len(lines) - 1)
            for row, line in zip(rows, lines[1:]):
                first, second = (self.ids(line.split("\t")[column]) for column in columns)
                self.assertEqual((row["ids"], row["types"]), framed(*cut_longer(first, second, 29)), line)
                self.assertEqual(row["id"], line.split("\t")[0])

    def test_race_options_are_equal(self):
        path = DATA / "race/race.txt"
        rows = iter(rows_of("race", path, "--seq-length", 256, "--max-query-length", 40))
        for article in [json.loads(line) for line in path.read_text().splitlines()][:60]:
            tokens = self.ids(article["article"])
            for question, options, answer in zip(article["questions"], article["options"], article["answers"]):
                for option in options:
                    text = question.replace("_", option) if "_" in question else f"{question} {option}"
                    row = next(rows)
                    self.assertEqual((row["ids"], row["types"]),
                                     framed(*cut_longer(self.ids(text)[:40], tokens, 253)), text)
                    self.assertEqual(row["label"], "ABCD".index(answer))


if __name__ == "__main__":
    unittest.main()
