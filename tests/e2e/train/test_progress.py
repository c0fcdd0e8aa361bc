"""Progress on a pipe, a file and a terminal."""
import json
import os
import pathlib
import pty
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, run  # noqa: E402


class Progress(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        run("data", "preprocess", "--input", cls.place.path / "text.jsonl", "--tokenizer", cls.place.tokenizer,
            "--output-prefix", cls.place.path / "sentences", "--split-sentences")
        cls.sentences = cls.place.path / "sentences_text_sentence"

    def jobs(self, folder):
        """Jobs that show progress, each of which does its work again."""
        path, text = self.place.path, self.place.path / "text.jsonl"
        yield "preprocess", ["data", "preprocess", "--input", text, "--tokenizer", self.place.tokenizer,
                             "--output-prefix", folder / "tokens"], "--progress"
        yield "merge", ["data", "merge", path / "tokens_text_document", path / "tokens_text_document",
                        "--output-prefix", folder / "merged"], "--progress"
        yield "dedup", ["data", "dedup", "--input", text, "--output", folder / "unique.jsonl"], "--progress"
        yield "index", ["data", "index", self.sentences, "--kind", "t5", "--seq-length", 32, "--samples", "1000,0,0",
                        "--output", folder / "index"], "--progress"
        yield "train", self.place.train_words(folder / "run", "--train-iters", 3), "--log.progress"

    def errors_of(self, words):
        done = subprocess.run([MEGATRON, *map(str, words)], capture_output=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode(), done.stderr.decode()

    def test_a_pipe_gets_none_and_where_it_is_asked_for_whole_lines_the_last_of_them_once(self):
        for mode in ["auto", "on"]:
            with tempfile.TemporaryDirectory(prefix="megatron-progress-") as folder:
                for job, words, flag in self.jobs(pathlib.Path(folder)):
                    with self.subTest(job=job, mode=mode):
                        printed, errors = self.errors_of([*words, flag, mode])
                        self.assertNotIn("\r", printed + errors)
                        self.assertNotIn("\x1b", printed + errors)
                        self.assertNotIn(" % ", printed)
                        lines = [line for line in errors.splitlines() if "  100 %  " in line]
                        self.assertEqual(len(lines), len(set(lines)))
                        of_one = [line for line in lines if line.startswith(job + "  ")]
                        if job in ("dedup", "index"):  # one for each of its passes
                            of_one = sorted({line.split("  ")[0] for line in lines})
                            self.assertEqual(len(of_one), len(lines))
                        self.assertEqual(bool(of_one), mode == "on", errors)
                        if mode == "on" and job not in ("dedup", "index"):
                            self.assertEqual(len(of_one), 1)

    def test_a_terminal_gets_a_line_that_is_redrawn(self):
        with tempfile.TemporaryDirectory(prefix="megatron-progress-") as folder:
            master, terminal = pty.openpty()
            words = self.place.train_words(pathlib.Path(folder) / "run", "--train-iters", 60, "--log-interval", 1000)
            process = subprocess.Popen([MEGATRON, *map(str, words)], stdout=subprocess.DEVNULL, stderr=terminal)
            os.close(terminal)
            shown = b""
            while True:
                try:
                    part = os.read(master, 1 << 16)
                except OSError:  # the other end is closed
                    break
                if not part:
                    break
                shown += part
            os.close(master)
            self.assertEqual(process.wait(timeout=300), 0, shown)
            lines = [line for line in shown.decode().split("\n") if "train  " in line]
            self.assertEqual(len(lines), 1, shown)  # drawn over and over, ended once
            self.assertIn("\r\x1b[Ktrain  100 %  60 of 60 steps", lines[0])


if __name__ == "__main__":
    unittest.main()
