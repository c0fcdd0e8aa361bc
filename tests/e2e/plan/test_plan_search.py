"""What `megatron plan --search` finds is a layout that `megatron plan` takes."""
import json
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
import unittest
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import RunFolder, run  # noqa: E402

CONFIGS = pathlib.Path(__file__).resolve().parents[3] / "configs"
RECIPE = CONFIGS / "gpt_1.3b.toml"
RANKS = [RECIPE, "--world-size", 8, "--global-batch-size", 64, "--train.dtype", "bf16", "--device", "cuda"]


class Search(unittest.TestCase):
    def test_the_flags_of_each_layout_are_a_plan_that_fits(self):
        with tempfile.TemporaryDirectory(prefix="megatron-search-") as folder:
            picture = pathlib.Path(folder) / "search.svg"
            found = json.loads(run("plan", *RANKS, "--search", "--fit", "24GB", "--top", 4, "--gpu-hour-price", 2.5,
                                   "--json", "--svg", picture))
            self.assertEqual(len(found["layouts"]), 4)
            self.assertTrue(found["complete"])
            steps = [row["step_ms"] for row in found["layouts"]]
            self.assertEqual(steps, sorted(steps))
            for row in found["layouts"]:
                self.assertLessEqual(row["memory_bytes"], 24e9)
                self.assertAlmostEqual(sum(row["parts_ms"].values()), row["step_ms"], delta=1e-6 * row["step_ms"])
                self.assertEqual(row["tp"] * row["cp"] * row["pp"] * row["dp"], 8)
                communication = row["parts_ms"]["tensor"] + row["parts_ms"]["data"]
                self.assertAlmostEqual(row["exposed_communication"], communication / row["step_ms"], delta=1e-9)
                self.assertAlmostEqual(row["price"], 8 * 24 * row["days"] * 2.5, delta=1e-6 * row["price"])
                plan = json.loads(run("plan", *RANKS, *row["flags"].split(), "--json"))
                self.assertEqual(plan["microbatches_per_step"], row["microbatches"])
            titles = {node.text for node in xml.etree.ElementTree.parse(picture).iter() if node.tag.endswith("title")}
            self.assertIn(found["layouts"][0]["flags"], titles)
            shown = run("plan", *RANKS, "--search", "--fit", "24GB")
            self.assertIn("torchrun --nnodes 1 --nproc-per-node 8 --no-python megatron train", shown)
            self.assertIn(found["layouts"][0]["flags"], shown)

    def test_ranks_share_experts_and_long_sequences(self):
        moe = [CONFIGS / "deepseek_v2_lite.toml", "--world-size", 8, "--global-batch-size", 64, "--device", "cuda",
               "--fit", "40GB"]
        long = [CONFIGS / "llama3.2_1b.toml", "--world-size", 8, "--global-batch-size", 8, "--device", "cuda",
                "--train.dtype", "bf16", "--seq-length", 131072, "--fit", "32GB"]
        for words, size in ((moe, "ep"), (long, "cp")):
            found = json.loads(run("plan", *words[:-2], "--search", "--top", 2, *words[-2:], "--json"))
            for row in found["layouts"]:
                self.assertGreater(row[size], 1)
                self.assertIn(f"--{size} {row[size]} ", row["flags"] + " ")
                self.assertEqual(row["cp_comm_type"] in ("a2a", "allgather", "p2p"), row["cp"] > 1)
                plan = json.loads(run("plan", *words[:-2], *row["flags"].split(), "--json"))
                self.assertEqual(plan["microbatches_per_step"], row["microbatches"])
                fullest = max(plan["memory_bytes"]["total"])
                self.assertEqual(fullest + row["gathered_bytes"], row["memory_bytes"])

    def test_what_cannot_be_is_said(self):
        self.assertIn("No layout", run("plan", *RANKS, "--search", "--fit", "100MB", code=2))
        self.assertIn("--fit 80GB", run("plan", *RANKS, "--search", "--fit", "much", code=2))
        self.assertIn("configs/hardware", run("plan", *RANKS, "--search", "--hardware", "abacus", code=2))
        self.assertIn("0 or more", run("plan", *RANKS, "--search", "--gpu-hour-price", -1, code=2))
        self.assertIn("0 or more", run("plan", *RANKS, "--search", "--tokens", -5, code=2))
        self.assertIn("--search", run("plan", *RANKS, "--svg", "search.svg", code=2))
        self.assertIn("--world-size 8", run("plan", RECIPE, "--search", code=2))
        warm_up = run("plan", CONFIGS / "gpt2_124m.toml", "--search", "--world-size", 16, "--global-batch-size", 16,
                      code=2)
        self.assertIn("warm-up", warm_up)
        self.assertNotIn("No layout", warm_up)

    def test_a_layout_holds_what_its_command_on_the_hardwares_device_does(self):
        words = [CONFIGS / "gemma3_270m.toml", "--world-size", 8, "--global-batch-size", 64]
        with tempfile.TemporaryDirectory(prefix="megatron-search-") as folder:
            machine = pathlib.Path(folder) / "machine.toml"
            published = (CONFIGS / "hardware/dgx-h100.toml").read_text()
            machine.write_text(published.replace('device = "cuda"', 'device = "cpu"\nprocessor = "amx"'))
            for hardware, device in (("dgx-h100", "cuda"), (machine, "cpu")):
                found = json.loads(run("plan", *words, "--search", "--hardware", hardware, "--top", 2, "--json"))
                self.assertEqual(found["device"], device)
                for row in found["layouts"]:
                    self.assertEqual("--device cuda" in row["flags"], device == "cuda")
                    plan = json.loads(run("plan", *words, *row["flags"].split(), "--json"))
                    self.assertEqual(plan["target"]["device"], device)
                    self.assertEqual(max(plan["memory_bytes"]["total"]) + row["gathered_bytes"], row["memory_bytes"])
                on_gpu = json.loads(run("plan", *words, "--device", "cuda", "--search", "--hardware", hardware, "--top",
                                        1, "--json"))["layouts"][0]
                self.assertEqual("--device cpu" in on_gpu["flags"], device == "cpu")
            machine.write_text(published.replace('device = "cuda"', ""))  # as files were before they said it
            for device in ("cpu", "cuda"):
                found = json.loads(run("plan", *words, "--device", device, "--search", "--hardware", machine, "--top",
                                       1, "--json"))
                self.assertEqual(found["device"], device)
                self.assertNotIn("--device", found["layouts"][0]["flags"])

    def test_the_command_is_words_of_a_shell_and_takes_back_dp(self):
        with tempfile.TemporaryDirectory(prefix="megatron search's ") as folder:
            recipe = pathlib.Path(folder) / "my recipe.toml"
            shutil.copy(CONFIGS / "gpt_tiny.toml", recipe)
            shown = run("plan", recipe, "--search", "--world-size", 2, "--dp", 2, "--global-batch-size", 64)
            command = next(line for line in shown.splitlines() if line.startswith("torchrun"))
            words = shlex.split(command)
            at = words.index("train") + 1
            self.assertEqual(words[at], str(recipe))
            self.assertIn("--dp 0", command)
            run("plan", words[at], "--world-size", 2, "--dp", 2, "--global-batch-size", 64, *words[at + 1:])

    def test_a_number_of_ranks_that_is_proposed_is_taken(self):
        words = ["plan", CONFIGS / "gpt_tiny.toml", "--search", "--global-batch-size", 64, "--world-size"]
        for ranks in (5000, 67, 1 << 20):
            fix = re.search(r"fix:  --world-size (\d+)", run(*words, ranks, code=2))
            self.assertLess(int(fix[1]), ranks)
            self.assertIn(f"{fix[1]} ranks of", run(*words, int(fix[1])))

    def test_the_command_starts_as_many_ranks_as_were_asked_for(self):
        words = ["plan", RECIPE, "--schedule.rampup_batch_size=", "--train.dtype", "bf16", "--device", "cuda",
                 "--search"]
        shown = run(*words, "--world-size", 12, "--global-batch-size", 48)
        self.assertIn("torchrun --nnodes 2 --nproc-per-node 6 ", shown)
        shown = run(*words, "--world-size", 9, "--global-batch-size", 9)
        self.assertIn("9 ranks are not the same number on each of 2 nodes", shown)
        self.assertNotIn("torchrun", shown)


class Auto(unittest.TestCase):
    """Training in the layout that the search puts first."""

    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)
        self.machine = self.place.path / "machine.toml"

    def test_a_run_takes_the_first_layout_and_learns_the_same(self):
        figures = json.loads(run("bench", "hardware", "--ranks", 2, "--output", self.machine, "--json"))
        self.assertGreater(figures["fp32_tflops"], 0)
        self.assertGreater(figures["link_gb_s"], 0)
        words = ["--world-size", 2, "--train-iters", 3, "--eval-interval", 0]
        search = ["--search", "--hardware", self.machine, "--fit", "1GB"]
        found = json.loads(run("plan", self.place.recipe, *words, *search, "--json",
                               "--tokenizer", self.place.tokenizer))
        first = found["layouts"][0]
        self.place.train("auto", *words, "--layout", "auto", *search[1:])
        recipe = tomllib.loads((self.place.path / "auto/recipe.toml").read_text())
        for section, option in (("parallel", "tp"), ("parallel", "pp"), ("train", "micro_batch_size")):
            self.assertEqual(recipe[section][option], first[option], first)
        self.place.train("one", *words[2:])
        got, want = self.place.losses("auto"), self.place.losses("one")
        self.assertEqual(got.keys(), want.keys())
        for step, loss in want.items():
            self.assertLess(abs(got[step] / loss - 1), 1e-5)

    def test_a_run_shares_experts_or_sequences_where_nothing_else_fits(self):
        """One layer that ranks of tp and pp cannot divide, so that others must."""
        rates = (CONFIGS / "hardware/dgx-h100.toml").read_text()
        self.machine.write_text(rates.replace('device = "cuda"', 'device = "cpu"'))
        one_layer = ["--num-layers", 1, "--num-attention-heads", 1, "--train-iters", 2, "--eval-interval", 0]
        experts = ["--num-experts", 4, "--moe-ffn-hidden-size", 1023, "--disable-bias-linear"]
        sequences = ["--seq-length", 4096, "--global-batch-size", 2, "--micro-batch-size", 1]
        for name, size, words in (("experts", "ep", experts), ("sequences", "cp", sequences)):
            words = [*one_layer, *words]
            search = ["plan", self.place.recipe, *words, "--world-size", 2, "--tokenizer", self.place.tokenizer,
                      "--search", "--hardware", self.machine, "--top", 1000, "--json"]
            rows = json.loads(run(*search))["layouts"]
            without = min(row["memory_bytes"] for row in rows if row[size] == 1)
            self.assertLess(min(row["memory_bytes"] for row in rows if row[size] > 1), without)
            self.place.train(name, *words, "--world-size", 2, "--layout", "auto", "--hardware", self.machine,
                             "--fit", without - 1)
            recipe = tomllib.loads((self.place.path / name / "recipe.toml").read_text())
            self.assertEqual(recipe["parallel"][size], 2)
            self.place.train("one_" + name, *words)
            got, want = self.place.losses(name), self.place.losses("one_" + name)
            self.assertEqual(got.keys(), want.keys())
            for step, loss in want.items():
                self.assertLess(abs(got[step] / loss - 1), 1e-5)

    def test_what_a_search_lacks_is_said(self):
        words = ["--world-size", 2, "--layout", "auto"]
        self.assertIn("bench hardware", self.place.train("none", *words, code=2))
        words += ["--hardware", "dgx-h100"]
        self.assertIn("No layout", self.place.train("none", *words, "--fit", "1MB", code=2))
        self.assertIn("--layout auto", self.place.train("none", "--fit", "1GB", code=2))
        self.assertFalse((self.place.path / "none").exists())


if __name__ == "__main__":
    unittest.main()
