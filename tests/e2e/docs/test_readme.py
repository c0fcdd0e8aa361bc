"""Every command of README.md runs as it stands there, in order; long trainings in a short form."""
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests/testing"))
from program import MEGATRON  # noqa: E402

# What `make quickstart` leaves: here of the paragraphs of docs/, English that every checkout has.
TEXT = "quickstart/fortunes.jsonl"
NEEDS = "# needs "


def blocks(page):
    """The code blocks of a page, each as a list of commands and comments, continued lines joined."""
    for block in re.findall(r"^```\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def shortened(command):
    """The command with fewer steps. The pipeline's training keeps its own: its loss is looked at."""
    if "runs/pipeline" in command:
        return command
    command = re.sub(r"--train-iters \d+", "--train-iters 3", command)
    command = command.replace("--train-iters 3", "--train-iters 3 --eval-interval 0")
    return command.replace("megatron bench pipeline", "megatron bench pipeline --steps 1 --warmup 0 --rounds 1")


class Readme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="megatron-readme-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        (cls.path / "build").mkdir()
        (cls.path / "build/megatron").symlink_to(os.path.abspath(MEGATRON))
        (cls.path / "configs").symlink_to(ROOT / "configs")
        (cls.path / "README.md").symlink_to(ROOT / "README.md")
        text = cls.path / TEXT
        text.parent.mkdir()
        paragraphs = [paragraph for page in sorted((ROOT / "docs").rglob("*.md"))
                      for paragraph in page.read_text().split("\n\n") if "|--" not in paragraph]
        text.write_text("".join(json.dumps({"text": paragraph}) + "\n" for paragraph in paragraphs))

    def shell(self, command):
        return subprocess.run(["bash", "-c", command], cwd=self.path, capture_output=True, text=True, errors="replace",
                              timeout=300)  # what an untrained model writes need not be UTF-8

    def test_every_command_runs_in_the_order_of_the_page(self):
        seen = {"run": 0, "needs": 0, "make": 0}
        for commands in blocks((ROOT / "README.md").read_text()):
            needs = commands[0].startswith(NEEDS)
            for command in commands:
                if command.startswith("#"):
                    continue
                kind = "make" if command.startswith("make ") else "needs" if needs else "run"
                seen[kind] += 1
                with self.subTest(command):
                    getattr(self, "check_" + kind)(command)
        self.assertGreaterEqual(seen["run"], 30)
        self.assertEqual((seen["needs"], seen["make"]), (4, 2))
        self.check_that_training_learns("pipeline", 40)

    def check_run(self, command):
        result = self.shell(shortened(command))
        self.assertEqual(result.returncode, 0, result.stdout[-2000:] + result.stderr[-4000:])

    def check_needs(self, command):
        """All but the files that are not here is right: the error is of a file that the command names."""
        result = self.shell(command)
        self.assertEqual(result.returncode, 2, result.stderr)
        got = re.search(r"^ *got: +(.*)$", result.stderr, re.MULTILINE)
        self.assertIsNotNone(got, result.stderr)
        words = [word for word in command.split() if re.fullmatch(r"[\w.-]+", word) and not (self.path / word).exists()]
        named = re.split(r"[\s,:]+", got[1])
        self.assertTrue(any(word in named for word in words), result.stderr)

    def check_make(self, command):
        words = ["make", "-n", command.split()[1]]
        result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)

    def check_that_training_learns(self, run, steps):
        lines = (self.path / "runs" / run / "metrics.jsonl").read_text().splitlines()
        losses = [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]
        self.assertEqual(len(losses), steps)
        # Medians: one batch of rare words is no divergence.
        medians = [statistics.median(losses[i:i + 5]) for i in range(steps - 4)]
        self.assertLess(medians[-1], losses[0] - 0.8)
        self.assertLess(max(medians), losses[0] + 0.2, "it diverges on the way")

    def test_every_option_of_the_page_is_one_of_its_job(self):
        """Prose too: `--option` of a job that is named on the same line."""
        page = (ROOT / "README.md").read_text()
        known = {}
        for job in ("train", "finetune", "plan", "generate", "eval loss", "data preprocess", "data dedup",
                    "bench pipeline"):
            known.update(dict.fromkeys(re.findall(r"--[\w.-]+", self.shell(f"build/megatron {job} --help all").stdout)))
        for option in set(re.findall(r"`(--[\w.-]+)", page)):
            self.assertTrue(option in known, option)


if __name__ == "__main__":
    unittest.main()
