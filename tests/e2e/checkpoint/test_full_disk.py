"""Disks that fill up: a clear error, what was there stays whole, and with room again everything resumes."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import RunFolder, run  # noqa: E402

FULL = "No space left on device"


class SmallDisk:
    """A file system of `size` bytes in memory. Processes started by `inside` see it at `path`; this one sees its files
    at `seen`. Raises SkipTest where users may make none."""

    def __init__(self, size):
        self._folder = tempfile.TemporaryDirectory(prefix="megatron-disk-")
        self.path = pathlib.Path(self._folder.name).resolve()
        script = 'mount -t tmpfs -o size="$1" none "$2" && echo there && read -r until'
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(size), self.path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        process = self._holder.pid
        self.seen = pathlib.Path(f"/proc/{process}/root{self.path}")
        self.inside = ["nsenter", "--user", "--mount", "--preserve-credentials", "--target", str(process), "--"]
        if self._holder.stdout.readline() != "there\n":
            self.close()
            raise unittest.SkipTest("no file system can be mounted by this user")

    def run(self, *words, code=0):
        said = run(*words, code=code, inside=self.inside)
        if code == 1 and "free space on" not in said:
            raise AssertionError(f"no fix in: {said}")
        return said

    def fill(self, left):
        """Leaves about as many bytes free."""
        status = os.statvfs(self.seen)
        with open(self.seen / "ballast", "w") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, status.f_bavail * status.f_frsize - left)

    def names(self):
        return sorted(str(path.relative_to(self.seen)) for path in self.seen.rglob("*") if path.name != "ballast")

    def close(self):
        self._holder.communicate("\n")
        self._folder.cleanup()


class FullDisk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.place.train("run", "--train-iters", 2)
        cls.trained = cls.place.path / "run"

    def disk(self, size):
        disk = SmallDisk(size)
        self.addCleanup(disk.close)
        return disk

    def left_behind(self, disk):
        return [name for name in disk.names() if ".tmp" in name or ".old" in name]

    def test_a_run_that_fills_it_ends_with_its_checkpoints_whole_and_goes_on_when_there_is_room(self):
        sharded = ["--world-size", 2, "--use-distributed-optimizer"]
        self.place.train("one rank", "--train-iters", 12)
        self.place.train("two ranks", "--train-iters", 12, *sharded)
        for name, whole, more in [("async", "one rank", []),
                                  ("waiting", "one rank", ["--checkpoint.async_save", "false"]),
                                  ("sharded", "two ranks", sharded)]:
            with self.subTest(name):
                disk = self.disk(6 << 20)
                words = self.place.train_words(disk.path / "run", *more, "--train-iters", 12, "--save-interval", 1)

                said = disk.run(*words, "--checkpoint.keep_last", 0, code=1)
                self.assertIn("checkpoint not saved", said)
                self.assertIn(FULL, said)
                self.assertEqual(self.left_behind(disk), [])
                checkpoints = disk.seen / "run/checkpoints"
                saved = sorted(path.name for path in checkpoints.glob("iter_*"))
                self.assertGreater(len(saved), 1)
                self.assertEqual((checkpoints / "latest").read_text().strip(), saved[-1])
                disk.run("checkpoint", "verify", disk.path / "run")

                if name == "async":
                    disk.run("checkpoint", "prune", disk.path / "run", "--keep-last", 1)  # a full disk is no hindrance
                else:
                    for old in saved[:-1]:
                        shutil.rmtree(checkpoints / old)
                disk.run(*words, "--checkpoint.keep_last", 1)
                self.assertEqual(self.left_behind(disk), [])
                self.assertEqual(self.place.losses(disk.seen / "run"), self.place.losses(whole))
        disk.run("checkpoint", "verify", disk.path / "run")

    def test_nothing_is_left_of_a_checkpoint_that_finds_no_room_whatever_the_room(self):
        disk = self.disk(4 << 20)
        words = self.place.train_words(disk.path / "run", "--save-interval", 1, "--no-log.tensorboard")
        disk.run(*words, "--train-iters", 1)
        pages = [-(-path.stat().st_size // 4096) for path in (disk.seen / "run/checkpoints/iter_0000001").iterdir()]
        size = 4096 * sum(pages)
        before = disk.names()
        # The last one: there is room for everything but what `latest` is to say.
        for left in (16 << 10, size // 2, size - (16 << 10), size):
            disk.fill(left)
            self.assertIn(FULL, disk.run(*words, "--train-iters", 2, code=1))
            self.assertEqual(disk.names(), before)
            self.assertIn("iter_0000001", (disk.seen / "run/checkpoints/latest").read_text())
            (disk.seen / "ballast").unlink()
        disk.run(*words, "--train-iters", 2)
        self.assertEqual(self.place.losses(disk.seen / "run"), self.place.losses("run"))

    def test_jobs_that_write_weights_leave_nothing(self):
        exported = self.place.path / "exported"
        run("checkpoint", "export", "--load", self.trained, "--output", exported)
        disk = self.disk(1 << 20)
        jobs = [["reshard", self.trained, disk.path / "resharded"],
                ["export", "--load", self.trained, "--output", disk.path / "exported"],
                ["import", "--from", exported, "--output", disk.path / "imported"],
                ["reshard", self.trained, disk.path / "resharded", "--files", 3]]
        for left, some in ((200 << 10, jobs), (20 << 10, jobs[:2])):
            disk.fill(left)
            for words in some:
                with self.subTest(words=words, left=left):
                    self.assertIn(FULL, disk.run("checkpoint", *words, code=1))
                    weights = [name for name in disk.names() if "iter_" in name or "latest" in name or "model" in name]
                    self.assertEqual(weights, [])
                    self.assertEqual(self.left_behind(disk), [])
            (disk.seen / "ballast").unlink()
        for words in jobs[1:3]:
            disk.run("checkpoint", *words)

    def test_tokens_without_room_have_no_name(self):
        disk = self.disk(1 << 20)
        words = ["data", "preprocess", "--input", self.place.path / "text.jsonl", "--tokenizer",
                 self.place.path / "tokenizer", "--append-eod", "--output-prefix", disk.path / "tokens"]
        for left in (4 << 10, 30 << 10):
            disk.fill(left)
            self.assertIn(FULL, disk.run(*words, code=1))
            self.assertEqual([name for name in disk.names() if "tokens.parts" not in name], [])
            (disk.seen / "ballast").unlink()
        disk.run(*words)
        self.assertEqual(sorted(disk.names()), ["tokens_text_document.bin", "tokens_text_document.idx"])
        for kind in ("bin", "idx"):
            written = (disk.seen / f"tokens_text_document.{kind}").read_bytes()
            self.assertEqual(written, (self.place.path / f"tokens_text_document.{kind}").read_bytes())


if __name__ == "__main__":
    unittest.main()
