"""The quick start with a text of the user's: the scripts, without the training."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests/testing"))
from program import MEGATRON, run, text_of_sentences  # noqa: E402


class Quickstart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-quickstart-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def documents_of(self, name, text):
        """Runs the data part and builds the order of samples as the training will; the number of documents."""
        out = self.path / f"{name}.out"
        out.mkdir()
        (self.path / name).write_text(text)
        subprocess.run([ROOT / "scripts/quickstart_data.sh", self.path / name, out], check=True,
                       stdout=subprocess.PIPE, env={**os.environ, "MEGATRON": MEGATRON})
        prefix = out / "tokens_text_document"
        run("data", "index", prefix, "--seq-length", 32, "--samples", "100,10,0", "--output", out / "index")
        return json.loads(run("data", "info", prefix, "--json"))["documents"]

    def test_any_plain_text_leaves_documents_for_validation(self):
        sentences = text_of_sentences(500)
        self.assertGreater(self.documents_of("lines.txt", "\n".join(sentences)), 200)
        self.assertGreater(self.documents_of("one line", " ".join(sentences)), 200)
        self.assertGreater(self.documents_of("{no blank}.md", "{" + "x" * 20000), 200)
        self.assertGreater(self.documents_of("short.txt", "A text as short as this one is learned as well. " * 8), 20)

    def test_json_lines_are_documents(self):
        lines = [json.dumps({"text": sentence}) + "\n" for sentence in text_of_sentences(100)]
        self.assertEqual(self.documents_of("text.jsonl", "".join(lines)), 100)

    def test_a_text_that_cannot_be_used_is_refused_before_anything_is_removed(self):
        (self.path / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/quickstart.sh", self.path / "scripts")
        kept = self.path / "quickstart/kept.txt"
        kept.parent.mkdir()
        kept.write_text("text")
        (self.path / "empty.txt").touch()
        for text in ("missing.txt", "scripts", "empty.txt", "quickstart/kept.txt", "scripts/../quickstart/kept.txt"):
            result = subprocess.run(["scripts/quickstart.sh"], cwd=self.path, stderr=subprocess.PIPE, text=True,
                                    env={**os.environ, "QUICKSTART_TEXT": text})
            self.assertEqual(result.returncode, 2, text)
            for part in ("QUICKSTART_TEXT must", str((self.path / text).resolve()), "got:", "fix:"):
                self.assertIn(part, result.stderr)
            self.assertEqual(kept.read_text(), "text")


if __name__ == "__main__":
    unittest.main()
