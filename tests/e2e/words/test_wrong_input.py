"""What is wrong is said at once, all together, and nothing is written."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, SMALL_MODEL, RunFolder, run  # noqa: E402

JOBS = ["doctor", "tokenizer", "data", "train", "generate", "checkpoint", "plan", "bench", "docs"]


# Users may not read everything; root may, unless that right is taken from what it starts.
AS_A_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


class WrongInput(unittest.TestCase):
    def test_doctor_names_who_serves_each_operator(self):
        kernels = json.loads(run("doctor", "--json"))["kernels"]
        operators = json.loads(run("doctor", "--operators", "--json"))
        self.assertEqual(operators["layer_norm"], {"bf16": kernels, "fp16": kernels, "fp32": kernels,
                                                   "fp64": "reference", "cuda": "reference"})
        table = run("doctor", "--operators").splitlines()
        self.assertEqual(len(table), 1 + len(operators))

    def test_every_job_is_listed_and_has_help(self):
        listing = run("--help")
        for job in JOBS:
            self.assertIn(f" {job} ", listing)
            self.assertIn(f"megatron {job}", run(job, "--help"))

    def test_the_version_is_told_as_programs_do(self):
        for words in (["--version"], ["version"]):
            self.assertRegex(run(*words), r"^megatron \d+\.\d+\.\d+(\+\w+(\.changed)?)?, libtorch \d+\.\d+\.\d+")
        self.assertIn("takes no options", run("version", "--json", code=2))

    def test_an_unknown_job_names_the_nearest(self):
        self.assertIn("tokenizer", run("tokeniser", code=2))

    def test_all_broken_rules_are_reported_before_anything_is_written(self):
        place = RunFolder()
        self.addCleanup(place.close)
        wrong = ["--hidden-size", 65, "--world-size", 4, "--tp", 3, "--model.activation", "relu2"]
        message = place.train("run", *wrong, code=2)
        for word in ["hidden_size", "tp", "activation"]:
            self.assertIn(word, message)
        self.assertFalse((place.path / "run").exists())

    def test_rules_words_keys_and_a_missing_tokenizer_are_reported_together(self):
        place = RunFolder()
        self.addCleanup(place.close)
        message = place.train("run", "--hidden-size", 65, "--parallel.tpp", 2, "--data.tokenizer", "nowhere",
                              "--train-iters", "many", code=2)
        for word in ["hidden_size", "--parallel.tpp", "nowhere", "--train-iters takes an integer"]:
            self.assertIn(word, message)
        self.assertFalse((place.path / "run").exists())

    def test_kernels_that_this_machine_lacks_are_refused_before_anything_is_written(self):
        place = RunFolder()
        self.addCleanup(place.close)
        if json.loads(run("doctor", "--json"))["instruction_sets"]["amx_bf16"]:
            self.skipTest("this machine has all of them")
        self.assertIn("train.kernels", place.train("run", "--train.kernels", "amx", code=2))
        self.assertFalse((place.path / "run").exists())

    def test_an_unknown_option_names_the_nearest(self):
        place = RunFolder()
        self.addCleanup(place.close)
        message = place.train("run", "--parallel.tpp", 2, code=2)
        self.assertIn("--parallel.tp", message)
        self.assertFalse((place.path / "run").exists())

    def test_an_option_that_older_programs_had_is_answered_with_what_holds_now(self):
        said = run("preprocess_data", "--input", "a", "--output-prefix", "b", "--dataset-impl", "mmap", code=2)
        self.assertIn("fix:  leave --dataset-impl out", said)
        said = run("pretrain_gpt", "--micro-batch-size", "1.5", "--bias-gelu-fusion", "--data-impl", "mmap", code=2)
        for fix in ("fix:  --micro-batch-size 1", "fix:  leave --bias-gelu-fusion out: it is the default",
                    "--data-impl mmap (gone from Megatron-LM; leave it out)"):
            self.assertIn(fix, said)

    def test_a_folder_to_load_that_holds_nothing_is_said_with_what_was_looked_for(self):
        place = RunFolder()
        self.addCleanup(place.close)
        empty, other = place.path / "empty", place.path / "other"
        empty.mkdir()
        other.mkdir()
        (other / "notes.txt").write_text("nothing of a model\n")
        for folder, found in [(place.path / "nosuch", "does not exist"), (empty, "an empty folder"),
                              (other, "which holds notes.txt"), (other / "notes.txt", "a file")]:
            for words in [["generate", "--load", folder, "--prompt", "a"],
                          ["eval", "loss", "--load", folder, "--data", place.path / "text.jsonl"],
                          ["checkpoint", "info", folder], ["checkpoint", "verify", folder],
                          ["checkpoint", "reshard", folder, place.path / "new"],
                          ["checkpoint", "prune", folder, "--keep-last", 1],
                          ["checkpoint", "export", "--load", folder, "--output", place.path / "new"],
                          ["checkpoint", "import", "--from", folder, "--output", place.path / "new"],
                          place.train_words("run", "--load", folder),
                          place.train_words("run", "--load", folder, "--finetune")]:
                message = run(*words, code=2)
                for word in [str(folder), found, "latest", "got:", "fix:"]:
                    self.assertIn(word, message, words)
                self.assertEqual(message.count("got:"), 1, message)
            self.assertFalse((place.path / "run").exists())
            self.assertFalse((place.path / "new").exists())

    def test_a_model_that_is_no_option_or_no_gguf_file_is_answered_with_what_to_do(self):
        place = RunFolder()
        self.addCleanup(place.close)
        model = place.path / "model.gguf"
        model.write_text("")
        self.assertIn(f"fix:  --load {model}", run("generate", model, "--prompt", "a", code=2))
        self.assertIn("a GGUF file begins with GGUF", run("generate", "--load", model, "--prompt", "a", code=2))

    def test_a_misspelled_folder_to_load_is_answered_with_the_one_beside_it(self):
        place = RunFolder()
        self.addCleanup(place.close)
        place.train("pretrained", "--train-iters", 1)
        for words in [["generate", "--load", place.path / "pretraind", "--prompt", "a"],
                      ["checkpoint", "info", place.path / "pretraind"],
                      place.train_words("run", "--load", place.path / "pretraind")]:
            self.assertIn(f"fix:  {place.path / 'pretrained'}", run(*words, code=2))
        message = run("generate", "--load", place.path, "--prompt", "a", code=2)
        self.assertIn(f"fix:  {place.path / 'pretrained'}", message)

    def test_a_path_that_the_system_refuses_is_answered_with_the_reason_and_what_to_do(self):
        place = RunFolder()
        self.addCleanup(place.close)
        loop, closed, long = place.path / "loop", place.path / "closed", place.path / ("n" * 300)
        loop.symlink_to(loop)
        closed.mkdir(mode=0)
        self.addCleanup(closed.chmod, 0o700)
        for path, reason in [(loop, "Too many levels of symbolic links"), (closed / "run", "Permission denied"),
                             (long, "File name too long")]:
            for words in [["generate", "--load", path, "--prompt", "a"], ["serve", "--load", path],
                          ["eval", "loss", "--load", path, "--data", place.path / "text.jsonl"],
                          ["checkpoint", "info", path], ["checkpoint", "verify", path],
                          ["checkpoint", "export", "--load", path, "--output", place.path / "new"],
                          ["data", "info", path], ["plot", path], ["watch", path, "--once"],
                          ["tokenizer", "encode", "--tokenizer", path],
                          *[place.train_words("run", option, path)
                            for option in ("--load", "--tokenizer", "--data-path", "--train.out", "--checkpoint.save",
                                           "--data-cache-path", "--lora.base")]]:
                with self.subTest(words=words):
                    message = run(*words, code=2, inside=AS_A_USER)
                    for word in [reason, "got:", "fix:"]:
                        self.assertIn(word, message)
                    self.assertNotIn("filesystem error", message)
        # Nobody has named what lies in a folder that was named.
        self.assertIn("Weights must be in", run("generate", "--load", place.path, "--prompt", "a", code=2,
                                                inside=AS_A_USER))
        self.assertFalse((place.path / "run").exists())

    def test_a_data_cache_that_lacks_an_index_and_cannot_be_written_is_refused_before_the_start(self):
        place = RunFolder()
        self.addCleanup(place.close)
        cache = place.path / "named"
        for folder, options in [(cache, ["--data-cache-path", cache]),
                                (place.path / "cache/GPTDataset_indices", [])]:
            with self.subTest(folder=folder):
                place.train("filled", *options, "--train-iters", 1)
                shutil.rmtree(place.path / "filled")
                folder.chmod(0o555)
                self.addCleanup(folder.chmod, 0o755)
                message = run(*place.train_words("run", *options, "--train-iters", 2), code=2, inside=AS_A_USER)
                self.assertIn("folder must be writable", message)
                self.assertIn(str(folder), message)
                self.assertFalse((place.path / "run").exists())
                run(*place.train_words("run", *options, "--train-iters", 1), inside=AS_A_USER)
                shutil.rmtree(place.path / "run")
        place.train("run", "--data-cache-path", place.recipe, code=2)
        self.assertFalse((place.path / "run").exists())

    def test_half_of_torchruns_variables_is_refused(self):
        place = RunFolder()
        self.addCleanup(place.close)
        words = place.train_words("run", "--train-iters", 1)
        for variables in [["RANK=0", "MASTER_ADDR=127.0.0.1"], ["WORLD_SIZE=2", "LOCAL_RANK=0"]]:
            self.assertIn("must be set", run(*words, code=2, inside=["env", *variables]))
        self.assertFalse((place.path / "run").exists())
        run(*words, inside=["env", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1"])

    def test_ranks_that_the_layout_does_not_ask_for_are_refused(self):
        place = RunFolder()
        self.addCleanup(place.close)
        place.train("run", "--train-iters", 1)
        generate = ["generate", "--load", place.path / "run", "--prompt", "the cat", "--temperature", 0, "--json"]
        alone = json.loads(run(*generate))["new_ids"]
        self.assertEqual(json.loads(run(*generate, "--world-size", 2, "--tp", 2))["new_ids"], alone)
        for layout, fix in [(["--world-size", 2], "--world-size 1"), (["--world-size", 2, "--tp", 4], "--world-size 4"),
                            (["--world-size", 3, "--tp", 2], "--world-size 2")]:
            message = run(*generate, *layout, code=2)
            for word in ["must be tp x pp", f"{layout[1]} ranks", f"fix:  {fix}"]:
                self.assertIn(word, message)
        evaluate = ["eval", "loss", "--load", place.path / "run", "--data", place.path / "text.jsonl"]
        self.assertIn("a multiple of tp x pp", run(*evaluate, "--world-size", 3, "--tp", 2, code=2))
        self.assertIn("tp x pp x dp", run(*evaluate, "--world-size", 3, "--dp", 2, code=2))

    def test_options_that_say_nothing_are_named_in_one_line_and_change_nothing(self):
        place = RunFolder()
        self.addCleanup(place.close)
        losses = []
        for name, more in [("plain", []), ("more", ["--adam-beta1", 0.5, "--hysteresis", 7]),
                           ("processes", ["--adam-beta1", 0.5, "--world-size", 2, "--launch", "processes"])]:
            words = place.train_words(name, "--optimizer", "sgd", "--train-iters", 2, *more)
            result = subprocess.run([MEGATRON, *map(str, words)], capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)
            notes = [line for line in result.stderr.splitlines() if line.startswith("note: ")]
            self.assertEqual(len(notes), 1 if more else 0, result.stderr)
            if more:
                self.assertIn("--adam-beta1 has no effect with --optimizer sgd", notes[0])
            losses.append(place.losses(name))
        self.assertEqual(losses[0], losses[1])
        message = place.train("wrong", "--swiglu", "--model.activation", "relu", code=2)
        for word in ["--swiglu", "model.activation", "fix:"]:
            self.assertIn(word, message)

    def test_a_prompt_longer_than_the_context_is_an_error_with_both_numbers(self):
        place = RunFolder()
        self.addCleanup(place.close)
        place.train("run", "--train-iters", 1)
        message = run("generate", "--load", place.path / "run", "--prompt", "z" * 100, code=2)
        self.assertIn("100", message)
        self.assertIn("32", message)


PP2 = ["--num-layers", 4, "--micro-batch-size", 2, "--world-size", 2, "--pp", 2]  # 4 microbatches a step
TP2 = ["--world-size", 2, "--tp", 2]


class WithoutLibtorch(unittest.TestCase):
    """Help, and what is wrong with words, recipe and the network of a Hugging Face folder, is said by the program
    without libtorch, as the one with it does. What lies in weights and in folders of other runs is left to that."""
    NEEDS = "megatron needs megatron-torch"
    # By job, words that are wrong. {recipe}: one that is right, {task}: without what is of text; {folder}: one that is
    # there; {hf}: a GPT that was exported; {odd}: the same with a field that nobody knows.
    WRONG = {
        "train": """--help
            --help modle

            {recipe}
            {recipe} --mock-data --vocab-size 64 --parallel.tpp 2 --tp 3
            {recipe} --mock-data --vocab-size 64 --hidden-size 65 --schedule no/such.txt
            {recipe} --data.tokenizer nowhere --data-path none --tp 3
            {recipe} --load {hf} --finetune --tokenizer {hf} --data-path none --hidden-size 65
            none.toml --tp two""",
        "pretrain_gpt": """--num-layers two
            --num-layers 2 --hidden-size 64 --num-attention-heads 3 --seq-length 64 --max-position-embeddings 64
            --num-layers 2 --no-such-flag""",
        "finetune": """--help all
            {recipe} --seeds 1,1
            {recipe} --task mnli --train-data a --valid-data b --load nowhere --epochs -1
            {task} --task mnli --train-data a --valid-data b --load nowhere
            {task} --task mnli --train-data a --valid-data b --tokenizer nowhere --tp 3
            {task} --task mnli --train-data a --valid-data b --load {hf} --tp 3
            {task} --task mnli --train-data a --valid-data b --load {hf} --tp 3 --tokenizer nowhere
            {task} --task squad1 --train-data a --valid-data b --load {hf}
            {task} --task mnli --train-data a --valid-data b --load {odd}""",
        "eval loss": """--help
            --load a
            --load a --data b
            --load a --data b --window -1
            --load {odd} --data b
            --load {hf} --data b --tp 3
            --load {hf} --data b --tp 3 --tokenizer nowhere
            --load {hf} --data b --pp 3 --dtype fp64 --threads-per-rank -1""",
        "eval wikitext": "--load {hf} --data b --tp 3",
        "eval lambada": "--load a --data b --format json\n --load {hf} --data b --world-size 3 --tp 2",
        "eval choice": "--data b\n --load {hf} --data b --tp 3",
        "eval squad": "--load a --data b --n-best -1",
        "eval mnli": """--load a --data b --doc-stride 5
            --load a --data b --tp 0
            --load a --data b --output {folder}
            --load {hf} --data b --seq-length 10000
            --load {hf} --data b --weights q8_0
            --load {hf} --data b --tp 3""",
        "generate": """--help all
            --promt a
            --load a
            --prompt a
            --load a --prompt a
            --load {run} --prompt a --num-beams 2
            --load {run} --prompt a --logprobs 5
            --load {hf} --prompt a --early-stopping full
            --load {hf} --prompt a --system b
            --load {hf} --prompt a --num-speculative-tokens 2
            --load {odd} --prompt a
            --load {hf} --prompt a --tp 3
            --load {hf} --prompt a --tp 2 --world-size 3
            --load {hf} --prompt a --tp 3 --tokenizer nowhere
            --load {hf} --prompt a --weights q8_0 --device cuda
            --load a --prompt a --temperature -2 --top-k -1""",
        "chat": "a\n a --top-p 2\n a --max-new-tokens 0\n a b\n {hf} --tp 3\n {odd}",
        "serve": """
            a
            a --port 70000
            a --cache-memory 2XB
            a --host 0.0.0.0
            a --pp 0
            {hf} --tp 3
            {odd}""",
        "checkpoint info": "--help\n a b",
        "checkpoint verify": "--jsn a",
        "checkpoint reshard": "a b --files 0\n a b --dtype fp8",
        "checkpoint diff": "a b --tolerance -1",
        "checkpoint prune": "a --keep-last 0",
        "checkpoint import": "--help\n --from a --output b --dtype fp64",
        "checkpoint export": """--help
            --load a --output b.gguf --dtype fp8
            --load a --output b --padded-vocab-size 5""",
        "bench step": "--model {recipe} --seq-length 16 --micro-batch-size 0",
        "bench pipeline": "{recipe} --vocab-size 320 --steps 0\n {recipe} --schedules zzz",
        "bench scaling": "--measured --width 17",
        "bench checkpoint": "--streams 0\n --recipe {recipe} --vocab-size 5",
        "bench generate": "--load a --repeats 0\n --json\n --load {hf} --tp 3",
        "bench comm": "--sizes 3",
        "bench hardware": "--ranks 99",
    }
    # Words of which nothing is known to be wrong here.
    LEFT = ["train {recipe} --mock-data --vocab-size 64", "train {recipe} --load nowhere --hidden-size 65",
            "train {recipe} --mock-data --vocab-size 64 --use-checkpoint-args --hidden-size 65",
            "finetune {task} --task mnli --train-data a --valid-data b --load {hf}",
            "eval loss --load {folder} --data b", "generate --load {folder} --prompt b",
            "generate --load {run} --prompt b", "chat {folder}", "serve {folder}", "eval loss --load {hf} --data b",
            "generate --load {hf} --prompt b --tp 2", "chat {hf}", "serve {hf} --pp 2",
            "generate --load {run} --prompt b --tp 3",
            "train {recipe} --load {hf} --hidden-size 65", "checkpoint info a",
            "checkpoint export --load a --output b", "bench comm"]

    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.folder = cls.place.path / "alone"
        cls.folder.mkdir()
        cls.alone = shutil.copy(MEGATRON, cls.folder)
        cls.recipe = cls.place.path / "small.toml"
        cls.recipe.write_text(SMALL_MODEL)
        cls.task = cls.place.path / "task.toml"
        cls.task.write_text(SMALL_MODEL.replace('split = "9,1,0"\n', ""))
        cls.place.train("run", "--train-iters", 1)
        run("checkpoint", "export", "--load", cls.place.path / "run", "--output", cls.place.path / "hf")
        odd = cls.place.path / "odd"
        odd.mkdir()
        fields = json.loads((cls.place.path / "hf/config.json").read_text())
        (odd / "config.json").write_text(json.dumps(fields | {"attention_of_tomorrow": 2}))

    def said(self, program, words):
        names = {"recipe": self.recipe, "task": self.task, "folder": self.place.path,
                 "run": self.place.path / "run", "hf": self.place.path / "hf", "odd": self.place.path / "odd"}
        result = subprocess.run([program, *words.format(**names).split()], capture_output=True, text=True,
                                cwd=self.folder)
        return result.returncode, result.stdout, result.stderr

    def test_both_programs_say_the_same(self):
        with_libtorch = os.path.abspath(MEGATRON) + "-torch"
        lines = [f"{job} {words.strip()}" for job, wrong in self.WRONG.items() for words in wrong.split("\n")]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            expected = list(pool.map(lambda words: self.said(with_libtorch, words), lines))
        for words, answer in zip(lines, expected):
            with self.subTest(words=words):
                self.assertIn(answer[0], (0, 2))
                self.assertNotIn(self.NEEDS, answer[2])
                self.assertEqual(self.said(self.alone, words), answer)

    def test_what_a_model_or_another_run_decides_is_left_to_the_program_with_libtorch(self):
        for words in self.LEFT:
            with self.subTest(words=words):
                code, _, message = self.said(self.alone, words)
                self.assertEqual(code, 1)
                self.assertIn(self.NEEDS, message)


class WrongPipelines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)

    def files(self):
        return sorted(self.place.path.rglob("*"))

    def schedule_file(self, content):
        path = self.place.path / "schedule.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def planned_program(self):
        path = self.place.path / "planned.txt"
        run("plan", self.place.recipe, *PP2, "--vocab-size", 320, "--draw", path)
        return path.read_text()

    def assert_refused(self, options, *words, launches=("threads", "processes")):
        """One error that has the words, exit code 2, however ranks would be started; no file made or gone."""
        before = self.files()
        for launch in launches:
            message = self.place.train("run", *options, "--launch", launch, code=2)
            for word in words:
                self.assertIn(word, message)
            self.assertEqual(message.count("  got:"), 1, message)
            self.assertEqual(self.files(), before, message)

    def test_a_schedule_of_another_number_of_microbatches_is_refused(self):
        path = self.schedule_file(self.planned_program())
        self.assert_refused([*PP2, "--schedule", path, "--global-batch-size", 12], str(path), "4 in the file", "6 in")

    def test_a_schedule_that_would_hang_is_refused_with_who_waits_for_whom(self):
        program = self.planned_program()
        hanging = program.replace("wRG0.0 ", "", 1).replace("RG0.0 ", "", 1)
        hanging = hanging.replace("rank 0: ", "rank 0: RG0.0 wRG0.0 ")
        self.assertNotEqual(hanging, program)
        self.assert_refused([*PP2, "--schedule", self.schedule_file(hanging)], "rank 0 op #1 wRG0.0 waits for SG1.0",
                            "rank 1 op #2 wRA1.0 waits for SA0.0")

    def test_a_schedule_that_leaves_out_a_backward_pass_is_refused(self):
        program = self.planned_program()
        lying = program.replace("B0.2 ", "", 1)
        self.assertNotEqual(lying, program)
        self.assert_refused([*PP2, "--schedule", self.schedule_file(lying)], "rank 0 op")

    def test_a_schedule_file_of_garbage_is_refused_at_its_line(self):
        for content in [bytes(range(256)) * 16, b"", b"stages 0 1\nmicrobatches 99999999999999999999\n",
                        b"stages 0 1\nmicrobatches 4\nrank 0: F0.0 F-1.0\n", b"stages 0 4000000000\nmicrobatches 4\n"]:
            path = self.schedule_file(content)
            self.assert_refused([*PP2, "--schedule", path], str(path), launches=["threads"])
        self.assert_refused([*PP2, "--schedule", self.place.path / "missing.txt"], "missing.txt")

    def test_layouts_that_do_not_fit_the_model_are_refused(self):
        self.assert_refused(["--num-layers", 4, "--world-size", 3, "--pp", 3], "num_layers", "4 layers, 3 stages")
        self.assert_refused(["--num-layers", 4, "--vpp", 2], "parallel.pp", "pp 1")
        self.assert_refused([*TP2, "--sp", "--seq-length", 31], "seq_length", "31 tokens, tp 2")

    def test_a_timeline_that_could_not_be_read_again_is_refused(self):
        self.assert_refused([*PP2, "--log.trace", self.place.path / "trace.txt"], "log.trace", ".json")


if __name__ == "__main__":
    unittest.main()
