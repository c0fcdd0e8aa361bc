"""`megatron checkpoint`, and what train makes of damaged checkpoints and of other runs' weights."""
import fcntl
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, run  # noqa: E402


def info_of_a_damaged(folder, *words):
    """What `checkpoint info` prints where it finds something missing."""
    result = subprocess.run([MEGATRON, "checkpoint", "info", folder, *words], capture_output=True, text=True)
    if result.returncode != 4:
        raise AssertionError(f"exit code {result.returncode}, expected 4\n{result.stderr}")
    return result.stdout


class CheckpointJobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.place.train("run", "--train-iters", 6, "--save-interval", 2, "--checkpoint.keep_last", 0)
        cls.trained = cls.place.path / "run"

    def names(self, folder):
        return sorted(path.name for path in (folder / "checkpoints").glob("iter_*"))

    def test_reshard_keeps_every_number_and_diff_says_so(self):
        made = self.place.path / "resharded"
        (self.trained / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
        (self.trained / "generation_config.json").write_text('{"eos_token_id": 0}')
        about = json.loads(run("checkpoint", "reshard", self.trained, made, "--files", 3, "--json"))
        self.assertEqual((about["files"], about["iteration"]), (3, 6))
        run("checkpoint", "verify", made)
        for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
            self.assertEqual((made / name).read_bytes(), (self.trained / name).read_bytes(), name)
        answer = json.loads(run("checkpoint", "diff", self.trained, made, "--json"))
        self.assertTrue(answer["equal"])
        self.assertEqual(answer["compared"], len(about["tensors"]))
        run("checkpoint", "diff", self.trained / "checkpoints/iter_0000002", made, code=4)
        run("checkpoint", "diff", self.trained / "checkpoints/iter_0000002", made, "--tolerance", 1000)

    def test_export_waits_for_no_other_and_removes_what_a_killed_one_left(self):
        place = self.place.path
        left, lock = place / ".tmp-exported-4000000-0", place / ".tmp-exported-lock"
        left.mkdir()
        (left / "config.json").write_text("{}")
        words = ["checkpoint", "export", "--load", self.trained, "--output", place / "exported"]
        with open(lock, "w", encoding="utf-8") as held:
            held.write(left.name)
            held.flush()
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertIn("another job writes", run(*words, code=2))
        self.assertTrue(left.exists(), "it may be the other's")
        self.assertFalse((place / "exported").exists())
        run(*words)
        self.assertTrue((place / "exported/config.json").exists())
        self.assertEqual(list(place.glob(".tmp-exported*")), [])

    def test_weights_in_bf16_train_on(self):
        made = self.place.path / "bf16"
        run("checkpoint", "reshard", self.trained, made, "--dtype", "bf16", "--weights-only")
        self.place.train("tuned", "--load", made, "--finetune", "--train-iters", 2)
        first = self.place.losses("run")
        self.assertLess(self.place.losses("tuned")[1], first[1] - 0.5, "it begins with what was learned")
        self.place.train("tuned", "--load", made, "--finetune", "--train-iters", 3)
        self.assertEqual(max(self.place.losses("tuned")), 3, "its own checkpoint comes first")

    def test_prune_keeps_the_newest_and_every_nth(self):
        self.place.train("many", "--train-iters", 6, "--save-interval", 1, "--checkpoint.keep_last", 0)
        many = self.place.path / "many"
        words = ["checkpoint", "prune", many, "--keep-last", 1, "--keep-every", 2]
        self.assertEqual(json.loads(run(*words, "--dry-run", "--json"))["removed"],
                         ["iter_0000001", "iter_0000003", "iter_0000005"])
        self.assertEqual(len(self.names(many)), 6)
        run(*words)
        self.assertEqual(self.names(many), ["iter_0000002", "iter_0000004", "iter_0000006"])
        self.assertIn("--keep-last", run("checkpoint", "prune", many, code=2))

    def test_prune_removes_no_whole_checkpoint_for_a_damaged_one_and_waits_for_no_run(self):
        self.place.train("pruned", "--train-iters", 4, "--save-interval", 2, "--checkpoint.keep_last", 0)
        checkpoints = self.place.path / "pruned" / "checkpoints"
        one = f"{checkpoints}/iter_0000002/"
        self.assertIn("one checkpoint", run("checkpoint", "prune", one, "--keep-last", 1, code=2))
        with open(checkpoints / ".lock", "a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertIn("another run holds", run("checkpoint", "prune", checkpoints, "--keep-last", 1, code=2))
        next((checkpoints / "iter_0000004").glob("rank_*")).unlink()
        run("checkpoint", "prune", checkpoints, "--keep-last", 1)
        self.assertEqual(self.names(checkpoints.parent), ["iter_0000002", "iter_0000004"])

    def test_a_damaged_checkpoint_is_passed_over_loudly_and_nothing_begins_anew(self):
        self.place.train("hurt", "--train-iters", 6, "--save-interval", 2, "--checkpoint.keep_last", 0)
        hurt = self.place.path / "hurt"
        whole = self.place.losses("hurt")

        def damage(name):
            file = next((hurt / "checkpoints" / name).glob("rank_*"))
            data = bytearray(file.read_bytes())
            data[-100] ^= 1
            file.write_bytes(data)

        damage("iter_0000006")
        said = self.place.train("hurt", "--train-iters", 6)
        self.assertIn("WARNING: a damaged checkpoint is left out", said)
        self.assertIn("resumed from", said)
        self.assertEqual(self.place.losses("hurt"), whole, "the steps since are done again, to the bit")
        for name in self.names(hurt):
            damage(name)
        self.assertIn("none is", self.place.train("hurt", "--train-iters", 8, code=1))

    def damaged(self, name):
        """A copy of the run whose last checkpoint has lost half of its file; that checkpoint's folder."""
        shutil.copytree(self.trained, self.place.path / name)
        last = self.place.path / name / "checkpoints/iter_0000006"
        file = next(last.glob("rank_*"))
        file.write_bytes(file.read_bytes()[:file.stat().st_size // 2])
        return last

    def test_a_damaged_checkpoint_names_a_whole_one_whoever_reads_it(self):
        last = self.damaged("short")
        whole = str(last.parent / "iter_0000004")
        said = json.loads(info_of_a_damaged(last, "--json"))
        self.assertEqual((said["iteration"], len(said["problems"])), (6, 1))
        self.assertIn("must be as long as its manifest says", said["problems"][0])
        self.assertIn("must be as long as its manifest says", info_of_a_damaged(last))
        self.assertEqual(json.loads(run("checkpoint", "info", whole, "--json"))["problems"], [])
        text = self.place.path / "few.txt"
        text.write_text("the cat sees my friend on friday.\n")
        for words in (["generate", "--load", last.parent, "--prompt", "the cat"],
                      ["eval", "loss", "--load", last, "--data", text]):
            self.assertIn("another checkpoint of the run: " + whole, run(*words, code=2), words)
        said = self.place.train("from the damaged", "--load", last, "--finetune", code=2)
        self.assertIn("another checkpoint of the run: " + whole, said)
        self.assertFalse((self.place.path / "from the damaged").exists())
        (last / "manifest.json").write_text("{}")
        self.assertIn(whole, run("generate", "--load", last, "--prompt", "the cat", code=2))

    def test_a_file_in_place_of_the_folder_is_said(self):
        manifest = self.trained / "checkpoints/iter_0000006/manifest.json"
        for job in ("info", "verify"):
            message = run("checkpoint", job, manifest, code=2)
            self.assertIn("a folder must be named", message)
            self.assertIn(f"fix:  {manifest.parent}", message)

    def test_a_run_that_goes_on_takes_all_of_its_model_or_says_how_else(self):
        for options in (["--load", self.trained], []):
            message = self.place.train("partly", *options, "--num-layers", 1, "--load-strict", "false", code=2)
            self.assertIn("checkpoint.load_strict false is for runs that take the weights alone", message)
            self.assertRegex(message, r"\n  fix:  .*--finetune")
        message = self.place.train("partly", "--load", self.trained, "--num-layers", 1, code=2)
        self.assertIn("--finetune --load-strict false", message)
        self.place.train("partly", "--load", self.trained, "--num-layers", 1, "--load-strict", "false", "--finetune",
                         "--train-iters", 1)

    def test_a_fix_for_another_network_works_and_is_short(self):
        shutil.copytree(self.trained, self.place.path / "again")
        message = self.place.train("again", "--num-layers", 1, code=2)
        self.assertEqual(message.count("fix:"), 1, message)
        words = re.search(r"weights that fit: (.*) --train.out FOLDER", message)[1].split()
        self.place.train("fewer", "--num-layers", 1, "--train-iters", 1, *words)
        message = self.place.train("again", "--seq-length", 64, code=2)
        words = re.search(r"fix: +(.*)", message)[1].split(";")[0].split()
        self.place.train("again", *words, "--train-iters", 7)

    def test_another_tokenizer_is_refused_and_the_same_elsewhere_is_not(self):
        shutil.copytree(self.trained, self.place.path / "copy")
        kept = (self.place.path / "copy/tokenizer.json").read_bytes()
        vocabulary = json.loads(run("checkpoint", "info", self.trained, "--json"))["metadata"]["recipe"]
        size = int(re.search(r"vocab_size = (\d+)", vocabulary)[1])
        text = self.place.path / "loud.jsonl"
        text.write_text((self.place.path / "text.jsonl").read_text().upper().replace('"TEXT"', '"text"'))
        run("tokenizer", "train", "--input", text, "--vocab-size", 320, "--output", self.place.path / "other")
        elsewhere = self.place.path / "elsewhere"
        shutil.copytree(self.place.tokenizer, elsewhere)
        message = self.place.train("copy", "--tokenizer", self.place.path / "other", "--vocab-size", size, code=2)
        self.assertIn("The tokenizer must number tokens as that of the checkpoint", message)
        self.assertEqual((self.place.path / "copy/tokenizer.json").read_bytes(), kept)
        self.assertEqual(self.place.losses("copy"), self.place.losses("run"))
        words = re.search(r"fix: +(--tokenizer [^;]+);", message)[1].split()
        for named in (words, ["--tokenizer", elsewhere]):
            self.assertNotIn("warning", self.place.train("copy", *named, "--train-iters", 6))
        words = re.search(r"with the weights: (.*) --train.out FOLDER", message)[1].split()
        self.place.train("anew", "--tokenizer", self.place.path / "other", "--vocab-size", size, "--train-iters", 1,
                         *words)

    def test_a_damaged_copy_of_the_tokenizer_is_written_anew(self):
        shutil.copytree(self.trained, self.place.path / "damaged")
        copy = self.place.path / "damaged/tokenizer.json"
        kept = copy.read_bytes()
        for iterations, damage in ((7, kept[:len(kept) // 2]), (8, b"")):
            copy.write_bytes(damage)
            self.place.train("damaged", "--train-iters", iterations)
            self.assertEqual(copy.read_bytes(), kept)

    def test_adapters_are_trained_on_with_the_weights_that_they_were_begun_on(self):
        base = self.place.path / "base"
        shutil.copytree(self.trained, base)
        adapters = ["--lora.rank", 2, "--lora.base", base, "--train-iters", 2]
        self.place.train("adapters", *adapters)
        moved = base.rename(self.place.path / "moved")
        adapters[3] = moved
        self.assertNotIn("warning", self.place.train("adapters", *adapters))
        run("checkpoint", "reshard", moved, self.place.path / "parts", "--files", 3, "--weights-only")
        adapters[3] = self.place.path / "parts"
        self.assertNotIn("warning", self.place.train("adapters", *adapters))
        adapters[3] = self.trained / "checkpoints/iter_0000002"
        message = self.place.train("adapters", *adapters, code=2)
        self.assertIn("The weights that adapters are trained on must stay those of the checkpoint", message)

    def test_adapters_are_merged_into_the_weights_that_they_were_begun_on_alone(self):
        base = self.place.path / "replaced"
        shutil.copytree(self.trained, base)
        self.place.train("merged", "--lora.rank", 2, "--lora.base", base, "--train-iters", 2)
        words = ["generate", "--load", self.place.path / "merged", "--prompt", "the", "--temperature", 0,
                 "--max-new-tokens", 4]
        before = run(*words)
        self.place.train("others", "--train-iters", 6, "--seed", 8)
        shutil.rmtree(base)
        shutil.copytree(self.place.path / "others", base)
        message = run(*words, code=2)
        self.assertIn("merged into the weights that they were trained on", message)
        self.assertIn("replaced/checkpoints/iter_0000006, which holds others", message)
        shutil.rmtree(base)
        run("checkpoint", "export", "--load", self.trained, "--output", base / "checkpoints/iter_0000006")
        self.assertEqual(run(*words), before, "the same weights in another format")

    def test_what_has_no_effect_need_not_be_the_checkpoints(self):
        shutil.copytree(self.trained, self.place.path / "same")
        self.place.train("same", "--train-iters", 6, "--lora.alpha", 16)

    def test_adapters_on_weights_that_were_never_saved_are_called_so(self):
        self.place.train("drawn", "--lora.rank", 2, "--train-iters", 1)
        for job in (["generate", "--prompt", "the"], ["serve"]):
            self.assertIn("weights that were drawn and never saved",
                          run(job[0], "--load", self.place.path / "drawn", *job[1:], code=2))

    def test_a_folder_that_is_missing_is_named_before_the_tokenizer_that_would_be_in_it(self):
        nowhere = self.place.path / "nowhere"
        for option in (["--load", nowhere, "--finetune"], ["--lora.rank", 2, "--lora.base", nowhere]):
            message = run("train", self.place.recipe, "--data-path", self.place.path / "tokens_text_document",
                          "--train.out", self.place.path / "never", *option, code=2)
            self.assertIn(f"{nowhere}, which does not exist", message)
            self.assertFalse((self.place.path / "never").exists())

    def test_samples_that_are_too_long_for_the_network_of_a_folder_are_to_be_shortened(self):
        words = ["--load", self.trained, "--finetune", "--use-checkpoint-args", "--train-iters", 1]
        message = self.place.train("long", *words, "--seq-length", 64, code=2)
        fix = re.search(r"fix: +(--seq-length \d+)$", message, re.MULTILINE)[1].split()
        self.place.train("long", *words, "--seq-length", 64, *fix)

    def test_preferences_need_for_validation_what_was_computed_at_the_start(self):
        pairs = self.place.path / "preferences.jsonl"
        pairs.write_text("".join(json.dumps({"prompt": f"the {name}", "chosen": " sees a dog.", "rejected": " likes."})
                                 + "\n" for name in ("cat", "dog", "old man", "friend") * 5))

        def prefer(*options, code=0):
            words = ["train", self.place.recipe, "--tokenizer", self.place.tokenizer, "--data-path", pairs, "--load",
                     self.trained, "--finetune", "--train.out", self.place.path / "preferring", *options]
            done = subprocess.run([MEGATRON, *map(str, words)], capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, code, done.stderr)
            return done.stdout + done.stderr

        prefer("--dpo.beta", 0.1, "--eval-interval", 0, "--train-iters", 1)
        message = prefer("--dpo.beta", 0.1, "--eval-interval", 1, "--train-iters", 2, code=1)
        self.assertIn("the run began without validation", message)
        self.assertIn("--eval-interval 0", message)
        said = prefer("--dpo.beta", 0.2, "--eval-interval", 0, "--train-iters", 2)
        self.assertIn("dpo.beta: 0.1 -> 0.2\n", said, "the pairs come in the same order")

    def begun(self, name):
        """A run without an end that has saved in the folder `name`."""
        words = self.place.train_words(name, "--train-iters", 1_000_000, "--save-interval", 2)
        process = subprocess.Popen([MEGATRON, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        end = time.monotonic() + 120
        while not (self.place.path / name / "checkpoints/latest").exists():
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        return process

    @staticmethod
    def sizes(folder):
        return {path: path.stat().st_size for path in folder.rglob("*")}

    def test_a_run_whose_folder_was_replaced_ends_and_leaves_the_new_one_alone(self):
        folder = self.place.path / "taken"
        first = self.begun("taken")
        first.send_signal(signal.SIGSTOP)
        folder.rename(self.place.path / "aside")
        self.place.train("taken", "--train-iters", 2, "--save-interval", 1, "--checkpoint.keep_last", 0)
        listed = self.sizes(folder)
        first.send_signal(signal.SIGCONT)
        _, errors = first.communicate(timeout=120)
        self.assertEqual(first.returncode, 1, errors)
        self.assertIn("A run's folder must stay where it is", errors)
        self.assertIn("fix:", errors)
        self.assertEqual(self.sizes(folder), listed)

    def test_a_run_whose_folder_was_removed_does_not_make_it_again(self):
        folder = self.place.path / "gone"
        first = self.begun("gone")
        folder.rename(self.place.path / "elsewhere_now")
        _, errors = first.communicate(timeout=120)
        self.assertEqual(first.returncode, 1, errors)
        self.assertIn("was removed or renamed", errors)
        self.assertFalse(folder.exists())
        self.place.train("elsewhere_now", "--train.exit_interval", 1, "--train-iters", 1_000_000)

    def test_the_checkpoints_schedule_holds_where_that_is_asked_for(self):
        def figures(name):
            lines = (self.place.path / "decayed" / "metrics.jsonl").read_text().splitlines()
            return [json.loads(line)[name] for line in lines]

        options = ["--lr-decay-style", "cosine", "--min-lr", 0, "--eval-interval", 0]
        grows = ["--weight-decay-incr-style", "linear", "--start-weight-decay", 0, "--end-weight-decay", 0.5]
        self.place.train("decayed", "--train-iters", 4, *options, *grows, "--decoupled-lr", 0.02)
        self.place.train("decayed", "--train-iters", 6, "--lr", 0.1, *options, "--use-checkpoint-opt-param-scheduler")
        self.assertIn("decoupled_lr = 0.02", (self.place.path / "decayed" / "recipe.toml").read_text())
        self.assertEqual(figures("learning_rate")[4:], [0, 0])  # over since iteration 4, however long the run is now
        self.assertGreater(figures("learning_rate")[3], 0)
        self.assertEqual(figures("weight_decay"), [0, 0.125, 0.25, 0.375, 0.5, 0.5])

    def test_a_batch_that_does_not_fit_is_said(self):
        self.place.train("micro", "--train-iters", 1)
        result = subprocess.run([MEGATRON, *map(str, self.place.train_words("micro", "--micro-batch-size", 3,
                                                                            "--global-batch-size", 0))],
                                capture_output=True, text=True)
        self.assertIn("train.micro_batch_size 2, not 3", result.stdout + result.stderr)

    def test_names_are_shown_without_control_characters(self):
        odd = self.place.path / "odd\x1b[2J"
        shutil.copytree(self.trained, odd)
        for job in ("info", "verify"):
            self.assertIn("odd\\x1b[2J", run("checkpoint", job, odd))


if __name__ == "__main__":
    unittest.main()
