"""docs/multi_node.md is true: its commands, typed on two hosts in their order. The hosts are network namespaces."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder  # noqa: E402
from test_partition import TwoHosts  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
ENDS_IN = 300  # seconds


class MultiNode(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)
        self.hosts = TwoHosts()
        self.addCleanup(self.hosts.close)
        self.path = self.place.path
        for name, target in {"build/megatron": MEGATRON, "configs": ROOT / "configs", "examples": ROOT / "examples",
                             "tok": self.place.tokenizer}.items():
            link = self.path / name
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(os.path.abspath(target))
        (self.path / "data").mkdir()
        for ending in ("bin", "idx"):
            (self.path / f"tokens_text_document.{ending}").rename(self.path / f"data/corpus_text_document.{ending}")

    def start(self, host, command):
        process = subprocess.Popen([*self.hosts.inside(host), "bash", "-c", command], cwd=self.path,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.addCleanup(process.kill)
        return process

    def end(self, process):
        output, _ = process.communicate(timeout=ENDS_IN)
        self.assertEqual(process.returncode, 0, output)
        return output

    def losses(self, run):
        lines = (self.path / "runs" / run / "metrics.jsonl").read_text().splitlines()
        return {entry["iteration"]: entry["loss"] for entry in map(json.loads, lines) if "loss" in entry}

    def test_the_page_runs_on_two_hosts(self):
        commands = re.findall(r"(?m)^node([01])\$ (.*)$", (ROOT / "docs/multi_node.md").read_text())
        self.assertEqual([host for host, _ in commands], list("0001001"))
        address, secret, *both, alone, difference, resumed = [command for _, command in commands]
        self.assertIn(self.hosts.addresses[0], self.end(self.start(0, address)))
        self.end(self.start(0, secret))
        self.assertEqual(len((self.path / "run.secret").read_text()), 64)
        self.assertEqual(both[0].replace("NODE_RANK=0", "NODE_RANK=1"), both[1])
        outputs = [self.end(process) for process in [self.start(host, both[host]) for host in (0, 1)]]
        self.assertIn("tp 2 x pp 1 x dp 2", outputs[0])
        self.end(self.start(0, alone))
        self.assertEqual(self.losses("two"), self.losses("one"))
        self.assertEqual(list(self.losses("two"))[-1], 6)
        done = self.start(0, difference)
        done.communicate(timeout=ENDS_IN)
        self.assertIn(done.returncode, (0, 4))
        self.assertIn("resumed from runs/two/checkpoints/iter_0000006", self.end(self.start(1, resumed)))

    def test_a_signal_to_the_script_lets_the_ranks_save(self):
        words = ("NNODES=1 NODE_RANK=0 MASTER=127.0.0.1:29500 RANKS_PER_NODE=2 MEGATRON=build/megatron exec "
                 "examples/launch/hosts.sh recipe.toml --world-size 2 --tp 2 --train-iters 1000000 "
                 "--data-path data/corpus_text_document --tokenizer tok --train.out runs/stopped")
        process = self.start(0, words)
        for line in process.stdout:
            if "iteration" in line:
                break
        process.terminate()
        output, _ = process.communicate(timeout=ENDS_IN)
        self.assertEqual(process.returncode, 3, output)
        self.assertTrue((self.path / "runs/stopped/checkpoints/latest").exists())


if __name__ == "__main__":
    unittest.main()
