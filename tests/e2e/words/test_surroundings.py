"""What surrounds the program is not as usual: standard streams closed, the current folder gone, /proc not mounted. It
works, or says what is wrong before it has done anything."""
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder  # noqa: E402


class Surroundings(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)

    def train(self, script, name, inside=()):
        """Runs `script`, in which "$@" is a command that trains; its result."""
        words = self.place.train_words(name, "--train-iters", 2, "--parallel.threads_per_rank", 1)
        return subprocess.run([*inside, "bash", "-c", script, "bash", os.path.abspath(MEGATRON), *map(str, words)],
                              capture_output=True, text=True, timeout=120, check=False)

    def test_nothing_is_printed_into_a_file_in_place_of_a_closed_stream(self):
        self.assertEqual(self.train('"$@" <&- 2>&-', "run").returncode, 0)
        self.assertEqual((self.place.path / "run/.lock").read_text(), "")

    def test_a_closed_standard_output_is_refused_before_the_work(self):
        for script in ('"$@" >&-', '"$@" <&- >&-'):
            result = self.train(script, "run")
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("Standard output must be open.", result.stderr)
            self.assertFalse((self.place.path / "run").exists())
        self.assertEqual(self.train('"$@" > /dev/null', "run").returncode, 0)

    def test_a_current_folder_that_is_gone(self):
        gone = self.place.path / "gone"
        result = self.train(f'mkdir {gone} && cd {gone} && rmdir {gone} && "$@"', "run")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("The current folder must be there.", result.stderr)

    def test_without_proc(self):
        inside = ["unshare", "--mount"]
        if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no mounts of one's own")
        result = self.train('mount -t tmpfs none /proc && "$@"', "run", inside)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("mount -t proc proc /proc", result.stderr)


if __name__ == "__main__":
    unittest.main()
