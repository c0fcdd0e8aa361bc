"""From raw text to generated text, through the command line alone."""
import json
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import RunFolder, run  # noqa: E402


class FirstPath(unittest.TestCase):
    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)

    def test_learns_the_text_over_two_ranks_and_writes_like_it(self):
        self.place.train("run", "--world-size", 2, "--tp", 2, "--train-iters", 150)
        losses = self.place.losses("run")
        self.assertLess(losses[150], losses[1] - 3)
        words = ["generate", "--load", self.place.path / "run", "--prompt", "the cat", "--temperature", 0, "--json"]
        answer = json.loads(run(*words))
        verbs, objects = "sees|likes|follows|never answers", "the cat|a dog|my friend|the old man"
        self.assertRegex(answer["text"], rf"^ ({verbs}) ({objects}) on (monday|friday)\.")
        self.assertEqual(json.loads(run(*words, "--tp", 2))["new_ids"], answer["new_ids"])
        prompts = self.place.path / "prompts.txt"
        prompts.write_bytes(b"\xef\xbb\xbfthe cat\r\nthe cat\r\n")  # as an editor of Windows writes it
        of_file = [*words[:3], "--prompt-file", prompts, *words[5:]]
        texts = json.loads(run(*of_file))["texts"]
        self.assertEqual([text["prompt_ids"] for text in texts], 2 * [answer["prompt_ids"]])

    def test_info_and_verify_describe_the_checkpoint(self):
        self.place.train("run", "--train-iters", 2)
        info = json.loads(run("checkpoint", "info", self.place.path / "run", "--json"))
        self.assertEqual(info["iteration"], 2)
        self.assertEqual(info["metadata"]["consumed_samples"], "16")
        self.assertGreater(info["parameters"], 2 * 12 * 64 * 64)
        run("checkpoint", "verify", self.place.path / "run")
        file = next((self.place.path / "run/checkpoints").rglob("*.safetensors"))
        data = bytearray(file.read_bytes())
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        weight = next(header[name] for name in header if "word_embeddings" in name and "optimizer" not in name)
        data[begin + weight["data_offsets"][0]] ^= 1
        file.write_bytes(data)
        report = json.loads(run_with_code("checkpoint", "verify", self.place.path / "run", "--json", code=4))
        self.assertIn(str(file), report["problems"][0])
        self.assertIn(str(file), run("generate", "--load", self.place.path / "run", "--prompt", "the", code=2))

    def test_the_saved_recipe_runs_again_as_it_is(self):
        self.place.train("run", "--train-iters", 4)
        run("train", self.place.path / "run/recipe.toml", "--train.out", self.place.path / "again")
        self.assertEqual(self.place.losses("again"), self.place.losses("run"))


def run_with_code(*words, code):
    """Like run(), but the standard output of a job that ends with another code than 0."""
    import subprocess
    from program import MEGATRON
    result = subprocess.run([MEGATRON, *map(str, words)], capture_output=True, text=True)
    if result.returncode != code:
        raise AssertionError(f"exit code {result.returncode}, expected {code}: {result.stdout}{result.stderr}")
    return result.stdout


if __name__ == "__main__":
    unittest.main()
