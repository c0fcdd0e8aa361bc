"""A rank that cannot start, or a host that cannot: all ranks end at once, with one exit code and its reason. Nothing is
written. What a rank waits for a peer that does not come, 600 s, is far above what a test may take."""
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder  # noqa: E402
from test_agreement import ENDS_IN, end_of, environment, free_port, start_ranks  # noqa: E402
from test_partition import SECRET, TwoHosts, variables  # noqa: E402

# A file that can be opened, and fails when it is read, as on a disk that fails: the loopback interface has no speed.
UNREADABLE = "/sys/class/net/lo/speed"
BATCH = ["--global-batch-size", 24]  # of two ranks and of three
READ_ONLY = ["unshare", "--mount", "bash", "-c",
             'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"']


def start(words, variables_of_rank, inside=()):
    return subprocess.Popen([*inside, os.path.abspath(MEGATRON), *map(str, words)], env=variables_of_rank,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def sockets_of(process):
    """Of the process's TCP sockets local port, remote port and whether it listens."""
    own = set()
    for descriptor in pathlib.Path(f"/proc/{process.pid}/fd").glob("*"):
        try:
            own.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
        except OSError:  # closed meanwhile
            pass
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [(int(row[1].split(":")[1], 16), int(row[2].split(":")[1], 16), row[3] == "0A") for row in rows
            if row[9] in own]


def watches(first, rank, store):
    """Whether rank 0, the process `first`, has accepted what `rank` keeps open to be missed by."""
    ports = {local for local, _, listens in sockets_of(first) if listens} - {store}
    accepted = {remote for local, remote, listens in sockets_of(first) if local in ports and not listens}
    return any(local in accepted and remote in ports for local, remote, _ in sockets_of(rank))


class RefusedStarts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.failing = cls.folder_with("tokenizer on a bad disk", "tokenizer.json")

    @classmethod
    def folder_with(cls, name, unreadable):
        file = cls.place.path / name / unreadable
        file.parent.mkdir(parents=True)
        file.symlink_to(UNREADABLE)
        return cls.place.path / name

    def words(self, *options):
        return self.place.train_words("refused", "--train-iters", 2, "--parallel.threads_per_rank", 1, *options)

    def expect_end(self, processes, code, begin, *messages):
        """All say the same, and nothing is written; what they say."""
        codes, errors = end_of(processes, ENDS_IN)
        self.assertEqual(codes, [code] * len(processes), "\n".join(errors))
        for error in errors:
            self.assertTrue(error.startswith(begin), error)
            for message in messages:
                self.assertIn(message, error)
        self.assertEqual(len(set(errors)), 1, errors)
        self.assertFalse((self.place.path / "refused").exists(), "nothing may be written")

    def test_what_fails_on_one_rank_ends_all(self):
        good, bad = self.words(*BATCH), self.words(*BATCH, "--tokenizer", self.failing)
        for commands, rank in [((good, bad), 1), ((bad, good), 0), ((good, good, bad), 2)]:
            with self.subTest(rank=rank, size=len(commands)):
                self.expect_end(start_ranks(commands), 1, f"rank {rank}: ", "tokenizer.json: cannot be read", "got:")

    def test_a_teacher_that_one_rank_cannot_read(self):
        teacher = self.folder_with("teacher", "checkpoints/latest")
        commands = [self.words(), self.words("--distill.teacher", teacher)]
        self.expect_end(start_ranks(commands), 1, "rank 1: ", "latest: cannot be read")

    def test_two_ranks_with_reasons_of_their_own(self):
        commands = [self.words(*BATCH, "--tokenizer", self.place.path / "nowhere"),
                    self.words(*BATCH, "--tokenizer", self.failing), self.words(*BATCH)]
        self.expect_end(start_ranks(commands), 1, "rank 0: ", "nowhere", "rank 1: ", "cannot be read")

    def test_what_fails_on_all_names_no_rank(self):
        bad = self.words("--tokenizer", self.failing)
        self.expect_end(start_ranks([bad, bad]), 1, str(self.failing), "cannot be read")

    def test_a_rank_that_starts_when_another_has_refused(self):
        for late in (0, 1):
            with self.subTest(late=late):
                port = free_port()
                bad = start(self.words("--tokenizer", self.failing), environment(1 - late, 2, port))
                said = [bad.stderr.readline() for _ in range(3)]  # while it waits: who waits, rule, got
                self.assertIn(f"rank {1 - late} cannot start, and waits for the others", said[0])
                self.assertIn("cannot be read", said[1])
                self.assertIn("got:", said[2])
                self.expect_end([start(self.words(), environment(late, 2, port)), bad], 1, f"rank {1 - late}: ",
                                "cannot be read")

    def test_a_disk_that_one_rank_may_not_write(self):
        inside = [*READ_ONLY, str(self.place.path)]
        if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no mounts of one's own")
        port = free_port()
        processes = [start(self.words(), environment(0, 2, port)),
                     start(self.words("--data.data_cache_path", "/tmp"), environment(1, 2, port), inside)]
        self.expect_end(processes, 2, "rank 1: ", "Read-only file system")

    def test_a_folder_for_checkpoints_that_one_host_has_for_itself(self):
        disk = self.place.path / "disk"
        disk.mkdir()
        inside = ["unshare", "--mount", "bash", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(disk)]
        if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no mounts of one's own")
        port = free_port()
        words = self.words("--checkpoint.save", disk / "saved")
        self.expect_end([start(words, environment(0, 2, port)), start(words, environment(1, 2, port), inside)], 2,
                        "rank 1: All ranks must see the folder in which the run saves", "--checkpoint.save")
        self.assertEqual(list(disk.iterdir()), [])

    def test_a_rank_that_is_killed_before_all_have_met(self):
        for lost in (0, 1):
            with self.subTest(lost=lost):
                port = free_port()  # rank 2 does not come
                ranks = [start(self.words(*BATCH), environment(rank, 3, port)) for rank in (0, 1)]
                while not watches(*ranks, port):
                    self.assertIsNone(ranks[1].poll())
                ranks[lost].kill()
                ranks[lost].communicate()
                self.expect_end([ranks[1 - lost]], 1, f"the process of rank {lost} has ended before the ranks met")

    def test_ranks_of_one_terminal_say_it_once(self):
        words = self.words(*BATCH, "--world-size", 3, "--launch", "processes")
        process = start(words, os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "nowhere"})
        [code], [error] = end_of([process], ENDS_IN)
        self.assertEqual(code, 1, error)
        self.assertEqual(error.count("nowhere"), 1, error)

    def test_of_two_hosts_one_that_cannot(self):
        hosts = TwoHosts()
        self.addCleanup(hosts.close)
        port = 29555
        for rank in (0, 1):
            with self.subTest(rank=rank):
                words = [self.words(), self.words()]
                words[rank] += ["--tokenizer", self.failing]
                processes = [start(words[host], variables(host, hosts.addresses[0], port + rank,
                                                          MEGATRON_RUN_SECRET=SECRET), hosts.inside(host))
                             for host in (0, 1)]
                self.expect_end(processes, 1, f"rank {rank}: ", "cannot be read")


if __name__ == "__main__":
    unittest.main()
