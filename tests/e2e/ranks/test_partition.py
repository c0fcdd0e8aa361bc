"""Ranks between hosts: the network goes away, a host never answers. Every rank ends soon after its timeout and says who
is missing. The hosts are network namespaces that the tests make and remove."""
import os
import pathlib
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder  # noqa: E402

TIMEOUT = 6  # of a collective, in seconds
GRACE = 10  # beyond it, no rank may be left
SECRET = "a secret of these tests alone"


class TwoHosts:
    """Two network namespaces, joined by one link; unittest.SkipTest where this machine does not let us make them."""

    made = 0

    def __init__(self):
        TwoHosts.made += 1
        self.names = [f"megatron-{os.getpid()}-{TwoHosts.made}-{i}" for i in (0, 1)]
        self.links = ["link0", "link1"]
        self.addresses = ["10.213.57.1", "10.213.57.2"]
        self.silent = []
        try:
            for name in self.names:
                self._ip("netns", "add", name)
            self._ip("link", "add", self.links[0], "netns", self.names[0], "type", "veth", "peer", "name",
                     self.links[1], "netns", self.names[1])
            for name, link, address in zip(self.names, self.links, self.addresses):
                self._ip("-n", name, "addr", "add", address + "/24", "dev", link)
                self._ip("-n", name, "link", "set", "lo", "up")
                self._ip("-n", name, "link", "set", link, "up")
        except (OSError, subprocess.CalledProcessError):
            self.close()
            raise unittest.SkipTest("no network namespaces") from None

    @staticmethod
    def _ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def inside(self, host):
        return ["ip", "netns", "exec", self.names[host]]

    def ask_silent_name_servers(self, host):
        """`host` looks names up at the other one, where somebody hears and never answers."""
        folder = pathlib.Path("/etc/netns") / self.names[host]  # stands for /etc there: see ip-netns(8)
        folder.mkdir(parents=True)
        (folder / "resolv.conf").write_text(f"nameserver {self.addresses[1 - host]}\n" * 3)
        script = (f"import socket, time\ns = socket.socket(type=socket.SOCK_DGRAM)\n"
                  f"s.bind(('{self.addresses[1 - host]}', 53))\nprint(flush=True)\ntime.sleep(600)")
        self.silent.append(subprocess.Popen([*self.inside(1 - host), sys.executable, "-c", script],
                                            stdout=subprocess.PIPE))
        self.silent[-1].stdout.readline()

    def lose_what_goes_to_another_interface(self, host):
        """Gives `host` an interface "inner", to which all packets of the other one are lost, as at a firewall."""
        self._ip("-n", self.names[host], "link", "add", "inner", "type", "veth", "peer", "name", "nowhere")
        self._ip("-n", self.names[host], "addr", "add", "10.213.56.1/24", "dev", "inner")
        for link in ("inner", "nowhere"):
            self._ip("-n", self.names[host], "link", "set", link, "up")
        other, link = self.names[1 - host], self.links[1 - host]
        self._ip("-n", other, "neigh", "add", "10.213.57.77", "lladdr", "02:00:00:00:00:77", "dev", link)
        self._ip("-n", other, "route", "add", "10.213.56.1/32", "via", "10.213.57.77")

    def cut(self, hosts=(0, 1)):
        for host in hosts:
            self._ip("-n", self.names[host], "link", "set", self.links[host], "down")

    def close(self):
        for process in self.silent:
            process.kill()
            process.communicate()
        for name in self.names:
            shutil.rmtree(pathlib.Path("/etc/netns") / name, ignore_errors=True)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def variables(rank, address, port, **more):
    return dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR=address,
                MASTER_PORT=str(port), **more)


class Rank:
    """A rank that runs; its standard error is read as it comes."""

    def __init__(self, words, environment, inside=()):
        self.process = subprocess.Popen([*inside, os.path.abspath(MEGATRON), *map(str, words)], env=environment,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.errors = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.errors += line

    def end(self, seconds):
        """The exit code; raises where it takes longer."""
        try:
            return self.process.wait(timeout=max(0.1, seconds))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there; it said:\n{self.errors}") from None

    def join(self):
        """After the end: `errors` is all that it said."""
        self._reader.join()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.join()
        self.process.stderr.close()


class Partition(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)

    def rank(self, rank, address, port, inside=(), options=(), **more):
        words = self.place.train_words("run", "--train-iters", 100000, "--eval-interval", 0, "--parallel.timeout_s",
                                       TIMEOUT, *options)
        result = Rank(words, variables(rank, address, port, **more), inside)
        self.addCleanup(result.close)
        return result

    def hosts(self):
        hosts = TwoHosts()
        self.addCleanup(hosts.close)
        return hosts

    def assert_plain(self, rank):
        self.assertNotIn("frame #", rank.errors)
        self.assertNotIn("Exception raised from", rank.errors)

    def steps(self):
        metrics = self.place.path / "run/metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def run_until_cut(self, *options):
        """Both ranks train; then the link is down. Returns the hosts, the ranks and the moment by which these must have
        ended."""
        hosts = self.hosts()
        ranks = [self.rank(r, hosts.addresses[0], 29517, hosts.inside(r), options, MEGATRON_RUN_SECRET=SECRET)
                 for r in (0, 1)]
        end = time.monotonic() + 120
        while self.steps() < 3:
            for rank in ranks:
                self.assertIsNone(rank.process.poll(), rank.errors)
            self.assertLess(time.monotonic(), end, ranks[0].errors + ranks[1].errors)
            time.sleep(0.02)
        hosts.cut()
        return hosts, ranks, time.monotonic() + TIMEOUT + GRACE

    def test_ranks_that_the_network_parts_end_after_the_timeout(self):
        for options in (["--tp", 2], ["--pp", 2], ["--use-distributed-optimizer"]):
            with self.subTest(options=options):
                hosts, ranks, end = self.run_until_cut(*options)
                codes = [rank.end(end - time.monotonic()) for rank in ranks]
                for rank in ranks:
                    rank.join()
                    self.assert_plain(rank)
                self.assertEqual(codes, [1, 1])
                self.assertIn("rank 1", ranks[0].errors)
                self.assertRegex(ranks[1].errors, "rendezvous store .* rank 0")
                hosts.close()
                shutil.rmtree(self.place.path / "run")

    def test_a_host_that_is_not_reached_is_named(self):
        hosts = self.hosts()
        hosts.cut([0])
        start = time.monotonic()
        ranks = [self.rank(r, hosts.addresses[0], 29517, hosts.inside(r), MEGATRON_RUN_SECRET=SECRET) for r in (0, 1)]
        codes = [rank.end(start + TIMEOUT + GRACE - time.monotonic()) for rank in ranks]
        for rank in ranks:
            rank.join()
            self.assert_plain(rank)
        self.assertEqual(codes, [1, 1])
        self.assertIn("rank 1 did not arrive", ranks[0].errors)
        self.assertIn("cannot reach the store at 10.213.57.1:29517", ranks[1].errors)

    def test_ports_that_a_firewall_hides_are_given_up(self):
        for hidden in (0, 1):  # once the one who connects is late, once the one who listens
            hosts = self.hosts()
            hosts.lose_what_goes_to_another_interface(hidden)
            start = time.monotonic()
            ranks = [self.rank(r, hosts.addresses[0], 29517, hosts.inside(r), MEGATRON_RUN_SECRET=SECRET,
                               **({"GLOO_SOCKET_IFNAME": "inner"} if r == hidden else {})) for r in (0, 1)]
            codes = [rank.end(start + TIMEOUT + GRACE - time.monotonic()) for rank in ranks]
            for rank in ranks:
                rank.join()
                self.assert_plain(rank)
                self.assertIn("connecting ranks 0, 1 failed", rank.errors)
                self.assertIn("firewall", rank.errors)
            self.assertEqual(codes, [1, 1])
            hosts.close()

    def test_a_name_that_no_server_answers_for_is_given_up(self):
        hosts = self.hosts()
        hosts.ask_silent_name_servers(1)
        start = time.monotonic()
        rank = self.rank(1, "node1.example.org", 29517, hosts.inside(1), MEGATRON_RUN_SECRET=SECRET)
        self.assertIn(rank.end(start + TIMEOUT + GRACE - time.monotonic()), (1, 2))
        rank.join()
        self.assertIn("node1.example.org: no name server has answered", rank.errors)
        self.assert_plain(rank)

    def test_a_rank_that_is_wrong_ends_without_the_others(self):
        start = time.monotonic()
        rank = self.rank(1, "127.0.0.1", 9, options=["--bogus"])
        self.assertEqual(rank.end(start + TIMEOUT + GRACE - time.monotonic()), 2)
        rank.join()
        self.assertIn("--bogus", rank.errors)

    def test_a_listener_that_never_answers_is_no_store(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            start = time.monotonic()
            rank = self.rank(1, "127.0.0.1", listener.getsockname()[1])
            self.assertEqual(rank.end(start + TIMEOUT + GRACE - time.monotonic()), 1)
        rank.join()
        self.assertIn("cannot reach the store", rank.errors)
        self.assertIn("does not answer", rank.errors)
        self.assert_plain(rank)

    def test_what_the_transport_says_comes_without_stack_frames(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:  # rank 0 cannot have its port
            rank = self.rank(0, "127.0.0.1", listener.getsockname()[1])
            self.assertEqual(rank.end(60), 1)
        rank.join()
        self.assertIn("which it keeps itself", rank.errors)
        self.assert_plain(rank)
        refused = self.rank(1, "127.0.0.1", 9)  # nobody listens there
        self.assertEqual(refused.end(60), 1)
        refused._reader.join()
        self.assert_plain(refused)

    def test_ranks_on_several_hosts_need_a_secret(self):
        hosts = self.hosts()
        rank = self.rank(0, hosts.addresses[0], 29517, hosts.inside(0))
        self.assertEqual(rank.end(60), 2)
        rank.join()
        self.assertIn("MEGATRON_RUN_SECRET", rank.errors)
        self.assertFalse((self.place.path / "run").exists())

    def test_a_secret_that_others_may_read_is_refused_first(self):
        file = self.place.path / "secret"
        file.write_text(SECRET)
        file.chmod(0o644)
        rank = self.rank(0, "127.0.0.1", 29517, MEGATRON_RUN_SECRET_FILE=str(file))
        self.assertEqual(rank.end(60), 2)
        rank.join()
        self.assertIn("others may read", rank.errors)
        self.assertFalse((self.place.path / "run").exists())
        if shutil.which("openssl"):  # the fix can be typed, and works
            fix = re.search(r"fix:  name a new one: (\(.*\)), and", rank.errors).group(1)
            subprocess.run(["bash", "-c", fix], check=True, env=os.environ | {"HOME": str(self.place.path)})
            made = self.place.path / "run.secret"
            self.assertEqual(stat.S_IMODE(made.stat().st_mode), 0o600)
            self.assertEqual(len(made.read_text().strip()), 64)
            self.assertEqual(file.read_text(), SECRET, "it may be of use to somebody")


if __name__ == "__main__":
    unittest.main()
