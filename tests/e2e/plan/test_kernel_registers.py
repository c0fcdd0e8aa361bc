"""What the kernels of CUDA take of a multiprocessor is what it was when it was looked at."""
import os
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests/kernels/registers.txt"


class KernelRegisters(unittest.TestCase):
    maxDiff = None

    def test_registers_and_spills_of_each_kernel_are_the_golden_ones(self):
        build = pathlib.Path(os.environ["MEGATRON"]).resolve().parent
        table = subprocess.run([ROOT / "scripts/kernel_registers.py", build], capture_output=True, text=True)
        if table.returncode == 2:
            self.skipTest(table.stderr.strip())
        self.assertEqual(table.returncode, 0, table.stderr)
        golden = GOLDEN.read_text()
        compiler, expected = table.stdout.splitlines()[0], golden.splitlines()[0]  # architectures too
        if compiler != expected:
            self.skipTest(f"another nvcc than the registers' golden: {compiler[2:]}, not {expected[2:]}")
        self.assertEqual(table.stdout.splitlines(), golden.splitlines(),
                         "fix: scripts/kernel_registers.py build > tests/kernels/registers.txt, and look at it")
