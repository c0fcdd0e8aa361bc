"""Runs go from Megatron-Core to this program and back by its checkpoints. Needs torch, megatron-core, psutil."""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import tomllib
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import MEGATRON, run  # noqa: E402

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch is imported: else the package has its functions compiled
torch, _, _, MISSING = peers("torch", "megatron.core", "psutil")
if not MISSING:
    import megatron_core_peer as peer


def train(folder, name, prefix, options, steps):
    """A run of Megatron-Core that saves after `steps`; the losses of the two steps after them, and what its routers
    chose there."""
    work = peer.Run(name, prefix, **options)
    for _ in range(steps):
        work.step()
    work.save(folder)
    return [work.step(), work.step()], work.loads[-2:]


def train_in_both_formats(folder, name, prefix, options, steps):
    work = peer.Run(name, prefix, **options)
    for _ in range(steps):
        work.step()
    work.save(folder / "torch_dist")
    work.save_torch(folder / "torch")
    return [work.step(), work.step()]


def draw_in_all_formats(folder, name, prefix, options, steps):
    work = peer.Run(name, prefix, sharding="fully_reshardable", **options)
    for _ in range(steps):
        work.drawn_step()
    for work.sharding in "fully_reshardable", "dp_reshardable":
        work.save(folder / work.sharding)
    if "ep" not in options:  # whose files of ranks are not read
        work.save_torch(folder / "torch")


def go_on(folder, name, prefix, options, steps):
    """A run of Megatron-Core that begins with a checkpoint: its iteration then, losses, what its routers chose."""
    work = peer.Run(name, prefix, **options)
    loaded = work.load(folder)
    if not work.ramp:
        assert work.consumed == work.iteration * peer.BATCH
    return work.iteration, [work.step() for _ in range(steps)], work.loads


# Of a launch script: the networks and the schedule of the peer's runs.
SIZES = shlex.split("--num-layers 2 --hidden-size 16 --num-attention-heads 4 --ffn-hidden-size 24 "
                    "--max-position-embeddings 16 --hidden-dropout 0 --attention-dropout 0")
SCHEDULE = shlex.split(
    "--micro-batch-size 2 --global-batch-size 4 --seed 7 --lr 3e-3 --min-lr 3e-4 --lr-decay-style cosine "
    "--lr-warmup-iters 2 --lr-decay-iters 20 --weight-decay 0.1 --adam-beta2 0.95 --split 9,1,0 --train-iters 20 "
    "--make-vocab-size-divisible-by 8 --transformer-impl local --eval-interval 100 --eval-iters 0 --save-interval 100")
LAUNCHED = {"gpt2": shlex.split("pretrain_gpt --seq-length 16 --tokenizer-type NullTokenizer --vocab-size 90"),
            "t5": shlex.split("pretrain_t5 --encoder-seq-length 16 --decoder-seq-length 12 --no-bias-gelu-fusion "
                              "--tokenizer-type BertWordPieceCase")}


def printed(*words):
    """What a job says while it works."""
    result = subprocess.run([MEGATRON, *map(str, words)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout + result.stderr


@unittest.skipIf(MISSING, MISSING)
class MegatronCore(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-core-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.tokens, self.sentences = self.path / "tokens", self.path / "sentences"
        peer.write_tokens(self.tokens)
        peer.write_sentences(self.sentences)
        self.words = self.path / "words.txt"
        self.words.write_text("\n".join(peer.WORDS) + "\n")

    def tokenizer(self, name):
        return ["--tokenizer", self.words] if name == "t5" else ["--tokenizer-type", "NullTokenizer", "--tokenizer", 90]

    def train_here(self, imported, name, *options):
        """Goes on with the imported run to its end; the losses by iteration."""
        run("train", self.path / imported / "recipe.toml", "--load", self.path / imported, "--train.out",
            self.path / name, *self.tokenizer(name.split("-")[0]), "--save-interval", 18, *options)
        return self.losses(self.path / name)

    def losses(self, folder, field="loss"):
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return {entry["iteration"]: entry[field] for entry in map(json.loads, lines) if field in entry}

    def there_and_back(self, name, options, world=1, back=(), here=()):
        theirs, tokens = self.path / f"{name}-theirs", self.sentences if name == "t5" else self.tokens
        expected, chosen = peer.run(world, train, theirs, name, tokens, options, 3)[0]
        routed = ["--moe-per-layer-logging"] if chosen[0] else []
        imported = f"{name}-imported"
        printed = run("checkpoint", "import", "--from", theirs, "--output", self.path / imported)
        self.assertIn("at iteration 3", printed)
        losses = self.train_here(imported, f"{name}-ours", *here, *routed)
        self.assertEqual((min(losses), max(losses)), (4, peer.STEPS))
        for got, wanted in zip((losses[4], losses[5]), expected):
            self.assertLess(abs(got - wanted), 1e-6 * wanted, (name, losses, expected))
        loads = self.losses(self.path / f"{name}-ours", "expert_loads")
        if chosen[0]:
            self.assertEqual([loads[4], loads[5]], chosen)
        run("checkpoint", "export", "--load", self.path / f"{name}-ours/checkpoints/iter_0000018", "--output",
            self.path / f"{name}-back", "--format", "torch_dist")
        for others in back:
            ranks = others.get("ep", 1)
            iteration, got, chosen = peer.run(ranks, go_on, self.path / f"{name}-back", name, tokens, others, 2)[0]
            self.assertEqual(iteration, 18)
            for loss, load, step in zip(got, chosen, (19, 20)):
                self.assertLess(abs(loss - losses[step]), 1e-6 * loss, (name, others, got, losses))
                self.assertEqual(load, loads.get(step, []))

    def test_a_run_with_gpt2s_layers_resumes_here_and_there(self):
        self.there_and_back("gpt2", {}, back=({}, {"sharding": "fully_reshardable"}))

    def test_a_run_with_llamas_layers_and_two_ranks_resumes_here_and_there(self):
        self.there_and_back("llama", {"tp": 2, "sharding": "fully_reshardable"}, world=2,
                            here=("--world-size", 2, "--pp", 2), back=({"sharding": "fully_reshardable"},))

    def test_queries_and_keys_without_weights_of_their_norms_resume_here_and_there(self):
        """Of positions that are interpolated."""
        self.there_and_back("normed", {}, here=("--world-size", 2, "--tp", 2), back=({},))

    def test_gated_attention_resumes_here_and_there(self):
        """On two ranks of each, with the fused matrix of queries, gates, keys and values."""
        self.there_and_back("gated", {"tp": 2, "sharding": "fully_reshardable"}, world=2,
                            here=("--world-size", 2, "--tp", 2), back=({"sharding": "fully_reshardable"},))

    def test_positions_that_yarn_stretches_resume_here_and_there(self):
        self.there_and_back("yarn", {}, here=("--world-size", 2, "--pp", 2), back=({},))

    def test_a_run_that_predicts_tokens_ahead_resumes_here_and_there(self):
        """Its second loss here is of weights that the depths' gradients have moved."""
        self.there_and_back("mtp", {}, here=("--world-size", 2, "--pp", 2),
                            back=({}, {"sharding": "fully_reshardable"}))
        peer.run(1, train_in_both_formats, self.path / "mtp", "mtp", self.tokens, {}, 1)
        words = ["--from", self.path / "mtp/torch", "--output", self.path / "never"]
        message = run("checkpoint", "import", *words, code=2)
        self.assertIn("without multi-token prediction", message)

    def test_experts_of_several_ranks_resume_here_and_there(self):
        """Of expert parallelism there are two optimizers, each with buffers. A token takes experts of one rank."""
        self.there_and_back("moe", {"ep": 2, "sharding": "dp_reshardable"}, world=2,
                            here=("--world-size", 2, "--ep", 2),
                            back=({"ep": 2}, {"ep": 2, "sharding": "fully_reshardable"}))

    def test_deepseeks_layers_resume_here_and_there(self):
        """State by buffer; latents, a first layer without experts, biases that even out the load, groups."""
        self.there_and_back("deepseek", {"sharding": "dp_reshardable"}, here=("--world-size", 2, "--tp", 2), back=({},))

    def test_experts_and_latents_are_the_same_in_all_forms(self):
        """Split over ranks of tensor parallelism, with masters. By buffer, what makes latents is split otherwise."""
        work, options = self.path / "deepseek", {"tp": 2, "dtype": torch.bfloat16}
        peer.run(2, draw_in_all_formats, work, "deepseek", self.tokens, options, 2)
        self.expect_same_runs("deepseek", [work / form for form in ("fully_reshardable", "torch")], 40)
        words = ["--from", work / "dp_reshardable", "--output", self.path / "never"]
        self.assertIn("transformer_impl must not be local", run("checkpoint", "import", *words, code=2))

    def test_a_t5_goes_on_here_and_there(self):
        self.there_and_back("t5", {}, here=("--world-size", 2, "--tp", 2),
                            back=({}, {"sharding": "fully_reshardable"}))

    def test_state_that_is_stored_by_buffer_is_found_in_it(self):
        """Megatron-LM's default with the distributed optimizer."""
        for name in "llama", "t5":
            self.there_and_back(name, {"tp": 2, "sharding": "dp_reshardable"}, world=2)

    def expect_same_runs(self, name, folders, least):
        """What was saved at the same moment, at iteration 2, in several ways is the same here."""
        tensors, recipes = [], []
        for theirs in folders:
            ours, back = (theirs.parent / f"{theirs.name}-{part}" for part in ("ours", "back"))
            self.assertIn("at iteration 2", run("checkpoint", "import", "--from", theirs, "--output", ours))
            run("checkpoint", "export", "--load", ours, "--output", back, "--format", "torch_dist")
            tensors.append(peer.run(1, peer.plain_tensors, back)[0])
            recipes.append((ours / "recipe.toml").read_text())
        self.assertGreater(len(tensors[0]), least)
        for others, recipe in zip(tensors[1:], recipes[1:]):
            self.assertEqual(recipe, recipes[0])
            self.assertEqual(others.keys(), tensors[0].keys())
            for key, tensor in tensors[0].items():
                self.assertTrue(torch.equal(tensor, others[key]), (name, key))

    def test_stages_of_a_pipeline_hold_the_same_run(self):
        """By parameter, by buffer and in files of ranks; with a tied matrix, and with several stages per rank."""
        for name, world, options in (("gpt2", 2, {"pp": 2}), ("llama", 4, {"tp": 2, "pp": 2, "vpp": 2}),
                                     ("llama", 2, {"pp": 2, "first": 1}),
                                     ("llama", 2, {"pp": 2, "vpp": 2, "layout": "Et|t|t|tL"}),
                                     ("llama", 2, {"pp": 2, "vpp": 2, "layout": "Et||tt|tL"})):
            work = self.path / "-".join([name, *map(str, options.values())]).replace("|", ".")
            peer.run(world, draw_in_all_formats, work, name, self.tokens, options, 2)
            self.expect_same_runs(name, [work / form for form in ("fully_reshardable", "dp_reshardable", "torch")], 40)

    def test_buffers_of_experts_hold_the_same_run(self):
        """A second optimizer's, over a pipeline; each expert is whole on its rank, all else split."""
        work, options = self.path / "experts", {"tp": 2, "pp": 2, "ep": 2, "etp": 1}
        peer.run(4, draw_in_all_formats, work, "odd_experts", self.tokens, options, 2)
        self.expect_same_runs("odd_experts", [work / form for form in ("fully_reshardable", "dp_reshardable")], 40)

    def test_buffers_are_the_same_with_a_decoupled_learning_rate(self):
        work = self.path / "decoupled"
        peer.run(2, draw_in_all_formats, work, "llama", self.tokens, {"tp": 2, "decoupled": 1e-2}, 2)
        self.expect_same_runs("llama", [work / form for form in ("fully_reshardable", "dp_reshardable")], 40)
        recipe = tomllib.loads((work / "dp_reshardable-ours/recipe.toml").read_text())
        self.assertEqual(recipe["schedule"]["decoupled_lr"], 1e-2)

    def test_a_batch_that_grows_goes_on_growing(self):
        """The samples of each step, and how many steps the run has, are those of the package's own calculator."""
        self.there_and_back("gpt2", {"ramp": [2, 2, 30]}, back=({"ramp": [2, 2, 30]},))
        recipe = tomllib.loads((self.path / "gpt2-imported/recipe.toml").read_text())
        self.assertEqual((recipe["train"]["train_iters"], recipe["data"]["index_samples"]), (20, 80))
        self.assertEqual(recipe["schedule"]["rampup_batch_size"], [2, 2, 30])

    def test_files_of_ranks_hold_the_same_run(self):
        """The format "torch"."""
        for name, world, options in (("gpt2", 1, {}), ("bert", 1, {"dtype": torch.bfloat16}),
                                     ("t5", 2, {"tp": 2, "sharding": "fully_reshardable"}),
                                     ("llama", 2, {"tp": 2, "sharding": "fully_reshardable", "dtype": torch.bfloat16})):
            theirs, tokens = self.path / name, self.sentences if name == "t5" else self.tokens
            peer.run(world, train_in_both_formats, theirs, name, tokens, options, 2)
            self.expect_same_runs(name, [theirs / "torch_dist", theirs / "torch"], 40)

    def test_state_in_files_of_ranks_that_is_not_the_weights_is_refused(self):
        theirs = self.path / "theirs"
        for name, options in (("plain", {"dtype": torch.bfloat16}), ("distributed", {"sharding": "dp_reshardable"})):
            peer.run(1, train_in_both_formats, theirs / name, "gpt2", self.tokens, options, 2)
        distributed = theirs / "distributed/torch/iter_0000002/mp_rank_00/distrib_optim.pt"
        plain = theirs / "plain/torch/iter_0000002/mp_rank_00/model_optim_rng.pt"
        buffer = (0, (torch.float32, torch.float32))

        def of_buffer(change):
            return lambda saved: change(saved[buffer[0]][buffer[1]])

        def longer(values):
            for key in "param", "exp_avg", "exp_avg_sq":
                values[key] = torch.cat([values[key], torch.zeros(64)])

        def without_a_group(saved):
            del saved["optimizer"]["optimizer"]["param_groups"][1]

        def with_another_lr(saved):
            saved["optimizer"]["optimizer"]["param_groups"][0]["is_decoupled_lr"] = True

        state = lambda saved: saved["optimizer"]["optimizer"]["state"]  # noqa: E731
        masters = lambda saved: saved["optimizer"]["fp32_from_fp16_params"]  # noqa: E731
        for path, change, problem in (
                (plain, lambda saved: state(saved)[3].pop("exp_avg"), '"exp_avg" of all its parameters'),
                (plain, lambda saved: state(saved)[3].update(exp_avg=torch.zeros(5)), "the shape of"),
                (plain, lambda saved: state(saved)[3].update(exp_avg=7), "tensors"),
                (plain, lambda saved: masters(saved)[0].pop(), "a master of every parameter"),
                (plain, lambda saved: masters(saved).pop(), "masters of 2 groups"),
                (plain, without_a_group, "groups of all parameters"),
                (plain, with_another_lr, "is_decoupled_lr"),
                (plain, lambda saved: saved["model"].pop("decoder.final_layernorm.bias"), "parameters, as the model"),
                (distributed, of_buffer(lambda values: values["param"].add_(1)), "masters that round to"),
                (distributed, of_buffer(longer), "buffers that end with a parameter"),
                (distributed, of_buffer(lambda values: values.pop("exp_avg")), '"exp_avg" of each buffer'),
                (distributed, of_buffer(lambda values: values.update(exp_avg=torch.zeros(8))), "as long"),
                (distributed, lambda saved: saved.update(buckets_coalesced=False), "in one tensor"),
                (distributed, lambda saved: saved.pop(0), "one buffer of each part")):
            whole = path.read_bytes()
            saved = torch.load(path, weights_only=False)
            change(saved)
            torch.save(saved, path)
            folder = path.parents[2]
            message = run("checkpoint", "import", "--from", folder, "--output", self.path / "never", code=2)
            self.assertIn(problem, message)
            if problem in ("the shape of", "masters that round to"):  # the weights are whole
                run("checkpoint", "import", "--from", folder, "--output", self.path / problem, "--weights-only")
            path.write_bytes(whole)
        self.assertFalse((self.path / "never").exists())

    def expect_losses(self, losses, expected):
        for loss, wanted in zip(losses, expected, strict=True):
            self.assertLess(abs(loss - wanted), 1e-6 * wanted, (losses, expected))

    def test_a_launch_script_resumes_where_megatron_lm_saved(self):
        """With its own arguments, from both formats, in the same folder; and again from what was saved here."""
        own = {"gpt2": LAUNCHED["gpt2"], "t5": [*LAUNCHED["t5"], "--vocab-file", self.words]}
        for name, form in (("gpt2", "torch_dist"), ("t5", "torch")):
            tokens = self.sentences if name == "t5" else self.tokens
            expected = peer.run(1, train_in_both_formats, self.path / name, name, tokens, {}, 3)[0]
            folder = self.path / name / form
            words = [*own[name], "--data-path", tokens, "--load", folder, "--save", folder, *SIZES, *SCHEDULE]
            self.assertIn(f"model.vocab_size 96, as in {folder}", printed(*words, "--exit-interval", 4))
            losses = self.losses(folder)
            run(*words, "--exit-interval", 5)
            losses.update(self.losses(folder))
            self.assertEqual(list(losses), [4, 5])
            self.expect_losses(losses.values(), expected)

    def test_a_t5_whose_vocabulary_is_not_padded_goes_on_in_padded_rows(self):
        """A run that began here: rows of padding get no share of the softmax there."""
        ours, back = self.path / "ours", self.path / "back"
        words = [*LAUNCHED["t5"], "--vocab-file", self.words, "--data-path", self.sentences, "--save", ours, "--load",
                 ours, *SIZES, *SCHEDULE]
        run(*words, "--exit-interval", 18)
        run(*words)
        losses = self.losses(ours)
        export = ["checkpoint", "export", "--load", ours / "iter_0000018", "--output", back, "--format", "torch_dist"]
        self.assertIn("from model.vocab_size, 90", run(*export, "--padded-vocab-size", 89, code=2))
        run(*export, "--padded-vocab-size", peer.PADDED)
        for options in {}, {"sharding": "fully_reshardable"}:
            iteration, got, _ = peer.run(1, go_on, back, "t5", self.sentences, options, 2)[0]
            self.assertEqual(iteration, 18)
            self.expect_losses(got, [losses[19], losses[20]])
        # Rows of padding stay what they are, here too.
        run("checkpoint", "import", "--from", back, "--output", self.path / "again")
        got = self.train_here("again", "t5-padded", "--data-path", self.sentences)
        self.expect_losses([got[19], got[20]], [losses[19], losses[20]])

    def test_options_say_what_is_taken_of_megatron_lms_run(self):
        theirs = self.path / "theirs"
        expected = peer.run(1, train_in_both_formats, theirs, "gpt2", self.tokens, {}, 3)[0]
        program = ["pretrain_gpt", "--seq-length", 16, "--tokenizer-type", "NullTokenizer", "--vocab-size", 90,
                   "--data-path", self.tokens, *SCHEDULE, "--exit-interval", 4]

        def losses(name, *options):
            printing = printed(*program, "--save", self.path / name, *options)
            return printing, self.losses(self.path / name)

        for form in "torch", "torch_dist":  # with sizes that are not the network's
            note, got = losses(form, "--load", theirs / form, "--use-checkpoint-args", "--num-layers", 3,
                               "--hidden-size", 8, "--num-attention-heads", 2, "--max-position-embeddings", 16)
            self.assertIn("model.num_layers 3 -> 2, model.hidden_size 8 -> 16", note)
            self.assertEqual(list(got), [4])
            self.expect_losses(got.values(), expected[:1])
        # The weights alone: as of the Hugging Face folder that they become.
        _, tuned = losses("tuned", "--load", theirs / "torch_dist", "--finetune", *SIZES)
        run("checkpoint", "export", "--load", theirs / "torch_dist", "--output", self.path / "hf")
        note, got = losses("hf-tuned", "--load", self.path / "hf", "--use-checkpoint-args", *SIZES[-4:])
        self.assertIn("model.num_layers 12 -> 2", note)
        self.assertEqual(list(tuned), [1, 2, 3, 4])
        self.expect_losses(got.values(), tuned.values())
        # State that cannot be read stops no run that leaves it out.
        path = theirs / "torch/iter_0000003/mp_rank_00/model_optim_rng.pt"
        saved = torch.load(path, weights_only=False)
        saved["optimizer"]["state"][3].pop("exp_avg")
        torch.save(saved, path)
        words = ["--load", theirs / "torch", *SIZES]
        self.assertIn("--no-load-optim", run(*program, "--save", self.path / "refused", *words, code=2))
        note, got = losses("fresh", *words, "--no-load-optim")
        self.assertIn("the optimizer begins with a fresh exp_avg, exp_avg_sq", note)
        self.expect_losses(got.values(), expected[:1])

    def test_every_bit_comes_back(self):
        for name, options in (("bert", {}), ("t5", {"dtype": torch.bfloat16}),
                              ("gpt2", {"sharding": "fully_reshardable", "dtype": torch.bfloat16})):
            theirs, ours, back = (self.path / f"{name}-{part}" for part in ("theirs", "ours", "back"))
            tokens = self.sentences if name == "t5" else self.tokens
            peer.run(1, train, theirs, name, tokens, options, 2)
            run("checkpoint", "import", "--from", theirs, "--output", ours)
            run("checkpoint", "export", "--load", ours, "--output", back, "--format", "torch_dist")
            first, second = (peer.run(1, peer.plain_tensors, folder)[0] for folder in (theirs, back))
            self.assertGreater(len(first), 40)
            for key, tensor in first.items():
                self.assertEqual(tensor.dtype, second[key].dtype, key)
                self.assertTrue(torch.equal(tensor, second[key]), key)
            self.assertEqual(peer.run(1, go_on, back, name, tokens, options, 0)[0][0], 2)


if __name__ == "__main__":
    unittest.main()
