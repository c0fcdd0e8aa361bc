"""The client of Weights & Biases reads the offline run that a training writes, after a resumption too."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import wandb_server  # noqa: E402
from peers import peers  # noqa: E402
from program import RunFolder  # noqa: E402

_, MISSING = peers("wandb")


@unittest.skipIf(MISSING, MISSING)
class WeightsAndBiases(unittest.TestCase):
    def records_of(self, place, log):
        environment = dict(os.environ, WANDB_MODE="offline", HOME=str(place.path), WANDB_ERROR_REPORTING="false")
        printed = subprocess.run([sys.executable, "-m", "wandb", "leet", "inspect", "--json", log], timeout=120,
                                 capture_output=True, text=True, env=environment, cwd=place.path)
        self.assertEqual(printed.returncode, 0, printed.stderr)
        return [json.loads(line) for line in printed.stdout.splitlines()]

    def test_reads_configuration_and_the_rows_of_metrics_jsonl(self):
        place = RunFolder()
        self.addCleanup(place.close)
        words = ["--train-iters", 9, "--eval-interval", 4, "--eval-iters", 1, "--save-interval", 5,
                 "--log-num-zeros-in-grad", "--wandb-project", "gpt", "--wandb-exp-name", "first", "--wandb-entity",
                 "us", "--wandb-save-dir", place.path / "offline"]
        place.train("run", *words)
        shutil.rmtree(place.path / "run/checkpoints/iter_0000009")  # as if a crash had come before it
        place.train("run", *words, "--train-iters", 12)
        logs = list((place.path / "offline/wandb").glob("offline-run-*/run-*.wandb"))
        self.assertEqual(len(logs), 1)
        records = self.records_of(place, logs[0])
        self.assertEqual([record["num"] for record in records], list(range(1, len(records) + 1)))
        self.assertEqual([record["type"] for record in records],
                         ["header", "run"] + 12 * ["history"] + ["summary", "exit"])
        begun = records[1]["run"]
        self.assertEqual([begun[key] for key in ["project", "display_name", "entity"]], ["gpt", "first", "us"])
        self.assertIn("model.hidden_size", json.dumps(begun))
        lines = [json.loads(line) for line in (place.path / "run/metrics.jsonl").read_text().splitlines()]
        fields = {"lm loss": "loss", "grad-norm": "grad_norm", "learning-rate": "learning_rate",
                  "samples vs steps": "consumed_samples", "num-zeros": "num_zeros",
                  "lm loss validation": "valid_loss", "lm loss validation ppl": "valid_ppl"}
        for record in records[2:14]:
            row = record["history"]["item"]
            merged = {}
            for line in lines:
                if line["iteration"] == row["_step"]:
                    merged.update(line)
            for tag, field in fields.items():
                self.assertEqual(row.get(tag), merged.get(field), (tag, row))

    def test_the_clients_sync_sends_it_to_a_server(self):
        """`wandb sync`, the real client, to a server on this machine."""
        place = RunFolder()
        self.addCleanup(place.close)
        place.train("run", "--train-iters", 6, "--eval-interval", 3, "--eval-iters", 1, "--wandb-project", "gpt",
                    "--wandb-exp-name", "first", "--wandb-entity", "us")
        folder = next((place.path / "run/wandb").glob("offline-run-*"))
        with wandb_server.Server() as server:
            environment = dict(os.environ, HOME=str(place.path), WANDB_BASE_URL=server.url, WANDB_API_KEY=40 * "a",
                               WANDB_ERROR_REPORTING="false", WANDB_SILENT="false")
            sync = subprocess.run([sys.executable, "-m", "wandb", "sync", folder], timeout=120, capture_output=True,
                                  text=True, env=environment, cwd=place.path)
            self.assertEqual(sync.returncode, 0, sync.stdout + sync.stderr)
        self.assertEqual(server.unknown, [])
        self.assertEqual(len(server.keys), 1)
        self.assertEqual([server.bucket[key] for key in ("project", "entity", "displayName")], ["gpt", "us", "first"])
        self.assertEqual(server.bucket["name"], folder.name.rsplit("-", 1)[1])
        config = json.loads(server.bucket["config"])
        self.assertEqual(config["train.train_iters"]["value"], 6)
        rows = [json.loads(line) for line in server.lines["wandb-history.jsonl"]]
        wanted = [json.loads(line) for line in (place.path / "run/metrics.jsonl").read_text().splitlines()]
        self.assertEqual([row["_step"] for row in rows], list(range(1, 7)))
        self.assertEqual([row["lm loss"] for row in rows], [line["loss"] for line in wanted if "loss" in line])
        self.assertEqual([row["lm loss validation"] for row in rows if "lm loss validation" in row],
                         [line["valid_loss"] for line in wanted if "valid_loss" in line])
        summary = json.loads(server.lines["wandb-summary.json"][-1])
        self.assertEqual(summary["lm loss"], rows[-1]["lm loss"])
        self.assertEqual((server.ended["complete"], server.ended["exitcode"]), (True, 0))


if __name__ == "__main__":
    unittest.main()
