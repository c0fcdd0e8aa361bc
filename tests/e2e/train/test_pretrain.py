"""Megatron-LM's argument lists train as they do there: its example scripts, shrunk, against recipes by hand."""
import json
import pathlib
import shutil
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests/testing"))
from program import MEGATRON, run, text_of_sentences  # noqa: E402

# examples/gpt3/train_gpt3_175b_distributed.sh, examples/bert/train_bert_340m_distributed.sh and
# examples/t5/train_t5_220m_distributed.sh: only sizes and paths are others.
GPT3 = """--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32
--attention-backend auto --micro-batch-size 1 --rampup-batch-size 4 4 64 --global-batch-size 12 --train-iters 20
--weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.006 --clip-grad 1.0 --fp16
--initial-loss-scale 65536 --lr 6.0e-5 --lr-decay-style cosine --min-lr 6.0e-6 --lr-warmup-fraction .001
--lr-decay-iters 430000 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
--data-path F/tokens_text_document --vocab-file F/gpt2-vocab.json --merge-file F/gpt2-merges.txt --split 949,50,1
--log-interval 100 --save-interval 10000 --eval-interval 1000 --save F/gpt3 --load F/gpt3 --eval-iters 10
--tensorboard-dir F/board"""
GPT3_RECIPE = """
[model]
num_layers = 4
hidden_size = 64
num_attention_heads = 4
max_position_embeddings = 32
init_method_std = 0.006
[parallel]
tp = 2
pp = 2
[data]
data_path = ["F/tokens_text_document"]
tokenizer = "F/gpt2-vocab.json,F/gpt2-merges.txt"
seq_length = 32
split = "949,50,1"
[optimizer]
weight_decay = 0.1
adam_beta2 = 0.95
grad_dtype = "fp16"
initial_loss_scale = 65536.0
[schedule]
lr = 6e-5
min_lr = 6e-6
lr_decay_style = "cosine"
lr_decay_samples = 5160000
lr_warmup_fraction = 0.001
rampup_batch_size = [4, 4, 64]
[train]
out = "F/gpt3_recipe"
train_iters = 20
global_batch_size = 12
dtype = "fp16"
eval_interval = 1000
"""
BERT = """--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 48 --max-position-embeddings 48
--attention-backend auto --micro-batch-size 4 --global-batch-size 16 --train-iters 20 --weight-decay 1e-2
--clip-grad 1.0 --fp16 --initial-loss-scale 65536 --lr 0.0001 --lr-decay-iters 18 --lr-decay-style linear --min-lr
1.0e-5 --weight-decay 1e-2 --lr-warmup-fraction .01 --clip-grad 1.0 --tensor-model-parallel-size 2
--pipeline-model-parallel-size 2 --data-path F/sentences_text_sentence --vocab-file F/bert-vocab.txt --split 949,50,1
--log-interval 100 --save-interval 10000 --eval-interval 1000 --save F/bert --load F/bert --eval-iters 10
--tensorboard-dir F/board"""
BERT_RECIPE = """
[model]
architecture = "bert"
num_layers = 4
hidden_size = 64
num_attention_heads = 4
[parallel]
tp = 2
pp = 2
[data]
data_path = ["F/sentences_text_sentence"]
tokenizer = "F/bert-vocab.txt"
seq_length = 48
split = "949,50,1"
[optimizer]
grad_dtype = "fp16"
initial_loss_scale = 65536.0
[schedule]
lr = 1e-4
min_lr = 1e-5
lr_decay_style = "linear"
lr_decay_samples = 288
lr_warmup_fraction = 0.01
[train]
out = "F/bert_recipe"
train_iters = 20
micro_batch_size = 4
global_batch_size = 16
dtype = "fp16"
eval_interval = 1000
"""
T5 = """--encoder-num-layers 2 --decoder-num-layers 2 --hidden-size 64 --num-attention-heads 4 --kv-channels 16
--ffn-hidden-size 256 --encoder-seq-length 48 --decoder-seq-length 20 --max-position-embeddings 48 --micro-batch-size 4
--global-batch-size 16 --lr 0.0001 --train-iters 20 --lr-decay-iters 20 --lr-decay-style linear --min-lr 0.00001
--weight-decay 1e-2 --lr-warmup-fraction .01 --clip-grad 1.0 --bf16 --init-method-std 0.015
--transformer-impl transformer_engine --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1
--attention-backend auto --data-path F/sentences_text_sentence --vocab-file F/bert-vocab.txt --tokenizer-type
BertWordPieceCase --split 949,50,1 --log-interval 100 --tensorboard-dir F/board --save-interval 500
--eval-interval 1000 --eval-iters 10 --distributed-backend nccl --save F/t5 --load F/t5"""
T5_RECIPE = """
[model]
architecture = "t5"
position_embedding_type = "learned_absolute"
num_layers = 2
hidden_size = 64
num_attention_heads = 4
init_method_std = 0.015
[data]
data_path = ["F/sentences_text_sentence"]
tokenizer = "F/bert-vocab.txt"
tokenizer_type = "BertWordPieceCase"
seq_length = 48
decoder_seq_length = 20
split = "949,50,1"
[schedule]
lr = 1e-4
min_lr = 1e-5
lr_decay_style = "linear"
lr_warmup_fraction = 0.01
[train]
out = "F/t5_recipe"
train_iters = 20
micro_batch_size = 4
global_batch_size = 16
dtype = "bf16"
eval_interval = 1000
"""


class Pretrain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="megatron-pretrain-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        sentences = [line.capitalize() for line in text_of_sentences(1200)]
        documents = [" ".join(sentences[i:i + 6]) for i in range(0, len(sentences), 6)]
        text = cls.path / "text.jsonl"
        text.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
        run("tokenizer", "train", "--input", text, "--vocab-size", 300, "--output", cls.path / "bpe")
        learned = json.loads((cls.path / "bpe/tokenizer.json").read_text())
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in learned["model"]["merges"]]
        vocabulary = {**learned["model"]["vocab"], **{token["content"]: token["id"]
                                                      for token in learned["added_tokens"]}}
        (cls.path / "gpt2-vocab.json").write_text(json.dumps(vocabulary))
        (cls.path / "gpt2-merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
        words = sorted({word for line in sentences for word in line.rstrip(".").split()})
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOS]"] + [f"<extra_id_{i}>" for i in range(12)]
        lower = sorted({word.lower() for word in words} - set(words))
        (cls.path / "bert-vocab.txt").write_text("\n".join(special + words + lower + ["."]) + "\n")
        run("preprocess_data", "--input", text, "--output-prefix", cls.path / "tokens", "--tokenizer-type",
            "GPT2BPETokenizer", "--vocab-file", cls.path / "gpt2-vocab.json", "--merge-file",
            cls.path / "gpt2-merges.txt", "--append-eod", "--workers", 2, "--log-interval", 10)
        run("preprocess_data", "--input", text, "--output-prefix", cls.path / "sentences", "--tokenizer-type",
            "BertWordPieceLowerCase", "--vocab-file", cls.path / "bert-vocab.txt", "--split-sentences", "--workers", 1)

    def words(self, text):
        return shlex.split(text.replace("F/", f"{self.path}/"))

    def losses(self, name):
        lines = (self.path / name / "metrics.jsonl").read_text().splitlines()
        return {entry["iteration"]: entry["loss"] for entry in map(json.loads, lines) if "loss" in entry}

    def pretrain(self, program, words, *more, code=0):
        result = subprocess.run([MEGATRON, program, *self.words(words), *map(str, more)], capture_output=True,
                                text=True, timeout=300, cwd=self.path)
        self.assertEqual(result.returncode, code, result.stderr[-3000:])
        return result.stdout + result.stderr

    def compare(self, program, words, recipe, name, ranks):
        out = self.pretrain(program, words, "--parallel.world_size", ranks)
        self.assertIn(f"{program}: ignored, as they change no result: --attention-backend auto", out.replace(
            "--transformer-impl transformer_engine, ", ""))
        self.assertIn("has no checkpoint: the run starts from scratch", out)
        (self.path / "by_hand.toml").write_text(recipe.replace("F/", f"{self.path}/"))
        run("train", self.path / "by_hand.toml", "--world-size", ranks)
        self.assertEqual(len(self.losses(name)), 20)
        self.assertEqual(self.losses(name), self.losses(name + "_recipe"))
        self.assertTrue((self.path / name / "iter_0000020").is_dir())

    def test_the_example_of_gpt3_trains_as_its_recipe(self):
        self.compare("pretrain_gpt", GPT3, GPT3_RECIPE, "gpt3", 4)

    def test_the_example_of_bert_trains_as_its_recipe(self):
        self.compare("pretrain_bert", BERT, BERT_RECIPE, "bert", 4)

    def test_the_example_of_t5_trains_as_its_recipe(self):
        self.compare("pretrain_t5", T5, T5_RECIPE, "t5", 1)
        # In fp32, and as two ranks that share each matrix and each sequence: the same losses, to rounding.
        exact = T5.replace("--bf16", "")
        self.pretrain("pretrain_t5", exact.replace("F/t5", "F/one"), "--lr", "1e-2")
        self.pretrain("pretrain_t5", exact.replace("F/t5", "F/two"), "--lr", "1e-2", "--tensor-model-parallel-size", 2,
                      "--sequence-parallel", "--parallel.world_size", 2)
        stages = self.pretrain("pretrain_t5", exact.replace("F/t5", "F/stages"), "--pipeline-model-parallel-size", 2,
                               "--parallel.world_size", 2, code=2)
        self.assertIn("t5 with learned positions, which both stacks read, must be one stage.", stages)
        one, two = self.losses("one"), self.losses("two")
        self.assertLess(one[20], one[1] - 1)
        for iteration, loss in one.items():
            self.assertAlmostEqual(two[iteration], loss, delta=2e-4)

    def test_the_same_command_resumes_and_another_folder_is_not_taken_for_ones_own(self):
        small = """--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16
        --micro-batch-size 2 --lr 1e-3 --lr-decay-iters 8 --data-path F/tokens_text_document --vocab-file
        F/gpt2-vocab.json --merge-file F/gpt2-merges.txt --split 90,10,0 """
        whole = self.pretrain("pretrain_gpt", small + "--train-iters 8 --save F/whole --save-interval 8")
        self.assertNotIn("ignored", whole)
        kept = "--save F/parts --save-interval 4 --load F/parts --log-progress"
        self.pretrain("pretrain_gpt", small + "--train-iters 4 " + kept)
        self.assertIn("resumed from", self.pretrain("pretrain_gpt", small + "--train-iters 8 " + kept))
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        progress = [line.split("\t") for line in (self.path / "parts/progress.txt").read_text().splitlines()]
        self.assertEqual([(fields[2], fields[3]) for fields in progress],
                         [("# GPUs: 1", "Starting job"), ("# GPUs: 1", "Saved checkpoint")] * 2)
        self.assertEqual([fields[4] for fields in progress[1::2]], ["Iteration: 4", "Iteration: 8"])
        done = [float(fields[7].removeprefix("Floating-point operations: ")) for fields in progress[1::2]]
        self.assertAlmostEqual(done[1], 2 * done[0], delta=0.01 * done[1])
        # The schedule is the checkpoint's where that is asked for.
        shutil.rmtree(self.path / "parts")
        self.pretrain("pretrain_gpt", small + "--train-iters 4 " + kept)
        others = small.replace("--lr 1e-3 --lr-decay-iters 8", "--lr 5e-4 --lr-decay-iters 99")
        theirs = self.pretrain("pretrain_gpt",
                               others + "--train-iters 8 --use-checkpoint-opt_param-scheduler " + kept)
        self.assertIn("schedule.lr 5e-04 -> 0.001", theirs)
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        refused = self.pretrain("pretrain_gpt", small + "--train-iters 8 --save F/parts --save-interval 4", code=2)
        self.assertIn("--load not given", refused)
        # Nothing is saved without --save.
        self.pretrain("pretrain_gpt", small + "--train-iters 2")
        out = self.path / "runs/pretrain_gpt"
        self.assertTrue((out / "metrics.jsonl").is_file())
        self.assertEqual(list(out.glob("**/iter_*")), [])

    def test_a_run_begins_at_the_iteration_that_is_named_and_the_same_command_resumes(self):
        small = """--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16
        --micro-batch-size 2 --global-batch-size 4 --lr 1e-3 --train-iters 8 --data-path F/tokens_text_document
        --vocab-file F/gpt2-vocab.json --merge-file F/gpt2-merges.txt --split 90,10,0 --dataloader-type cyclic
        --weight-decay-incr-style cosine --start-weight-decay 0.01 --end-weight-decay 0.1 --save-interval 2 """
        own = small + "--save F/chosen --load F/chosen "
        self.pretrain("pretrain_gpt", own)
        whole = self.losses("chosen")
        self.assertIn("/chosen: 2, 4, 6, 8\n  fix:  --ckpt-step 6",
                      self.pretrain("pretrain_gpt", own + "--ckpt-step 7", code=2))
        back = self.pretrain("pretrain_gpt", own + "--ckpt-step 4 --exit-interval 6")
        self.assertIn("note: the run goes back to its iteration 4", back)
        self.assertEqual(list(self.losses("chosen")), [1, 2, 3, 4, 5, 6])
        again = self.pretrain("pretrain_gpt", own + "--ckpt-step 4", "--parallel.world_size", 2)
        self.assertIn("chosen/iter_0000006 at iteration 6", again)
        self.assertIn("the run has started from there before", again)
        for iteration, loss in whole.items():
            self.assertAlmostEqual(self.losses("chosen")[iteration], loss, delta=1e-5)
        # Of Megatron-LM's folders, too.
        run("checkpoint", "export", "--load", self.path / "chosen/iter_0000004", "--output", self.path / "theirs",
            "--format", "torch_dist")
        theirs = small + "--save F/after --load F/theirs "
        self.assertIn("/theirs: 4\n", self.pretrain("pretrain_gpt", theirs + "--ckpt-step 2", code=2))
        self.pretrain("pretrain_gpt", theirs + "--ckpt-step 4 --override-ckpt-iteration 2")
        self.assertEqual(list(self.losses("after")), [3, 4, 5, 6, 7, 8])
        # Where there is nothing to load yet, the option waits for no checkpoint.
        fresh = small + "--save F/fresh --load F/fresh --override-ckpt-iteration 0 "
        self.assertIn("the run starts from scratch", self.pretrain("pretrain_gpt", fresh + "--exit-interval 4"))
        self.assertIn("fresh/iter_0000004 at iteration 4", self.pretrain("pretrain_gpt", fresh))
        self.assertEqual(self.losses("fresh"), whole)
        self.pretrain("pretrain_gpt", small + "--save F/scratch --load F/absent --override-ckpt-iteration 3 ")
        self.assertEqual(self.losses("scratch"), whole)
        tuned = self.pretrain("pretrain_gpt", small + """--save F/tuned --load F/tuned --pretrained-checkpoint F/chosen
        --override-ckpt-iteration 3 --exit-interval 2""")
        self.assertIn("and --override-ckpt-iteration is ignored", tuned)
        self.assertEqual(list(self.losses("tuned")), [1, 2])

    def test_data_have_the_order_of_a_run_over_as_many_samples(self):
        small = """--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16
        --micro-batch-size 2 --lr 1e-3 --lr-decay-iters 9000 --data-path F/tokens_text_document --vocab-file
        F/gpt2-vocab.json --merge-file F/gpt2-merges.txt --split 90,10,0 --save-interval 100 """
        self.pretrain("pretrain_gpt", small + "--save F/long --train-iters 9000 --exit-interval 4")
        self.pretrain("pretrain_gpt", small + "--save F/short --train-iters 4 --data.index_samples 18000")
        self.pretrain("pretrain_gpt", small + "--save F/other --train-iters 4")
        self.assertEqual(self.losses("short"), self.losses("long"))
        self.assertNotEqual(self.losses("other"), self.losses("long"))  # several passes are shuffled together

    def test_a_yaml_file_trains_as_the_words_that_it_stands_for(self):
        keys = f"""
language_model: {{num_layers: 2, hidden_size: 32, num_attention_heads: 2, activation_func: swiglu, hidden_dropout: 0.0}}
model_parallel: {{tensor_model_parallel_size: 2, sequence_parallel: true}}
max_position_embeddings: 16
seq_length: 16
micro_batch_size: 2
train_iters: 4
lr: 1.e-3
mock_data: true
tokenizer_type: NullTokenizer
vocab_size: 64
save: {self.path}/from_keys
save_interval: 4
"""
        (self.path / "run.yaml").write_text(keys)
        out = self.pretrain("pretrain_gpt", "--yaml-cfg run.yaml --lr 7 --parallel.world_size 2")
        self.assertIn("ignored, as they change no result: --lr 7", out)
        self.pretrain("pretrain_gpt", """--num-layers 2 --hidden-size 32 --num-attention-heads 2 --swiglu
        --hidden-dropout 0 --tensor-model-parallel-size 2 --sequence-parallel --max-position-embeddings 16
        --seq-length 16 --micro-batch-size 2 --train-iters 4 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer
        --vocab-size 64 --save F/from_words --save-interval 4 --parallel.world_size 2""")
        self.assertEqual(len(self.losses("from_keys")), 4)
        self.assertEqual(self.losses("from_keys"), self.losses("from_words"))
        (self.path / "run.yaml").write_text(keys + "lr_decay: 1\nbf16: 1\n")
        out = self.pretrain("pretrain_gpt", "--yaml-cfg run.yaml", code=2)
        self.assertIn("run.yaml:14: lr_decay must be an option", out)
        self.assertIn("run.yaml:15: bf16 must be true or false.", out)

    def test_what_is_not_here_is_refused_before_anything_is_written(self):
        out = self.pretrain("pretrain_gpt", GPT3.replace("F/gpt3", "F/refused"), "--moe-latent-size", 8,
                            "--hybrid-context-parallel", code=2)
        self.assertIn("--moe-latent-size 8 (mixture of experts)\n"
                      "        --hybrid-context-parallel (context parallelism in levels)", out)
        self.assertFalse((self.path / "refused").exists())

    def test_a_shim_runs_the_program(self):
        shim = ROOT / "shims/pretrain_gpt.py"
        result = subprocess.run([sys.executable, shim, "--num-layers", "2"], capture_output=True, text=True,
                                env={"MEGATRON": MEGATRON}, cwd=self.path)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--hidden-size must be given.", result.stderr)


if __name__ == "__main__":
    unittest.main()
