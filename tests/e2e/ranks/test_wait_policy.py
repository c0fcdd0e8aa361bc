"""How long OpenMP's threads spin: libgomp says what it has read."""
import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON  # noqa: E402


def spin_count(**variables):
    inherited = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment = {**inherited, "OMP_DISPLAY_ENV": "verbose", **variables}
    shown = subprocess.run([MEGATRON, "doctor", "--operators"], env=environment, capture_output=True, text=True,
                           check=True).stderr
    return int(re.search(r"GOMP_SPINCOUNT = '(\d+)'", shown).group(1))


class WaitPolicy(unittest.TestCase):
    def test_waiting_threads_spin_for_microseconds(self):
        self.assertLessEqual(spin_count(), 3000)

    def test_what_the_user_sets_holds(self):
        self.assertEqual(spin_count(GOMP_SPINCOUNT="54321"), 54321)
        self.assertGreater(spin_count(OMP_WAIT_POLICY="active"), 10**6)


if __name__ == "__main__":
    unittest.main()
