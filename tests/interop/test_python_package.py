"""The functions of python/megatron_cpp on the program that was built: texts of any Unicode, and Hugging Face folders as
their index says."""
import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from peers import peers  # noqa: E402
from program import MEGATRON, RunFolder  # noqa: E402

torch, numpy, safetensors, MISSING = peers("torch", "numpy", "safetensors.torch")

os.environ.setdefault("MEGATRON", os.path.abspath(MEGATRON))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))


@unittest.skipIf(MISSING, MISSING)
class PythonPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import megatron_cpp
        cls.package = megatron_cpp

    def test_texts_come_back_whatever_ends_lines_in_them(self):
        place = RunFolder()
        self.addCleanup(place.close)
        texts = ["a\u2028b", "a\x85b\r\n", "", "the cat\n", "\x0b\x0c\x1c\u2029"]
        ids = self.package.tokenize(place.tokenizer, texts)
        self.assertEqual(self.package.detokenize(place.tokenizer, ids), texts)
        for text, of_text in zip(texts, ids):
            self.assertEqual(self.package.detokenize(place.tokenizer, of_text), text)
        self.assertEqual(self.package.detokenize(place.tokenizer, numpy.array(ids[3])), texts[3])
        self.assertEqual(self.package.detokenize(place.tokenizer, torch.tensor([ids[3], ids[3]])), [texts[3]] * 2)
        self.assertEqual(self.package.detokenize(place.tokenizer, []), "")

    def folder(self, files, index=None):
        """A folder of such safetensors files, and an index of tensors by file."""
        holder = tempfile.TemporaryDirectory(prefix="megatron-weights-")
        self.addCleanup(holder.cleanup)
        folder = pathlib.Path(holder.name)
        for name, tensors in files.items():
            safetensors.save_file(tensors, folder / name)
        if index is not None:
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        return folder

    def load(self, folder):
        return {name: tensor.tolist() for name, tensor in self.package.load_weights(folder).items()}

    def refused(self, folder):
        with self.assertRaises(self.package.MegatronError) as raised:
            self.package.load_weights(folder)
        return str(raised.exception)

    def test_weights_are_those_of_the_index(self):
        one, two, other = torch.ones(1), torch.full((1,), 2.0), torch.zeros(3)
        shards = {"model-1.safetensors": {"a": one, "b": other}, "model-2.safetensors": {"b": two},
                  "consolidated.safetensors": {"c": other}}
        index = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
        folder = self.folder(shards, index)
        self.assertEqual(self.load(folder), {"a": [1], "b": [2]})
        (folder / "model-2.safetensors").unlink()
        self.assertIn("no model-2.safetensors", self.refused(folder))
        self.assertIn("must hold d", self.refused(self.folder(shards, index | {"d": "model-1.safetensors"})))
        self.assertIn("no index", self.refused(self.folder(shards, {"a": "../model-1.safetensors"})))
        single = self.folder({"model.safetensors": {"a": two}, "consolidated.safetensors": {"c": other}})
        self.assertEqual(self.load(single), {"a": [2]})
        self.assertEqual(self.load(self.folder({"x.safetensors": {"a": one}, "y.safetensors": {"b": two}})),
                         {"a": [1], "b": [2]})

    def test_types_that_are_not_read_are_named(self):
        said = self.refused(self.folder({"model.safetensors": {"a": torch.ones(2).to(torch.float8_e4m3fn)}}))
        self.assertIn("a of 'F8_E4M3'", said)
        self.assertNotIn("whole", said)


if __name__ == "__main__":
    unittest.main()
