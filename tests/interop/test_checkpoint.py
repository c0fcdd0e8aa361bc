"""The Python package safetensors reads what the program saves. Needs safetensors and numpy."""
import json
import pathlib
import sys
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import RunFolder, run  # noqa: E402

numpy, safetensors, MISSING = peers("numpy", "safetensors.numpy")


class Checkpoint(unittest.TestCase):
    @unittest.skipIf(MISSING, MISSING)
    def test_safetensors_reads_every_tensor_under_its_name(self):
        place = RunFolder()
        self.addCleanup(place.close)
        place.train("run", "--train-iters", 3)
        info = json.loads(run("checkpoint", "info", place.path / "run", "--json"))
        tensors = {}
        for file in pathlib.Path(info["folder"]).glob("*.safetensors"):
            tensors.update(safetensors.load_file(file))
        self.assertEqual({name: list(tensor.shape) for name, tensor in tensors.items()},
                         {tensor["name"]: tensor["shape"] for tensor in info["tensors"]})
        weight = tensors["decoder.layers.0.mlp.linear_fc1.weight"]
        self.assertTrue(numpy.isfinite(weight).all())
        self.assertAlmostEqual(float(weight.std()), 0.02, delta=0.01)

    @unittest.skipIf(MISSING, MISSING)
    def test_the_slices_of_two_ranks_make_up_the_tensors_of_one(self):
        place = RunFolder()
        self.addCleanup(place.close)
        options = ["--train-iters", 1, "--lr", 0]  # the first weights, which are equal in every layout
        place.train("one", *options)
        place.train("two", *options, "--world-size", 2, "--tp", 2)
        whole, parts = {}, {}
        for name, into in (("one", whole), ("two", parts)):
            for file in (place.path / name).rglob("*.safetensors"):
                into.update(safetensors.load_file(file))
        name = "decoder.layers.1.mlp.linear_fc2.weight"
        joined = numpy.concatenate([parts[f"{name}@0,0"], parts[f"{name}@0,128"]], axis=1)
        numpy.testing.assert_array_equal(joined, whole[name])


if __name__ == "__main__":
    unittest.main()
