"""torchrun starts Megatron-LM's script names: the shims run the program on every rank, as a launch script would."""
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/testing"))
from program import MEGATRON, RunFolder, run  # noqa: E402

WORDS = """--tensor-model-parallel-size 2 --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32
--max-position-embeddings 32 --micro-batch-size 4 --global-batch-size 8 --train-iters 5 --lr 5e-3 --seed 7
--distributed-backend nccl --transformer-impl local --tokenizer-type HuggingFaceTokenizer --split 9,1,0""".split()


class Shims(unittest.TestCase):
    def test_torchrun_trains_by_the_script_of_a_launch_script(self):
        place = RunFolder()
        self.addCleanup(place.close)
        data = ["--data-path", place.path / "tokens_text_document", "--tokenizer-model", place.tokenizer]
        words = [*WORDS, *data, "--save", place.path / "torchrun", "--save-interval", 5]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--rdzv-backend", "c10d",
                    "--rdzv-endpoint", "127.0.0.1:0", ROOT / "shims/pretrain_gpt.py"]
        done = subprocess.run(list(map(str, [*launcher, *words])), capture_output=True, text=True, timeout=300,
                              env={**os.environ, "MEGATRON": os.path.abspath(MEGATRON), "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("pretrain_gpt: ignored, as they change no result: --transformer-impl local", done.stderr)
        run("pretrain_gpt", *WORDS, *data, "--save", place.path / "threads", "--save-interval", 5,
            "--parallel.world_size", 2)
        self.assertEqual(len(place.losses("torchrun")), 5)
        self.assertEqual(place.losses("torchrun"), place.losses("threads"))


if __name__ == "__main__":
    unittest.main()
