"""Runs that continue with the ranks that are left: processes of a launcher, or whole hosts, are lost and do not come
back. What is trained afterwards is what an undisturbed run of the ranks that are left trains from the same checkpoint.
The hosts are network namespaces."""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, run  # noqa: E402
from test_partition import GRACE, SECRET, TwoHosts  # noqa: E402
from test_supervise import Supervised, children_of, is_there  # noqa: E402

TIMEOUT = 6  # of a collective, and of a host that is silent, in seconds
OPTIONS = ["--tp", 2, "--threads-per-rank", 1, "--parallel.timeout_s", TIMEOUT, "--save-interval", 5, "--eval-interval",
           0, "--train-iters", 100000]
RUN = ["run", "--backoff-s", 0.1, "--dump-s", 0]

# What each launcher tells rank r of n on one host.
LAUNCHERS = {
    "torchrun": lambda r, n: {"RANK": r, "WORLD_SIZE": n, "LOCAL_RANK": r, "LOCAL_WORLD_SIZE": n},
    "Open MPI": lambda r, n: {"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": n, "OMPI_COMM_WORLD_LOCAL_RANK": r,
                              "OMPI_COMM_WORLD_LOCAL_SIZE": n},
    "PMI": lambda r, n: {"PMI_RANK": r, "PMI_SIZE": n, "MPI_LOCALRANKID": r, "MPI_LOCALNRANKS": n},
    "Slurm": lambda r, n: {"SLURM_PROCID": r, "SLURM_NTASKS": n, "SLURM_LOCALID": r, "SLURM_NODEID": 0,
                           "SLURM_TASKS_PER_NODE": n, "SLURM_JOB_NODELIST": socket.gethostname()},
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Together(Supervised):
    """Processes that supervise the ranks of one run, whose folder is `folder`."""

    def __init__(self, folder):
        self.folder = folder
        self.processes, self.logs, self.lost = [], [], set()

    def start(self, words, variables, inside=()):
        """Its number."""
        self.logs.append(self.folder.with_name(f"{self.folder.name}.{len(self.logs)}.log"))
        with self.logs[-1].open("w") as log:
            self.processes.append(subprocess.Popen(
                [*inside, os.path.abspath(MEGATRON), *map(str, words)], stdout=log, stderr=log,
                env=os.environ | {key: str(value) for key, value in variables.items()}))
        return len(self.processes) - 1

    def lose(self, number):
        self.lost.add(number)
        self.processes[number].kill()

    def left(self):
        return [process for number, process in enumerate(self.processes) if number not in self.lost]

    def wait_until(self, condition, timeout=120):
        end = time.monotonic() + timeout
        while not condition():
            codes = [process.poll() for process in self.left()]
            if any(code is not None for code in codes) or time.monotonic() > end:
                raise AssertionError(f"it did not happen; the programs: {codes}\n{self.said()}")
            time.sleep(0.01)

    def said(self):
        """All that they wrote but for steps."""
        lines = [line for log in self.logs for line in log.read_text().splitlines(keepends=True)]
        return "".join(line for line in lines if "| consumed samples:" not in line)

    def end(self, code=0, timeout=120, spares=0):
        codes = [process.wait(timeout) for process in self.left()]
        # One that waited for a place leaves with 0, unless it hears first that the run is over.
        if codes.count(code) < len(codes) - spares or any(other not in (code, 0) for other in codes):
            raise AssertionError(f"exit codes {codes}, expected {code}\n{self.said()}")
        return self.said()

    def stop(self, spares=0):
        """Lets the run save and end. `spares`: processes that wait for a place."""
        for process in self.left():
            process.send_signal(signal.SIGTERM)
        return self.end(code=3, spares=spares)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()


class Lost(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)

    def together(self):
        result = Together(self.place.path / "run")
        self.addCleanup(result.close)
        return result

    def train_on(self, processes):
        """Waits for ten steps more, and a checkpoint of them."""
        goal = processes.checkpoint() + 10
        processes.wait_until(lambda: processes.checkpoint() >= goal)

    def check_curve(self, processes, *layouts):
        """The curve is that of a run that nobody disturbs in the first of these layouts, from the checkpoint of each
        restart in the next one. All are told as numbers of ranks."""
        losses = self.place.losses("run")
        self.assertEqual(sorted(losses), list(range(1, processes.checkpoint() + 1)))
        begins = [event["checkpoint"] for event in processes.events("restart")]
        self.assertEqual(len(begins) + 1, len(layouts), processes.events())
        for ranks, begin, until in zip(layouts, [0, *begins], [*begins, processes.checkpoint()], strict=True):
            if begin == until:
                continue
            self.place.train("whole", *OPTIONS, "--world-size", ranks, "--train.exit_interval", until,
                             "--global-batch-size", 8)
        self.assertEqual(losses, self.place.losses("whole"))


class LostRanks(Lost):
    """A launcher's processes, of which one is lost."""

    def launched(self, launcher, ranks=4, words=(), options=()):
        processes, port = self.together(), free_port()
        for rank in range(ranks):
            processes.start([*RUN, *words, "--", *self.place.train_words("run", *OPTIONS, *options)],
                            LAUNCHERS[launcher](rank, ranks) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        processes.wait_until(lambda: processes.checkpoint() > 0 and processes.events("started"))
        return processes

    def test_those_that_are_left_go_on_in_a_layout_of_their_own(self):
        for launcher, lost in (("Slurm", 3), ("torchrun", 1)):
            with self.subTest(launcher=launcher):
                self.check_loss(launcher, lost)
                self.doCleanups()
                self.setUp()

    def test_they_go_on_without_the_first_too(self):
        said = self.check_loss("Open MPI", 0)
        self.assertIn("supervisor: the one of rank 0 is gone, and that of rank 1 takes its place", said)

    def check_loss(self, launcher, lost):
        processes = self.launched(launcher)
        processes.lose(lost)
        processes.wait_until(lambda: len(processes.events("started")) == 2)
        self.train_on(processes)
        said = processes.stop(spares=1)
        self.assertIn(f"supervisor: rank {lost} is gone with its supervisor; restart 1 of 100 from", said)
        self.assertIn("3 ranks are left: 2 ranks (tp 2, pp 1) instead of 4", said)
        self.assertEqual([(event["from_ranks"], event["ranks"]) for event in processes.events("shrunk")], [(4, 2)])
        self.check_curve(processes, 4, 2)
        return said

    def test_where_no_restart_is_left_all_hear_it_once(self):
        processes = self.launched("Slurm", words=["--max-restarts", 0])
        processes.lose(0)
        said = processes.end(code=1)
        self.assertEqual(said.count("--max-restarts allows no more than 0 restarts"), 1, said)

    def test_a_rank_that_waits_takes_the_place_of_the_next_that_is_lost(self):
        processes = self.launched("PMI")
        for number, lost in enumerate((2, 0)):
            processes.lose(lost)
            processes.wait_until(lambda: len(processes.events("started")) == number + 2)
            self.train_on(processes)
        processes.stop()
        self.check_curve(processes, 4, 2, 2)
        self.assertEqual([event["rank"] for event in processes.events("lost")], [2, 0])

    def test_a_rank_that_fails_again_and_again_is_left_out(self):
        processes = self.launched("torchrun", words=["--tries", 2], options=["--guard.inject_faults", "exit:8:3"])
        processes.wait_until(lambda: processes.events("shrunk"))
        self.train_on(processes)
        processes.stop(spares=2)
        self.check_curve(processes, 4, 4, 2)

    def test_a_host_that_started_its_ranks_leaves_the_others_alone(self):
        processes = self.together()
        processes.start([*RUN, "--nnodes", 1, "--node-rank", 0, "--nproc-per-node", 4, "--master-port", free_port(),
                         "--", *self.place.train_words("run", *OPTIONS)], {})
        processes.wait_until(lambda: processes.checkpoint() > 0 and processes.events("started"))
        os.kill(children_of(processes.processes[0].pid)[2], signal.SIGKILL)
        processes.wait_until(lambda: len(processes.events("started")) == 2)
        self.train_on(processes)
        processes.stop()
        self.check_curve(processes, 4, 2)

    def test_where_no_layout_fits_all_say_so_once(self):
        processes = self.launched("Open MPI", words=["--min-ranks", 3])
        processes.lose(2)
        said = processes.end(code=1)
        rule = "A run continues with fewer ranks where the rules allow a layout of them."
        self.assertEqual(said.count(rule), 1, said)
        self.assertIn("got:  3 of 4 ranks, and no layout of 3 to 3", said)


class LostHosts(Lost):
    """Two hosts of two ranks each, on both of which the same command was typed."""

    def setUp(self):
        super().setUp()
        self.hosts = TwoHosts()
        self.addCleanup(self.hosts.close)
        self.processes = self.together()
        for host in (0, 1):
            self.start(host)
        self.processes.wait_until(lambda: self.processes.checkpoint() > 0 and self.processes.events("started"))

    def start(self, host):
        words = ["--nnodes", 2, "--node-rank", host, "--nproc-per-node", 2, "--master-addr", self.hosts.addresses[0],
                 "--master-port", 29519, "--", *self.place.train_words("run", *OPTIONS)]
        return self.processes.start([*RUN, *words], {"MEGATRON_RUN_SECRET": SECRET}, self.hosts.inside(host))

    def ranks_of(self, number):
        """The ranks that a host's process has, by way of their supervisors."""
        return [rank for supervisor in children_of(self.processes.processes[number].pid)
                for rank in children_of(supervisor)]

    def goes_on(self, starts):
        self.processes.wait_until(lambda: len(self.processes.events("started")) == starts)
        self.train_on(self.processes)

    def test_a_host_that_is_lost_is_left_out_until_it_comes_back(self):
        self.processes.lose(1)
        self.goes_on(2)
        self.start(1)
        back = [f"supervisor: rank {rank} is there again" for rank in (2, 3)]
        self.processes.wait_until(lambda: all(line in self.processes.said() for line in back))
        self.train_on(self.processes)
        self.assertEqual(len(self.processes.events("started")), 2, "it waits for the next restart")
        os.kill(self.ranks_of(0)[0], signal.SIGKILL)
        self.goes_on(3)
        said = self.processes.stop()
        self.assertIn("all are there again: 4 ranks (tp 2, pp 1) instead of 2", said)
        self.check_curve(self.processes, 4, 2, 4)

    def test_a_host_whose_launcher_ends_what_is_left_of_it_is_left_out(self):
        self.processes.lost.add(1)
        killed, left = children_of(self.processes.processes[1].pid)
        os.kill(killed, signal.SIGKILL)
        os.kill(left, signal.SIGTERM)  # as torchrun's agent does
        self.goes_on(2)
        self.assertEqual(self.processes.processes[1].wait(120), 1)
        self.processes.stop()
        self.check_curve(self.processes, 4, 2)
        self.assertEqual(len(self.processes.events("lost")), 1, "both at once")

    def test_the_first_host_is_lost_and_the_other_goes_on(self):
        self.processes.lose(0)
        self.goes_on(2)
        self.processes.processes[1].send_signal(signal.SIGUSR1)
        self.processes.wait_until(lambda: self.processes.events("save_requested"))
        said = self.processes.stop()
        self.assertIn("supervisor: the one of rank 0 is gone, and that of rank 2 takes its place", said)
        self.check_curve(self.processes, 4, 2)

    def test_a_host_that_is_cut_off_ends_and_the_first_goes_on(self):
        cut_off = self.ranks_of(1)
        self.assertEqual(len(cut_off), 2)
        self.hosts.cut([1])
        end = time.monotonic() + TIMEOUT + GRACE
        while any(map(is_there, cut_off)):
            self.assertLess(time.monotonic(), end, self.processes.said())
            time.sleep(0.01)
        self.processes.lost.add(1)
        self.goes_on(2)
        self.assertEqual(self.processes.processes[1].wait(120), 1)
        self.assertRegex(self.processes.logs[1].read_text(),
                         "A run continues where more than half of its hosts(.|\n)*got:  only ranks 2, 3 of 4 here")
        self.processes.stop()
        self.check_curve(self.processes, 4, 2)


class HostOptions(unittest.TestCase):
    def test_what_is_wrong_is_said_before_anything_starts(self):
        job = ["--", "train", "recipe.toml"]
        for words in (["--nnodes", 2], ["--nnodes", 2, "--node-rank", 2, "--master-addr", "127.0.0.1"],
                      ["--node-rank", 1], ["--nproc-per-node", 2], ["--nnodes", 2, "--node-rank", 0],
                      ["--nnodes", 2, "--node-rank", 0, "--master-addr", "127.0.0.1", "--master-port", 0]):
            run("run", *words, *job, code=2)
        self.assertIn("launcher", run("run", "--nnodes", 2, "--node-rank", 0, *job, code=2,
                                      inside=["env", "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1"]))


if __name__ == "__main__":
    unittest.main()
