"""The jobs that clean a corpus, from the command line: one after another, and what they refuse."""
import json
import pathlib
import random
import re
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import run  # noqa: E402


def line(text, **others):
    return json.dumps({"text": text, **others}) + "\n"


class CorpusJobs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-corpus-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.raw, self.out = self.path / "raw.jsonl", self.path / "out.jsonl"

    def test_filter_then_dedup_then_overlap(self):
        texts = [" ".join(f"w{i}x{j}" for j in range(40)) + "." for i in range(20)]
        lines = [line(text, id=i) for i, text in enumerate(texts)]
        self.raw.write_text("".join(lines) + line("too short") + line(texts[3].upper()) +
                            line(texts[5], url="http://www.bad.example/x"))
        (self.path / "domains").write_text("bad.example\n")
        counts = json.loads(run("data", "filter", "--input", self.raw, "--output", self.out, "--min-tokens", 20,
                                "--block-domains", self.path / "domains", "--json"))
        self.assertEqual(counts["rejected"], {"bad_line": 0, "url": 1, "short": 1, "language": 0})
        unique = self.path / "unique.jsonl.zst"
        counts = json.loads(run("data", "dedup", "--input", self.out, "--output", unique, "--report",
                                self.path / "report", "--memory-mb", 1, "--json"))
        self.assertEqual((counts["documents"], counts["duplicates"], counts["clusters"]), (21, 1, 1))
        self.assertEqual(json.loads((self.path / "report").read_text())["kept"], 3)
        test, clean = self.path / "test.txt", self.path / "clean.jsonl"
        test.write_text(" ".join(texts[7].split()[:16]))
        words = ("data", "overlap", "--input", unique, "--test", test, "--json")
        report = json.loads(run(*words))
        self.assertEqual((report["ngram"], report["ngrams"], report["found"], report["percent"]), (8, 9, 9, 100))
        report = json.loads(run(*words, "--output", clean))
        self.assertEqual((report["ngram"], report["cut"]["matched"], report["cut"]["emptied"]), (13, 1, 1))
        self.assertEqual(clean.read_text(), "".join(lines[:7] + lines[8:]))

    def test_standard_output_is_no_file_to_write(self):
        self.raw.write_text(line("a b c"))
        for words in (["filter", "--output", "-"], ["filter", "--output", self.out, "--rejected", "-"],
                      ["dedup", "--output", "-"], ["overlap", "--test", self.raw, "--report", "-"]):
            self.assertIn("an output must be a file", run("data", *words, "--input", self.raw, code=2))
        self.assertFalse(pathlib.Path("-").exists())

    def test_overlap_counts_what_python_counts_in_many_alphabets(self):
        source = random.Random(1)
        alphabets = ["abcdefgXYZ", "äöüßéÉÑç", "αβγΔΕΖ", "абвгдЕЖЗ", "אבגד", "ابتث", "कखगघ", "한국어", "0123٣٤", "_",
                     "ªº²½"]
        between = [" ", ", ", " - ", "\u00a0", ".\n", "’", "—", "\u0301 "]
        vocabulary = ["".join(source.choice(source.choice(alphabets)) for _ in range(source.randint(1, 3)))
                      for _ in range(60)]

        def text(n):
            return "".join(source.choice(vocabulary) + source.choice(between) for _ in range(n))

        def ngrams(one):
            words = re.findall(r"\w+", one.lower())
            return [tuple(words[at:at + 2]) for at in range(len(words) - 1)]

        training, tests = [text(200) for _ in range(10)], [text(60) for _ in range(20)]
        self.raw.write_text("".join(map(line, training)), encoding="utf-8")
        (self.path / "test.jsonl").write_text("".join(map(line, tests)), encoding="utf-8")
        known = {ngram for one in training for ngram in ngrams(one)}
        wanted = [ngram for one in tests for ngram in ngrams(one)]
        report = json.loads(run("data", "overlap", "--input", self.raw, "--test", self.path / "test.jsonl",
                                "--ngram", 2, "--json"))
        self.assertEqual(report["ngrams"], len(wanted))
        self.assertEqual(report["found"], sum(ngram in known for ngram in wanted))
        self.assertEqual(report["distinct"], len(set(wanted)))
        self.assertGreater(report["found"], 100)
        self.assertLess(report["found"], len(wanted))

    def test_filter_reads_standard_input(self):
        run("data", "filter", "--input", "-", "--output", self.out, "--min-tokens", 2, stdin=line("a b") + line("c"))
        self.assertEqual(self.out.read_text(), line("a b"))

    def test_help_and_a_text_report_of_each(self):
        self.raw.write_text(line("a b c d e f g h"))
        for job, options in {"filter": [], "dedup": [], "overlap": ["--test", self.raw]}.items():
            self.assertIn("--workers", run("data", job, "--help"))
            self.assertIn("1", run("data", job, "--input", self.raw, *options))

    def test_wrong_options_are_refused_before_anything_is_written(self):
        self.raw.write_text(line("a b c d e f g h"))
        wrong = {"filter": [["--on-error", "maybe"], ["--language", "klingon"], ["--block-domains", "/nowhere"],
                            ["--tokenizer-type", "NullTokenizer"], ["--url-key", "link"]],
                 "dedup": [["--threshold", 0], ["--keep", "best"],
                           ["--hashes", 64, "--bands", 8, "--rows", 8], ["--temporary-folder", self.raw / "folder"]],
                 "overlap": [["--min-chars", -1], ["--test-format", "pdf"]]}
        for job, cases in wrong.items():
            for case in cases:
                with self.subTest(job=job, case=case):
                    test = ["--test", self.raw] if job == "overlap" else []
                    message = run("data", job, "--input", self.raw, "--output", self.out, *test, *case, code=2)
                    self.assertIn("got:", message)
                    self.assertFalse(self.out.exists())
        message = run("data", "overlap", "--input", self.raw, "--test", self.raw, "--max-pieces", 2, code=2)
        self.assertIn("--max-pieces has no effect without --output", message)


if __name__ == "__main__":
    unittest.main()
