"""The library is installed into an empty folder; the examples find it there, build and run."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/testing"))
from program import MEGATRON, RunFolder  # noqa: E402

BUILD = pathlib.Path(MEGATRON).resolve().parent


def done(*words, **more):
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, **more)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="megatron-install-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        cls.prefix = cls.path / "prefix"
        done("cmake", "--install", BUILD, "--prefix", cls.prefix)

    def test_the_program_runs_where_it_is_installed(self):
        program = self.prefix / "bin/megatron"
        self.assertEqual(done(program, "version"), done(os.path.abspath(MEGATRON), "version"))
        self.assertIn("512 ranks", done(program, "bench", "scaling", cwd=self.path))  # configs are found

    def test_a_program_that_finds_the_package_trains(self):
        place = RunFolder()
        self.addCleanup(place.close)
        build = self.path / "train_in_30_lines"
        done("cmake", "-S", ROOT / "examples/train_in_30_lines", "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        done("cmake", "--build", build)
        done(build / "train", place.path / "tokens_text_document", 320, 2, cwd=self.path)
        lines = (self.path / "runs/example/metrics.jsonl").read_text().splitlines()
        losses = [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]
        self.assertEqual(len(losses), 60)
        self.assertLess(losses[-1], losses[0] - 0.5)


if __name__ == "__main__":
    unittest.main()
