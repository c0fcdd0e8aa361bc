"""The client of Weights & Biases reads the offline run that a training writes, after a resumption too."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
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


if __name__ == "__main__":
    unittest.main()
