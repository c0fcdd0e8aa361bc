"""What is carried to a machine with a GPU is made here and runs, by the host drivers of its kernels."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(MEGATRON).parent


class GpuBundle(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)

    def torch(self):
        """The folder of libtorch that the program itself runs on."""
        listed = subprocess.run(["ldd", BUILD / "megatron-torch"], capture_output=True, text=True, check=True).stdout
        library = next(line for line in listed.splitlines() if "libtorch_cpu" in line).split()[2]
        return str(pathlib.Path(library).parents[1])

    def run_bundle(self, *words, **environment):
        out = self.place.path / "out"
        done = subprocess.run([ROOT / ".gpu/run.sh", *words], capture_output=True, text=True,
                              env={**os.environ, "TORCH": self.torch(), "OUT": str(out), **environment})
        return done, json.loads((out / "results.json").read_text()), (out / "results.md").read_text()

    def test_is_small_and_its_dry_run_passes_every_check(self):
        made = subprocess.run([ROOT / "scripts/gpu_bundle.sh"], capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        size = sum(file.stat().st_size for file in (ROOT / ".gpu").rglob("*") if file.is_file())
        self.assertLess(size, 40 << 20)
        done, results, text = self.run_bundle("--dry")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual({check["state"] for check in results["checks"]}, {"passed"}, text)
        self.assertEqual(len(results["checks"]), 7)
        self.assertIn("| losses, CPU and device | passed |", text)
        kernels = {figure["figure"] for figure in results["figures"]}
        self.assertIn("Adam, float32 masters and bf16 copy, Float", kernels)
        self.assertIn("gpt_tiny, decoding one text", kernels)
        if list(pathlib.Path("/dev").glob("nvidia[0-9]*")):
            return
        done, results, _ = self.run_bundle()
        self.assertEqual(done.returncode, 0)
        self.assertIn("nothing was run", done.stdout)
        done, results, _ = self.run_bundle(REQUIRE_GPU="1")
        self.assertEqual(done.returncode, 1, "nothing ran, where a GPU was required")


if __name__ == "__main__":
    unittest.main()
