"""`megatron plan` draws the schedule of a recipe, and the program it writes as text is the one it reads."""
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import run  # noqa: E402

RECIPE = """
[model]
num_layers = 8
hidden_size = 64
num_attention_heads = 4
vocab_size = 500
[parallel]
world_size = 4
pp = 4
[train]
global_batch_size = 8
"""
FIRST_ROW = "rank 0 |0123......aa4bb5cc6dd7ee.ff.gg.hh|"


class PlanDrawing(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-plan-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.recipe = self.path / "recipe.toml"
        self.recipe.write_text(RECIPE)

    def test_the_picture_is_xml_and_what_is_printed_has_no_colours(self):
        printed = run("plan", self.recipe, "--draw", self.path / "schedule.svg")
        self.assertIn(FIRST_ROW, printed)
        self.assertNotIn("\x1b", printed)
        root = xml.etree.ElementTree.parse(self.path / "schedule.svg").getroot()
        tips = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
        for op in ["F0.0", "F3.7", "B0.7"]:
            self.assertEqual(len([tip for tip in tips if tip.startswith(op + " ")]), 1, op)

    def test_traffic_is_drawn_on_nodes_of_the_hardware(self):
        picture = self.path / "traffic.svg"
        printed = run("plan", self.recipe, "--traffic", picture, "--tp", 2, "--pp", 2)
        self.assertEqual(printed, run("plan", self.recipe, "--tp", 2, "--pp", 2))
        root = xml.etree.ElementTree.parse(picture).getroot()
        tips = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
        # 8 samples of 128 tokens, 64 numbers of 4 bytes each, of which each of two ranks sends a half.
        self.assertIn("rank 0 to rank 2: pipeline 131 kB", tips)
        self.assertTrue(any(tip.startswith("rank 0 to rank 1: tensor ") for tip in tips), tips)
        self.assertFalse(any(tip.startswith("rank 0 to rank 3") for tip in tips), tips)
        self.assertIn(".svg", run("plan", self.recipe, "--traffic", self.path / "traffic.png", code=2))
        self.assertIn("--traffic", run("plan", self.recipe, "--hardware", "b200", code=2))

    def test_a_program_written_as_text_is_planned_again_as_the_same(self):
        text, again = self.path / "schedule.txt", self.path / "again.txt"
        run("plan", self.recipe, "--schedule", "zb-h1", "--draw", text)
        all_of = json.loads(run("plan", self.recipe, "--schedule", text, "--draw", again, "--json"))
        self.assertEqual(all_of["schedule"]["makespan"], 27)
        self.assertEqual(all_of["schedule"]["peak_activations"], [4, 4, 4, 4])
        self.assertEqual(again.read_text(), text.read_text())

    def test_memory_is_of_the_device_and_processor_that_are_stated(self):
        def packed(*options):
            plan = json.loads(run("plan", self.recipe, "--bf16", *options, "--json"))
            return sum(plan["memory_bytes"]["packed_weights"])
        self.assertGreater(packed("--processor", "amx"), 0)
        self.assertEqual(packed("--processor", "amx"), packed("--processor", "avx512_bf16"))
        self.assertEqual(packed("--processor", "avx2"), 0)
        self.assertEqual(packed("--device", "cuda", "--launch", "processes"), 0)
        self.assertEqual(packed(), packed("--processor", "amx"))  # not what this machine has
        self.assertIn("--processor", run("plan", self.recipe, "--processor", "z80", code=2))

    def test_files_that_cannot_be_drawn_or_read_are_refused_and_nothing_is_written(self):
        self.assertIn(".svg", run("plan", self.recipe, "--draw", self.path / "schedule.png", code=2))
        picture = self.path / "schedule.svg"
        self.assertIn("recipe.toml", run("plan", self.recipe, "--trace", self.recipe, "--draw", picture, code=2))
        self.assertFalse(picture.exists())


if __name__ == "__main__":
    unittest.main()
