"""Runs go from Megatron-Core to this program and back by its checkpoints. Needs torch, megatron-core, psutil."""
import json
import os
import pathlib
import sys
import tempfile
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import run  # noqa: E402

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch is imported: else the package has its functions compiled
torch, _, _, MISSING = peers("torch", "megatron.core", "psutil")
if not MISSING:
    import megatron_core_peer as peer


def train(folder, name, prefix, options, steps):
    """A run of Megatron-Core that saves after `steps` and again after two more; the losses of these two."""
    work = peer.Run(name, prefix, **options)
    for _ in range(steps):
        work.step()
    work.save(folder)
    return [work.step(), work.step()]


def go_on(folder, name, prefix, options, steps):
    """The losses of a run of Megatron-Core that begins with a checkpoint."""
    work = peer.Run(name, prefix, **options)
    loaded = work.load(folder)
    assert loaded["args"].consumed_train_samples == work.iteration * peer.BATCH
    return work.iteration, [work.step() for _ in range(steps)]


@unittest.skipIf(MISSING, MISSING)
class MegatronCore(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-core-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.tokens = self.path / "tokens"
        peer.write_tokens(self.tokens)

    def train_here(self, imported, name, *options):
        """Goes on with the imported run to its end; the losses by iteration."""
        run("train", self.path / imported / "recipe.toml", "--load", self.path / imported, "--train.out",
            self.path / name, "--tokenizer-type", "NullTokenizer", "--tokenizer", 90, "--save-interval", 2, *options)
        lines = (self.path / name / "metrics.jsonl").read_text().splitlines()
        return {entry["iteration"]: entry["loss"] for entry in map(json.loads, lines) if "loss" in entry}

    def there_and_back(self, name, options, world=1, back=(), here=()):
        theirs = self.path / f"{name}-theirs"
        expected = peer.run(world, train, theirs, name, self.tokens, options, 3)[0]
        imported = f"{name}-imported"
        printed = run("checkpoint", "import", "--from", theirs, "--output", self.path / imported)
        self.assertIn("at iteration 3", printed)
        losses = self.train_here(imported, f"{name}-ours", *here)
        self.assertEqual((min(losses), max(losses)), (4, peer.STEPS))
        for got, wanted in zip((losses[4], losses[5]), expected):
            self.assertLess(abs(got - wanted), 1e-6 * wanted, (name, losses, expected))
        run("checkpoint", "export", "--load", self.path / f"{name}-ours/checkpoints/iter_0000018", "--output",
            self.path / f"{name}-back", "--format", "torch_dist")
        for others in back:
            iteration, got = peer.run(1, go_on, self.path / f"{name}-back", name, self.tokens, others, 2)[0]
            self.assertEqual(iteration, 18)
            for loss, step in zip(got, (19, 20)):
                self.assertLess(abs(loss - losses[step]), 1e-6 * loss, (name, others, got, losses))

    def test_a_run_with_gpt2s_layers_goes_on_here_and_there(self):
        self.there_and_back("gpt2", {}, back=({}, {"sharding": "fully_reshardable"}))

    def test_a_run_with_llamas_layers_and_two_ranks_goes_on_here_and_there(self):
        self.there_and_back("llama", {"tp": 2, "sharding": "fully_reshardable"}, world=2,
                            here=("--world-size", 2, "--pp", 2), back=({"sharding": "fully_reshardable"},))

    def test_state_that_is_stored_by_buffer_is_found_in_it(self):
        """Megatron-LM's default with the distributed optimizer."""
        self.there_and_back("llama", {"tp": 2, "sharding": "dp_reshardable"}, world=2)

    def test_every_bit_comes_back(self):
        for name, options in (("bert", {}), ("gpt2", {"sharding": "fully_reshardable", "dtype": torch.bfloat16})):
            theirs, ours, back = (self.path / f"{name}-{part}" for part in ("theirs", "ours", "back"))
            peer.run(1, train, theirs, name, self.tokens, options, 2)
            run("checkpoint", "import", "--from", theirs, "--output", ours)
            run("checkpoint", "export", "--load", ours, "--output", back, "--format", "torch_dist")
            first, second = (peer.run(1, peer.plain_tensors, folder)[0] for folder in (theirs, back))
            self.assertGreater(len(first), 40)
            for key, tensor in first.items():
                self.assertEqual(tensor.dtype, second[key].dtype, key)
                self.assertTrue(torch.equal(tensor, second[key]), key)
            self.assertEqual(peer.run(1, go_on, back, name, self.tokens, options, 0)[0][0], 2)


if __name__ == "__main__":
    unittest.main()
