"""`megatron serve` as lm-eval's local-completions uses it: scores and log-likelihoods are those of its own backend, hf,
with transformers. Needs lm_eval, torch and transformers."""
import json
import os
import pathlib
import sys
import tempfile
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import MODELS  # noqa: E402
from server import Server  # noqa: E402

os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
lm_eval, _, torch, transformers, MISSING = peers("lm_eval", "lm_eval.tasks", "torch", "transformers")
SMOLLM2 = MODELS / "smollm2-135m-instruct"

QUESTIONS = [
    ("The capital of France is", [" Paris", " London", " a small village in the north of the country"], 0),
    ("Water freezes at zero degrees", [" Celsius", " metres", " of freedom", " on Tuesdays"], 0),
    ("Two plus two equals", [" five", " four"], 1),
    ("In Zürich, Ärzte und Bäcker sprechen", [" Deutsch", " Ελληνικά", " 日本語"], 0),
    ("Q: Is the sun a star or a planet?\nA: It is a", [" planet", " star", " moon"], 1),
    ("The opposite of hot is", [" cold", " warm", "cold"], 0)]
TEXTS = ["The quick brown fox jumps over the lazy dog.", "a",
         "Once upon a time, there was a little girl who lived in a house near the forest. Every morning she went to "
         "fetch water from the well."]

CHOICE = """
task: small_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/questions.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
num_fewshot: {shots}
fewshot_split: test
fewshot_config: {{sampler: first_n}}
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""
ROLLING = """
task: small_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/texts.jsonl}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - {{metric: word_perplexity}}
  - {{metric: bits_per_byte}}
"""
WRITING = """
task: small_writing
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/questions.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: ["\\n\\n", "."], do_sample: false, max_gen_toks: 12}}
metric_list:
  - {{metric: exact_match}}
"""
TASKS = {"small_choice": CHOICE, "small_text": ROLLING, "small_writing": WRITING}


def write_tasks(folder, shots):
    rows = {"questions": [{"question": q, "choices": c, "answer": a} for q, c, a in QUESTIONS],
            "texts": [{"text": text} for text in TEXTS]}
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(task.format(folder=folder, shots=shots))


@unittest.skipIf(MISSING, MISSING)
@unittest.skipUnless(SMOLLM2.exists(), f"{SMOLLM2} is not there")
class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from lm_eval.models.huggingface import HFLM
        tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
        model = transformers.AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32).eval()
        cls.truth = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=512, device="cpu")
        cls.known = {}  # its results by the number of examples in a prompt
        cls.server = Server(SMOLLM2, "--dtype", "fp32", "--max-texts", 8)
        cls.addClassCleanup(cls.server.close)

    def evaluate(self, folder, model, **arguments):
        tasks = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
        return lm_eval.simple_evaluate(model=model, tasks=sorted(TASKS), task_manager=tasks, bootstrap_iters=0,
                                       log_samples=True, **arguments)

    def both(self, shots, **options):
        place = tempfile.TemporaryDirectory(prefix="megatron-interop-")
        self.addCleanup(place.cleanup)
        folder = pathlib.Path(place.name)
        write_tasks(folder, shots)
        arguments = {"model": SMOLLM2.name, "base_url": f"http://{self.server.host}:{self.server.port}/v1/completions",
                     "tokenizer": str(SMOLLM2), "max_length": 512, "max_retries": 1, **options}
        batch = {"batch_size": options.pop("batch_size", 1)}
        arguments.pop("batch_size", None)
        if shots not in self.known:
            self.known[shots] = self.evaluate(folder, self.truth)
        return self.evaluate(folder, "local-completions", model_args=arguments, **batch), self.known[shots]

    def expect_equal(self, got, want):
        self.assertEqual(set(got["results"]), set(TASKS))
        for task, scores in want["results"].items():
            for name, value in scores.items():
                if isinstance(value, float):
                    self.assertAlmostEqual(got["results"][task][name], value, delta=1e-3 * max(1, abs(value)),
                                           msg=f"{task} {name}")
        self.assertGreater(want["results"]["small_choice"]["acc,none"], 0.5)  # the model knows something
        for task in TASKS:
            answers = [sorted((sample["doc_id"], sample["resps"]) for sample in one["samples"][task])
                       for one in (got, want)]
            for (number, mine), (same, theirs) in zip(*answers, strict=True):
                self.assertEqual(number, same)
                if task == "small_writing":
                    self.assertEqual(mine, theirs)
                    continue
                for one, other in zip(mine, theirs, strict=True):
                    one, other = one[0], other[0]
                    if task == "small_text":
                        self.assertAlmostEqual(one, other, delta=1e-3, msg=TEXTS[number])
                        continue
                    self.assertAlmostEqual(float(one[0]), float(other[0]), delta=1e-3, msg=QUESTIONS[number])
                    self.assertEqual(str(one[1]), str(other[1]), QUESTIONS[number])  # whether it is the likeliest

    def test_gets_the_scores_of_its_own_backend(self):
        self.expect_equal(*self.both(shots=0))

    def test_by_many_requests_at_once_whose_prompts_begin_alike(self):
        self.expect_equal(*self.both(shots=2, num_concurrent=4, batch_size=3))
        # As texts rather than tokens.
        self.expect_equal(*self.both(shots=0, tokenized_requests=False))


if __name__ == "__main__":
    unittest.main()
