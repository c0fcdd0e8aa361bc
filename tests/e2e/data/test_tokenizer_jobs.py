"""`megatron tokenizer`: every kind is trained, looked into, and turns text into ids and back."""
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, run  # noqa: E402

TEXT = "\n".join(f"The {a} house stands beside the {b} tree, number {i}." for i, (a, b) in enumerate(
    (a, b) for a in ("old", "new", "Grüne", "small") for b in ("tall", "first", "other", "Größte")))
FILES = {"bpe": "tokenizer.json", "wordpiece": "tokenizer.json", "unigram": "tokenizer.model"}


class TokenizerJobs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.text = self.path / "text.txt"
        self.text.write_text(TEXT, encoding="utf-8")

    def train(self, kind, *options, code=0):
        size = {"bpe": 300, "wordpiece": 90, "unigram": 45}[kind]
        return run("tokenizer", "train", "--kind", kind, "--input", self.text, "--vocab-size", size, "--output",
                   self.path / kind, "--json", *options, code=code)

    def test_every_kind_is_trained_shown_and_used(self):
        for kind, file in FILES.items():
            report = json.loads(self.train(kind))
            self.assertEqual((report["kind"], pathlib.Path(report["tokenizer"])), (kind, self.path / kind / file))
            info = json.loads(run("tokenizer", "info", self.path / kind, "--json"))
            self.assertEqual(info["vocab_size"], report["vocab_size"])
            self.assertTrue(info["fingerprint"].startswith(info["kind"] + "-"))
            lines = run("tokenizer", "encode", "--tokenizer", self.path / kind, "--input", self.text, "--threads", 2)
            self.assertEqual(len(lines.splitlines()), len(TEXT.splitlines()))
            ids = self.path / "ids.txt"
            ids.write_text(lines)
            objects = run("tokenizer", "decode", "--tokenizer", self.path / kind, "--input", ids, "--json")
            back = "\n".join(json.loads(line)["text"] for line in objects.splitlines())
            self.assertEqual(back, TEXT if kind != "wordpiece" else back.lower())
        self.assertIn("kind", run("tokenizer", "info", self.path / kind))
        self.assertEqual(run("tokenizer", "decode", "--tokenizer", self.path / kind, "--input", ids), back + "\n")

    def test_special_tokens_of_the_text_are_recognised_or_text(self):
        self.train("wordpiece", "--special-tokens", "[UNK]", "[CLS]", "[SEP]", "<x>")
        info = json.loads(run("tokenizer", "info", "--tokenizer", self.path / "wordpiece", "--json"))
        self.assertEqual([token["content"] for token in info["special_tokens"]], ["[UNK]", "[CLS]", "[SEP]", "<x>"])
        encode = ["tokenizer", "encode", "--tokenizer", self.path / "wordpiece", "--json"]
        self.assertEqual(json.loads(run(*encode, stdin="<x>"))["ids"], [3])
        self.assertEqual(json.loads(run(*encode, "--add-special-tokens", stdin="<x>"))["ids"], [1, 3, 2])
        self.assertNotIn(3, json.loads(run(*encode, "--special-tokens", "text", stdin="<x>"))["ids"])

    def test_inputs_that_cannot_be_read_are_named_together_before_the_first_is_worked_on(self):
        self.train("bpe")
        for job in ["encode", "decode"]:
            output = self.path / f"{job}.out"
            words = ["tokenizer", job, "--tokenizer", self.path / "bpe", "--input", self.text,
                     self.path / "absent.txt", self.path]
            for options in [[], ["--output", output]]:
                result = subprocess.run([os.path.abspath(MEGATRON), *map(str, words + options)], capture_output=True,
                                        text=True, timeout=60)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                for word in ["absent.txt", f"{self.path} is a folder", "fix:"]:
                    self.assertIn(word, result.stderr)
            self.assertFalse(output.exists())

    def test_what_a_file_says_of_batches_is_named_once_and_changes_nothing(self):
        self.train("bpe")
        path = self.path / "bpe/tokenizer.json"
        words = ["tokenizer", "encode", "--tokenizer", path, "--input", self.text]
        plain = run(*words)
        file = json.loads(path.read_text())
        file["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
        path.write_text(json.dumps(file))
        result = subprocess.run([MEGATRON, *map(str, words)], capture_output=True, text=True, check=True)
        self.assertEqual(result.stdout, plain)
        self.assertEqual(result.stderr.count("its truncation does not apply"), 1)
        self.assertEqual(json.loads(run("tokenizer", "info", path, "--json"))["not_applied"], ["truncation"])
        self.assertEqual(run(*words, "--output", "-"), plain)

    def test_several_inputs_are_one_object_each(self):
        self.train("bpe")
        other = self.path / "other.txt"
        other.write_text("a tree")
        objects = [json.loads(line) for line in run("tokenizer", "encode", "--tokenizer", self.path / "bpe", "--input",
                                                    self.text, other, "--json").splitlines()]
        self.assertEqual([row["input"] for row in objects], [str(self.text), str(other)])
        for row, text in zip(objects, (TEXT, "a tree"), strict=True):
            ids = " ".join(map(str, row["ids"]))
            self.assertEqual(run("tokenizer", "decode", "--tokenizer", self.path / "bpe", stdin=ids), text + "\n")

    def test_each_line_of_a_pipe_is_answered_at_once(self):
        self.train("bpe")
        for job, lines in (("encode", ["a", "Pa", "the old tree"]), ("decode", ["65", "72 70"])):
            with subprocess.Popen([os.path.abspath(MEGATRON), "tokenizer", job, "--tokenizer", self.path / "bpe"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as program:
                for line in lines:
                    program.stdin.write(line + "\n")
                    self.assertTrue(select.select([program.stdout], [], [], 120)[0], f"{job}: no answer to {line}")
                    self.assertEqual(program.stdout.readline(), run("tokenizer", job, "--tokenizer", self.path / "bpe",
                                                                    stdin=line + "\n"))
                program.stdin.close()
                self.assertEqual(program.wait(60), 0)

    def test_options_that_do_not_go_together_are_refused_before_any_work(self):
        for kind, options in (("bpe", ["--cased"]), ("unigram", ["--limit-alphabet", 5]), ("bpe", ["--threads", 2000]),
                              ("unigram", ["--min-frequency", 3]), ("wordpiece", ["--special-tokens", "[PAD]"]),
                              ("bpe", ["--min-frequency", -1])):
            self.train(kind, *options, code=2)
        run("tokenizer", "train", "--kind", "word", "--input", self.text, "--vocab-size", 300, "--output",
            self.path / "bpe", code=2)
        self.assertEqual(sorted(path.name for path in self.path.iterdir()), ["text.txt"])
        self.train("bpe")
        run("tokenizer", "encode", "--tokenizer", self.path / "bpe", "--special-tokens", "skip", stdin="a", code=2)
        run("tokenizer", "decode", "--tokenizer", self.path / "bpe", stdin="12 x", code=2)
        run("tokenizer", "decode", "--tokenizer", self.path / "bpe", stdin="70000", code=2)
        run("tokenizer", "info", code=2)


if __name__ == "__main__":
    unittest.main()
