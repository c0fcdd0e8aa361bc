"""Ranks that a launcher has started with different commands, or on different files: all end with 2, and say why."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, expect_advice, run  # noqa: E402

ENDS_IN = 60  # seconds in which ranks end: far less than the 600 after which they would give a peer up


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(rank, size, port):
    """torchrun's variables of a rank; rank 0 keeps the store."""
    return os.environ | {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
                         "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                         "OMP_NUM_THREADS": "1"}


def start_ranks(commands):
    """One process a command, as torchrun starts them."""
    port = free_port()
    return [subprocess.Popen([os.path.abspath(MEGATRON), *map(str, words)], env=environment(rank, len(commands), port),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank, words in enumerate(commands)]


def end_of(processes, timeout):
    """Exit codes, and what each has printed on stderr."""
    try:
        errors = [process.communicate(timeout=timeout)[1] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return [process.returncode for process in processes], errors


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.other = cls.place.path / "other"
        for end in (".bin", ".idx"):
            shutil.copy(cls.place.path / f"tokens_text_document{end}", f"{cls.other}{end}")
        run("tokenizer", "train", "--input", cls.place.path / "text.jsonl", "--vocab-size", 300, "--output",
            cls.place.path / "tokenizer of 300")

    def words(self, name, *options):
        return self.place.train_words(name, "--train-iters", 2, "--parallel.threads_per_rank", 1, *options)

    def changed(self, option, value):
        """The command of a run that is refused, with another value of one option."""
        words = self.words("refused")
        if option not in words:
            return [*words, option, value]
        words[words.index(option) + 1] = value
        return words

    def expect_refusal(self, commands, *messages):
        """Every rank ends with 2 and says each message; nothing is written."""
        before = files_in(self.place.path)
        codes, errors = end_of(start_ranks(commands), ENDS_IN)
        self.assertEqual(codes, [2] * len(commands), "\n".join(errors))
        for rank, error in enumerate(errors):
            for message in messages:
                self.assertIn(message, error, f"rank {rank}")
            self.assertNotIn("frame #", error)
            expect_advice(commands[rank], error)
        self.assertEqual(files_in(self.place.path), before)

    def test_equal_ranks_train(self):
        codes, errors = end_of(start_ranks([self.words("equal"), self.words("equal", "--data.prefetch", 2)]), 120)
        self.assertEqual(codes, [0, 0], "\n".join(errors))
        self.assertEqual(len(self.place.metrics("equal")), 2)

    def test_each_option_that_differs_is_named_with_both_values(self):
        for option, path, value, usual in [
                ("--lr", "schedule.lr", "0.25", "0.005"), ("--seed", "train.seed", "8", "7"),
                ("--micro-batch-size", "train.micro_batch_size", "2", "4"),
                ("--clip-grad", "optimizer.clip_grad", "0.5", "1"),
                ("--hidden-size", "model.hidden_size", "128", "64"), ("--tp", "parallel.tp", "2", "1"),
                ("--train.out", "train.out", self.place.path / "elsewhere", self.place.path / "refused"),
                ("--data-path", "data.data_path", self.other, self.place.path / "tokens_text_document")]:
            with self.subTest(option):
                self.expect_refusal([self.words("refused"), self.changed(option, value)],
                                    f"{path}: rank 0: {usual}; rank 1: {value}\n")

    def test_many_ranks_are_grouped(self):
        plain, changed = self.words("refused"), self.changed("--lr", 0.25)
        self.expect_refusal([[*words, "--global-batch-size", 12] for words in (plain, plain, changed)],
                            "schedule.lr: rank 2: 0.25; the others: 0.005\n")

    def test_another_tokenizer(self):
        smaller = self.place.path / "tokenizer of 300"
        self.expect_refusal([self.words("refused"), self.changed("--tokenizer", smaller)],
                            f"data.tokenizer: rank 0: {self.place.tokenizer}; rank 1: {smaller}\n",
                            f"model.vocab_size: rank 0: {self.vocabulary(self.place.tokenizer)}; rank 1: 300\n")

    @staticmethod
    def vocabulary(folder):
        return len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])

    def on_machines(self, change, *options):
        """What two ranks say that see other files under the same names: `change` is given the second's."""
        folder = tempfile.TemporaryDirectory(prefix="megatron-machines-")
        self.addCleanup(folder.cleanup)
        machines = [pathlib.Path(folder.name) / name for name in ("a", "b")]
        for machine in machines:
            shutil.copytree(self.place.path, machine)
        change(machines[1])
        port = free_port()
        words = ["train", "recipe.toml", "--data-path", "tokens_text_document", "--tokenizer", "tokenizer",
                 "--train-iters", "4", "--parallel.threads_per_rank", "1", "--train.out", "run", *options]
        before = [files_in(machine) for machine in machines]
        processes = [subprocess.Popen([os.path.abspath(MEGATRON), *words], env=environment(rank, 2, port), cwd=machine,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                     for rank, machine in enumerate(machines)]
        codes, errors = end_of(processes, ENDS_IN)
        self.assertEqual(codes, [2, 2], "\n".join(errors))
        self.assertEqual([files_in(machine) for machine in machines], before)
        self.assertEqual(errors[0], errors[1])
        return errors[0]

    def test_one_path_with_another_tokenizer(self):
        def change(machine):
            file = machine / "tokenizer/tokenizer.json"
            tokenizer = json.loads(file.read_text())
            tokens = tokenizer["model"]["vocab"]
            tokens["a"], tokens["b"] = tokens["b"], tokens["a"]
            file.write_text(json.dumps(tokenizer))
        error = self.on_machines(change)
        self.assertRegex(error, r"tokenizer tokenizer: rank 0: (bpe-\d+-)\w+; rank 1: \1\w+\n")

    def test_one_path_with_other_data(self):
        def change(machine):
            with open(machine / "tokens_text_document.bin", "ab") as file:
                file.write(b"\0\0")
        error = self.on_machines(change)
        self.assertRegex(error, r"file tokens_text_document.bin: rank 0: \d+ bytes, XXH3 \w+; rank 1: \d+ bytes, ")
        self.assertNotIn(".idx", error, "it is the same")

    def test_one_path_with_other_tokens(self):
        def change(machine):
            file = machine / "tokens_text_document.bin"
            tokens = bytearray(file.read_bytes())
            tokens[:4] = tokens[2:4] + tokens[:2]
            file.write_bytes(tokens)
        self.assertRegex(self.on_machines(change),
                         r"file tokens_text_document.bin: rank 0: (\d+) bytes, XXH3 \w+; rank 1: \1 bytes, XXH3 \w+\n")

    def test_another_index(self):
        def change(machine):
            file = machine / "tokens_text_document.idx"
            bytes_of = bytearray(file.read_bytes())
            bytes_of[-1] ^= 1
            file.write_bytes(bytes_of)
        self.assertRegex(self.on_machines(change),
                         r"file tokens_text_document.idx: rank 0: \d+ bytes, XXH3 \w+; rank 1: \d+ bytes, XXH3 \w+\n")

    def test_another_checkpoint(self):
        self.place.train("run", "--train-iters", 2, "--save-interval", 1)
        self.addCleanup(shutil.rmtree, self.place.path / "run")
        def lose_the_last(machine):
            shutil.rmtree(machine / "run/checkpoints/iter_0000002")
            (machine / "run/checkpoints/latest").write_text("iter_0000001\n")
        self.assertRegex(self.on_machines(lose_the_last),
                         r"checkpoint run/checkpoints/iter_0000002: rank 0: iteration 2, .*; rank 1: no such folder\n")
        def replace_the_last(machine):
            shutil.rmtree(machine / "run/checkpoints/iter_0000002")
            shutil.copytree(machine / "run/checkpoints/iter_0000001", machine / "run/checkpoints/iter_0000002")
        self.assertRegex(self.on_machines(replace_the_last),
                         r"rank 0: iteration 2, a manifest .*; rank 1: iteration 1, a manifest .*\n")

    def test_another_schedule_in_a_file_of_one_name(self):
        words = ["plan", self.place.recipe, "--vocab-size", 320, "--world-size", 2, "--pp", 2, "--draw"]
        self.addCleanup((self.place.path / "schedule.txt").unlink)
        run(*words, self.place.path / "schedule.txt")
        def change(machine):
            run(*words, machine / "schedule.txt", "--schedule", "gpipe")
        self.assertRegex(self.on_machines(change, "--pp", "2", "--schedule", "schedule.txt"),
                         r"file schedule.txt: rank 0: \d+ bytes, XXH3 \w+; rank 1: \d+ bytes, XXH3 \w+\n")

    def test_other_weights_of_the_same_size_in_a_folder_of_hugging_face(self):
        self.place.train("model", "--train-iters", 1)
        run("checkpoint", "export", "--load", self.place.path / "model", "--output", self.place.path / "hf")
        for folder in ("model", "hf"):
            self.addCleanup(shutil.rmtree, self.place.path / folder)
        def change(machine):
            file = machine / "hf/model.safetensors"
            weights = bytearray(file.read_bytes())
            weights[-1] ^= 1
            file.write_bytes(weights)
        self.assertRegex(self.on_machines(change, "--load", "hf", "--finetune"),
                         r"checkpoint hf: rank 0: (\d+ files of \d+ bytes, XXH3) \w+, no manifest; rank 1: \1 \w+")

    def test_generate_and_eval(self):
        self.place.train("model", "--train-iters", 2)
        self.addCleanup(shutil.rmtree, self.place.path / "model")
        generate = ["generate", "--load", self.place.path / "model", "--tp", 2, "--prompt", "the cat", "--temperature"]
        self.expect_refusal([[*generate, 0], [*generate, 1]], "temperature: rank 0: 0; rank 1: 1\n")
        score = ["eval", "loss", "--load", self.place.path / "model", "--tp", 2, "--data",
                 self.place.path / "text.jsonl", "--window"]
        self.expect_refusal([[*score, 16], [*score, 20]], "windows: rank 0: ")

    def test_what_one_rank_finds_wrong_ends_all(self):
        (self.place.path / "taken").write_text("a file")
        self.addCleanup((self.place.path / "taken").unlink)
        command = self.words("taken/run")
        self.expect_refusal([command, command], "rank 0: ", "taken")


    def test_what_one_rank_cannot_start_with_ends_all(self):
        for changed, message in [(["--tp", 3], "parallel.tp"), (["--no-such-option"], "--no-such-option"),
                                 (["--tokenizer", self.place.path / "nowhere"], "nowhere")]:
            with self.subTest(message):
                self.expect_refusal([self.words("refused"), self.words("refused", *changed)], "rank 1: ", message)
        wrong = self.words("refused", "--tp", 3)
        self.expect_refusal([wrong, wrong], "parallel.tp")


class SimultaneousStarts(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)

    def expect_one_loser(self, options):
        """Of two runs in one folder one trains; the other ends with 2 and says why, long before the first ends."""
        words = self.place.train_words("run", "--train-iters", 100000, "--world-size", 2,
                                       "--parallel.threads_per_rank", 1, *options)
        runs = [subprocess.Popen([MEGATRON, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                 text=True, start_new_session=True) for _ in range(2)]
        try:
            loser = self.first_to_end(runs)
            self.assertEqual(loser.returncode, 2)
            self.assertIn("Only one run at a time may write a folder.", loser.stderr.read())
            winner = runs[1 - runs.index(loser)]
            while not (self.place.path / "run/metrics.jsonl").exists():  # a signal ends ranks that have not met
                self.assertIsNone(winner.poll())
            winner.terminate()
            winner.wait(timeout=120)
            self.assertEqual(winner.returncode, 3, winner.stderr.read())
        finally:
            for process in runs:
                process.kill()
                process.wait()
                process.stderr.close()

    @staticmethod
    def first_to_end(runs):
        for _ in range(ENDS_IN * 10):
            for process in runs:
                try:
                    process.wait(timeout=0.1)
                    return process
                except subprocess.TimeoutExpired:
                    pass
        raise AssertionError("both runs train in one folder, or wait")

    def test_threads(self):
        self.expect_one_loser(["--launch", "threads"])

    def test_processes(self):
        self.expect_one_loser(["--launch", "processes"])


class Resuming(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)
        recipe = self.place.recipe.read_text().replace("global_batch_size = 8\n", "")
        self.place.recipe.write_text(recipe + "\n")

    def batches(self, name):
        entries = self.place.metrics(name)
        consumed = [0] + [entry["consumed_samples"] for entry in entries]
        return [after - before for before, after in zip(consumed, consumed[1:])]

    def test_the_global_batch_is_kept_in_another_layout(self):
        self.place.train("run", "--train-iters", 2, "--world-size", 2)  # 4 x dp 2
        words = self.place.train_words("run", "--train-iters", 4, "--world-size", 4, "--lr", 1e-3)
        said = subprocess.run([MEGATRON, *map(str, words)], capture_output=True, text=True, timeout=300)
        self.assertEqual(said.returncode, 0, said.stderr)
        for line in ["options differ from those of the checkpoint (saved -> now):", "schedule.lr: 0.005 -> 0.001",
                     "train.micro_batch_size: 4 -> 2", "train.train_iters: 2 -> 4"]:
            self.assertIn(line, said.stdout + said.stderr)
        self.assertEqual(self.batches("run"), [8, 8, 8, 8])
        self.place.train("run", "--train-iters", 6)  # one rank: two microbatches of 4
        self.assertEqual(self.batches("run"), [8] * 6)

    def test_a_batch_that_cannot_be_kept_stops_the_run(self):
        self.place.train("run", "--train-iters", 2)  # 4
        self.assertIn("A resumed run keeps its global batch",
                      self.place_error("run", "--train-iters", 4, "--world-size", 3))
        self.place.train("run", "--train-iters", 4, "--world-size", 3, "--global-batch-size", 12)
        self.assertEqual(self.batches("run"), [4, 4, 12, 12])

    def place_error(self, name, *options):
        return run(*self.place.train_words(name, *options), code=2)


if __name__ == "__main__":
    unittest.main()
