"""A task learned through the command line alone: seeds, ensemble, resuming, layouts."""
import array
import json
import operator
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(TESTS / folder) for folder in ("testing", "e2e/ranks")]
from program import MEGATRON, run  # noqa: E402
from test_agreement import ENDS_IN, end_of, start_ranks  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "yes", "no", "may", "cat", "dog", "old", "new", "sees", "the"]
LABELS = {"yes": "entailment", "no": "contradiction", "may": "neutral"}
RECIPE = """
[model]
architecture = "bert"
num_layers = 1
hidden_size = 32
num_attention_heads = 4
hidden_dropout = 0.0
attention_dropout = 0.0
[task]
name = "mnli"
epochs = 4
[data]
seq_length = 24
[schedule]
lr = 3e-3
lr_decay_style = "linear"
[train]
dtype = "fp64"
micro_batch_size = 8
global_batch_size = 8
[parallel]
threads_per_rank = 1
"""


def words(draw, least, most):
    return " ".join(draw.choices(WORDS[5:], k=draw.randint(least, most)))


def glue(path, kind):
    """Eight examples whose answers nothing says: they must be learned by heart."""
    draw = random.Random(5)
    first, second, label = (("sentence1", "sentence2", "gold_label") if kind == "mnli" else
                            ("question1", "question2", "is_duplicate"))
    labels = list(LABELS.values()) if kind == "mnli" else ["0", "1"]
    lines = ["\t".join(["id", "qid1", "qid2", first, second, label])]
    lines += ["\t".join([str(i), "1", "2", words(draw, 2, 6), words(draw, 2, 6), draw.choice(labels)])
              for i in range(8)]
    path.write_text("\n".join(lines) + "\n")


def race(path):
    draw = random.Random(6)
    path.write_text("".join(json.dumps({"id": f"a{i}", "article": words(draw, 4, 8), "questions": [words(draw, 2, 3)],
                                        "options": [[words(draw, 1, 3) for _ in range(4)]],
                                        "answers": [draw.choice("ABCD")]}) + "\n" for i in range(8)))


def squad(path, version):
    draw = random.Random(7)
    paragraphs = []
    for i in range(4):
        context, questions = draw.sample(WORDS[5:], 8), []
        for j in range(2):
            first = draw.randint(0, 5)
            answer = {"text": " ".join(context[first:first + 2]),
                      "answer_start": len(" ".join(context[:first])) + (first > 0)}
            none = version == "2.0" and j == 1
            questions.append({"id": f"q{i}{j}", "question": words(draw, 3, 5), "answers": [] if none else [answer]})
            if version == "2.0":
                questions[-1]["is_impossible"] = none
        paragraphs.append({"context": " ".join(context), "qas": questions})
    path.write_text(json.dumps({"version": version, "data": [{"title": "t", "paragraphs": paragraphs}]}))


BY_HEART = {"mnli": lambda path: glue(path, "mnli"), "qqp": lambda path: glue(path, "qqp"), "race": race,
            "squad1": lambda path: squad(path, "1.1"), "squad2": lambda path: squad(path, "2.0")}
PERFECT = {"mnli": {"accuracy": 100}, "qqp": {"accuracy": 100, "f1": 100}, "race": {"accuracy": 100},
           "squad1": {"f1": 100, "exact_match": 100}, "squad2": {"f1": 100, "exact": 100}}


def table(count, seed, labelled=True):
    """Pairs whose second text says the label by its first word."""
    draw = random.Random(seed)
    lines = ["\t".join(["index", "sentence1", "sentence2"] + ["gold_label"] * labelled)]
    for index in range(count):
        key = draw.choice(list(LABELS))
        first, second = (" ".join(draw.choices(WORDS[8:], k=draw.randint(2, 6))) for _ in range(2))
        lines.append("\t".join([str(index), first, f"{key} {second}"] + [LABELS[key]] * labelled))
    return "\n".join(lines) + "\n"


class Finetune(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-finetune-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        (self.path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
        (self.path / "train.tsv").write_text(table(240, 1))
        (self.path / "valid.tsv").write_text(table(60, 2))
        (self.path / "test.tsv").write_text(table(10, 3, labelled=False))
        (self.path / "recipe.toml").write_text(RECIPE)

    def words(self, out, *options):
        return ["finetune", self.path / "recipe.toml", "--train-data", self.path / "train.tsv", "--valid-data",
                self.path / "valid.tsv", "--tokenizer", self.path / "vocab.txt", "--train.out", self.path / out,
                *options]

    def finetune(self, out, *options, code=0):
        return run(*self.words(out, *options), code=code)

    def losses(self, folder):
        lines = (self.path / folder / "metrics.jsonl").read_text().splitlines()
        return [object.get("loss", object.get("valid_loss")) for object in map(json.loads, lines)]

    def kill_in_seed(self, seed, words):
        """Ends the program, as a power cut does, when the seed has saved what it can resume from."""
        state = self.path / f"out/seed_{seed}/state/latest"
        process = subprocess.Popen([MEGATRON, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not state.exists() and process.poll() is None:
            time.sleep(0.001)
        process.kill()
        process.wait()
        self.assertFalse((self.path / f"out/seed_{seed}/result.json").exists())
        self.assertTrue(state.exists())

    def test_seeds_an_ensemble_and_going_on(self):
        own = ["--task.test", self.path / "test.tsv", "--eval-interval", 20, "--save-interval", 5]
        options = [*own, "--seeds", "1,2,3", "--ensemble"]
        report = json.loads(self.finetune("whole", *options, "--json"))
        self.assertEqual((report["task"], report["metric"], list(report["seeds"])),
                         ("mnli", "accuracy", ["1", "2", "3"]))
        self.assertGreater(report["median"]["accuracy"], 95)
        self.assertGreater(report["ensemble"]["accuracy"], 95)
        self.assertEqual(json.loads((self.path / "whole/results.json").read_text()), report)
        self.assertIn("| median of 3 |", (self.path / "whole/results.md").read_text())
        predictions = (self.path / "whole/seed_1/predictions.tsv").read_text().splitlines()
        truth = [line.split("\t")[-1] for line in (self.path / "valid.tsv").read_text().splitlines()[1:]]
        right = sum(line.split("\t")[1] == label for line, label in zip(predictions[1:], truth))
        self.assertAlmostEqual(100 * right / 60, report["seeds"]["1"]["accuracy"])
        self.assertEqual(len((self.path / "whole/seed_2/test/predictions.tsv").read_text().splitlines()), 11)

        # Killed in the second of three seeds and called again: what is done stays, the rest is the same to the bit.
        self.kill_in_seed(2, self.words("out", *options))
        before = (self.path / "out/seed_1/result.json").stat().st_mtime_ns
        self.assertIn("must be of this recipe", self.finetune("out", *own, "--lr", 1e-3, "--seeds", 2, code=2))
        self.refuses_other_files(own)
        self.assertEqual(json.loads(self.finetune("out", *options, "--json")), report)
        self.assertEqual((self.path / "out/seed_1/result.json").stat().st_mtime_ns, before)
        for seed in (2, 3):
            self.assertEqual(self.losses(f"out/seed_{seed}"), self.losses(f"whole/seed_{seed}"))
            for name in ("valid_logits.f32", "predictions.tsv", "test/predictions.tsv"):
                self.assertEqual((self.path / f"out/seed_{seed}" / name).read_bytes(),
                                 (self.path / f"whole/seed_{seed}" / name).read_bytes())
        self.assertIn("must be of this recipe", self.finetune("out", *options, "--lr", 1e-3, code=2))

        # From the folder, without training and on other ranks, threads and processes: the same.
        for name, layout in (("threads", ["--world-size", 4, "--tp", 2, "--sp"]),
                             ("processes", ["--world-size", 2, "--launch", "processes"])):
            again = json.loads(self.finetune(name, "--load", self.path / "out/seed_1", "--epochs", 0,
                                             "--micro-batch-size", 4, *layout, "--json"))
            self.assertEqual(again["median"], report["seeds"]["1"])
        self.evaluate_again(report["seeds"]["1"]["accuracy"])
        alone = json.loads(self.finetune("alone", "--load", self.path / "out/seed_1", "--epochs", 0, "--seeds", 1,
                                         "--ensemble", "--json"))  # one seed of a recipe with an ensemble
        self.assertEqual(alone["median"], report["seeds"]["1"])
        self.assertFalse(alone.get("ensemble"))

    def refuses_other_files(self, own):
        """Neither a seed that is finished nor one that was interrupted is taken for one of other files."""
        other_words = "\n".join(WORDS[:-2] + ["the", "sees"]) + "\n"
        for name, other in (("train.tsv", table(240, 9)), ("vocab.txt", other_words)):
            file = self.path / name
            before = file.read_text()
            file.write_text(other)
            for seed in (1, 2):
                said = self.finetune("out", *own, "--seeds", seed, code=2)
                self.assertRegex(said, rf"seed_{seed}.* must be of the same data(?s:.*)under the same name: .*"
                                       + ("tokenizer" if name == "vocab.txt" else name))
            file.write_text(before)

    def evaluate_again(self, accuracy):
        """`megatron eval mnli` of a finished seed finds what the seed itself found."""
        seed = self.path / "out/seed_1"
        words = ["eval", "mnli", "--load", seed, "--json", "--threads-per-rank", 1, "--data"]
        for name, file, beside, layout in (("valid", "valid.tsv", seed, []),
                                           ("test", "test.tsv", seed / "test", ["--tp", 2, "--dp", 2])):
            output = self.path / f"again_{name}"
            again = json.loads(run(*words, self.path / file, "--output", output, *layout))
            self.assertEqual(again.get("accuracy"), accuracy if name == "valid" else None)
            self.assertEqual((output / "predictions.tsv").read_bytes(), (beside / "predictions.tsv").read_bytes())
        first = self.path / "again_first"
        limited = json.loads(run(*words, self.path / "valid.tsv", "--limit", 7, "--output", first))
        self.assertEqual(limited["examples"], 7)
        finished = ["eval", "predictions", "--task", "mnli", "--data", self.path / "valid.tsv", "--predictions",
                    first / "predictions.tsv", "--json"]
        self.assertEqual(json.loads(run(*finished, "--limit", 7))["accuracy"], limited["accuracy"])
        self.assertIn("fix:  --limit 7", run(*finished, code=2))
        self.assertIn("must not exist, or be empty", run(*words, self.path / "valid.tsv", "--output", output, code=2))
        self.assertIn("a label for each", run(*words, self.path / "test.tsv", code=2))
        qqp = self.path / "qqp.tsv"
        qqp.write_text("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\told cat\tnew cat\t0\n")
        self.assertIn("task_head", run("eval", "qqp", "--load", seed, "--data", qqp, code=2))

    def logits(self, file):
        values = array.array("f")
        values.frombytes(file.read_bytes())
        return [values[i:i + 3] for i in range(0, len(values), 3)]

    def test_further_sets_are_reported_in_one_table(self):
        """Each score counted again from the predictions, each ensemble computed again from the seeds' logits."""
        sets = {"dev_matched": "", "dev_mismatched": "valid/dev_mismatched", "seen": "test/seen",
                "unseen": "test/unseen"}
        for number, name in enumerate(sets):
            (self.path / f"{name}.tsv").write_text(table(40, 50 + number, labelled=name != "unseen"))
        files = {name: self.path / f"{name}.tsv" for name in sets}
        words = ["--task.valid", files["dev_matched"], files["dev_mismatched"], "--task.test", files["seen"],
                 files["unseen"], "--seeds", "1,2,3", "--ensemble", "--epochs", 0.5]
        command = self.words("out", *words)
        at = command.index("--valid-data")  # given twice it would add to the first
        del command[at:at + 2]
        report = json.loads(run(*command, "--json"))
        self.assertEqual(list(report["sets"]), ["dev_matched", "dev_mismatched", "seen"])
        out = self.path / "out"
        labels = {}  # of the classes
        for name, folder in sets.items():
            truth = [line.split("\t")[-1] for line in files[name].read_text().splitlines()[1:]]

            def predicted(place):
                lines = (place / folder / "predictions.tsv").read_text().splitlines()[1:]
                self.assertEqual(len(lines), 40)
                return [line.split("\t")[1] for line in lines]

            def accuracy(place):
                return 100 * sum(map(operator.eq, predicted(place), truth)) / 40
            seeds = {str(seed): out / f"seed_{seed}" for seed in (1, 2, 3)}
            logits = [self.logits(place / folder / ("logits.f32" if folder else "valid_logits.f32"))
                      for place in seeds.values()]
            for rows, place in zip(logits, seeds.values()):
                for row, label in zip(rows, predicted(place)):
                    self.assertEqual(labels.setdefault(list(row).index(max(row)), label), label)
            means = [[sum(values) for values in zip(*rows)] for rows in zip(*logits)]
            self.assertEqual(predicted(out / "ensemble"), [labels[row.index(max(row))] for row in means])
            if name == "unseen":
                continue
            scores = report["sets"][name]
            for seed, place in seeds.items():
                self.assertAlmostEqual(scores["seeds"][seed]["accuracy"], accuracy(place))
            self.assertAlmostEqual(scores["median"]["accuracy"], statistics.median(map(accuracy, seeds.values())))
            self.assertAlmostEqual(scores["ensemble"]["accuracy"], accuracy(out / "ensemble"))
            if name == "dev_matched":
                self.assertEqual({field: report[field] for field in scores}, scores)
        lines = (out / "results.md").read_text().splitlines()
        self.assertEqual(lines[0], "| mnli | dev_matched accuracy | dev_mismatched accuracy | seen accuracy |")
        self.assertEqual([line.count("|") for line in lines], [5] * 7)
        self.assertEqual(json.loads(run(*command, "--json")), report)  # from what the seeds have left
        again = run(*command, "--valid-data", files["unseen"], "--train.out", self.path / "other", code=2)
        self.assertIn("a label for each", again)

    def test_both_schools_of_race_are_scored_by_themselves(self):
        """A folder with both, as RACE is published; either alone has one figure."""
        data = self.path / "dev"
        for school in ("middle", "high"):
            (data / school).mkdir(parents=True)
            race(data / school / "1.txt")
        with open(data / "high/1.txt", "a") as more:
            more.write(json.dumps({"id": "more", "article": "old cat", "questions": ["the dog", "may"],
                                   "options": [["yes", "no", "cat", "dog"]] * 2, "answers": ["B", "C"]}) + "\n")
        answers, schools = {}, {}
        for school in ("middle", "high"):
            lines = [json.loads(line) for line in (data / school / "1.txt").read_text().splitlines()]
            for line in lines:
                line["id"] = f"{school}-{line['id']}"
                answers.update({f"{line['id']}-{i}": answer for i, answer in enumerate(line["answers"])})
                schools.update({f"{line['id']}-{i}": school for i in range(len(line["answers"]))})
            (data / school / "1.txt").write_text("".join(json.dumps(line) + "\n" for line in lines))
        words = ["finetune", self.path / "recipe.toml", "--task", "race", "--train-data", data / "high", "--valid-data",
                 data, data / "high", "--tokenizer", self.path / "vocab.txt", "--epochs", 2, "--max-query-length", 6,
                 "--train.out", self.path / "race", "--json"]
        report = json.loads(run(*words))
        predictions = self.path / "race/seed_1234/predictions.json"
        right = {question: answer == answers[question]
                 for question, answer in json.loads(predictions.read_text()).items()}
        self.assertEqual(len(right), 18)
        expected = {"accuracy": right.values()}
        for school in ("middle", "high"):
            expected[f"accuracy_{school}"] = [is_right for question, is_right in right.items()
                                              if schools[question] == school]
        self.assertEqual(report["metrics"], list(expected))
        for name, part in expected.items():
            self.assertAlmostEqual(report["median"][name], 100 * sum(part) / len(part))
        self.assertEqual(report["sets"]["high"]["median"], {"accuracy": report["median"]["accuracy_high"]})
        scores = json.loads(run("eval", "predictions", "--task", "race", "--data", data, "--predictions", predictions,
                                "--json"))
        self.assertEqual(scores, {**report["median"], "total": 18})

    def test_every_task_is_learned_by_heart_the_same_on_ranks(self):
        for task, write in BY_HEART.items():
            data = self.path / f"{task}.data"
            write(data)
            options = ["finetune", self.path / "recipe.toml", "--task", task, "--train-data", data, "--valid-data",
                       data, "--tokenizer", self.path / "vocab.txt", "--epochs", 60, "--lr", 3e-3, "--json"]
            options += ["--doc-stride", 4] if task.startswith("squad") else []
            options += ["--max-query-length", 6] if task not in ("mnli", "qqp") else []
            whole = json.loads(run(*options, "--train.out", self.path / f"{task}-whole"))
            self.assertEqual(whole["median"], PERFECT[task], task)
            ranks = json.loads(run(*options, "--train.out", self.path / f"{task}-ranks", "--world-size", 4, "--tp", 2,
                                   "--micro-batch-size", 2))
            self.assertEqual(ranks, whole)
            one, other = (self.path / f"{task}-{name}/seed_1234" for name in ("whole", "ranks"))
            losses = list(zip(self.losses(one), self.losses(other)))
            self.assertEqual(len(losses), 61)
            for step, (loss, again) in enumerate(losses):  # Adam makes more of a rounded sum with every step
                self.assertAlmostEqual(loss, again, delta=(1e-10 if step <= 10 else 1e-8) * loss)
            predictions = next(one.glob("predictions.*"))
            self.assertEqual(predictions.read_bytes(), (other / predictions.name).read_bytes())

    def test_a_result_is_learned_on_with_the_head_of_another_task(self):
        self.finetune("mnli", "--epochs", 1, "--seeds", 1)
        for task, of in (("qqp", "mnli"), ("squad1", "qqp"), ("mnli", "squad1")):
            data = self.path / f"{task}.data"
            BY_HEART[task](data)
            words = ["finetune", self.path / "recipe.toml", "--task", task, "--train-data", data, "--valid-data", data,
                     "--load", self.path / of / "seed_1", "--epochs", 1, "--seeds", 1, "--train.out",
                     self.path / f"{task}-of-{of}"]
            words += ["--doc-stride", 4, "--max-query-length", 6] if task == "squad1" else []
            done = subprocess.run([MEGATRON, *map(str, words)], capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("is of another task and left out", done.stderr)
            self.assertRegex(done.stderr, "initialized: .*task_head.weight")
            if not (self.path / task).exists():
                (self.path / f"{task}-of-{of}").rename(self.path / task)
        self.assertIn("must have the head of squad1", run("eval", "squad", "--load", self.path / "qqp/seed_1", "--data",
                                                          self.path / "squad1.data", code=2))

    def test_an_unlabelled_file_of_squad_is_of_the_version_that_it_names(self):
        data = self.path / "squad.json"
        squad(data, "2.0")
        words = self.words("out", "--task", "squad2", "--epochs", 1, "--seeds", 1, "--doc-stride", 4,
                           "--max-query-length", 6)
        run(*[data if word in (self.path / "train.tsv", self.path / "valid.tsv") else word for word in words])
        asked = json.loads(data.read_text())
        for paragraph in asked["data"][0]["paragraphs"]:
            for question in paragraph["qas"]:
                for label in ("answers", "is_impossible"):
                    del question[label]
        for name, version, task in (("named", "v2.0", "squad2"), ("first", "1.1", "squad1"), ("none", None, "squad2")):
            asked["version"] = version
            data.write_text(json.dumps(asked))
            told = json.loads(run("eval", "squad", "--load", self.path / "out/seed_1", "--data", data, "--output",
                                  self.path / name, "--doc-stride", 4, "--max-query-length", 6, "--json"))
            self.assertEqual(told["task"], task, name)

    def test_its_timers_are_those_of_training(self):
        out = self.finetune("timed", "--seeds", 1, "--epochs", 1, "--save-interval", 2, "--timing-log-level", 1,
                            "--world-size", 2, "--tp", 2)
        for timer in ("model-and-optimizer-setup", "forward-backward", "optimizer", "evaluate", "save-checkpoint"):
            self.assertRegex(out, rf"(?m)^ +{timer} ?\.+: \(\d+\.\d\d, \d+\.\d\d\)$")

    def test_a_question_without_an_answer_scores_nothing(self):
        """As the official script of version 1.1 has it, also where the right answer is all punctuation."""
        data, predictions = self.path / "squad.json", self.path / "predictions.json"
        answers = [{"text": ".", "answer_start": 5}]
        data.write_text(json.dumps({"data": [{"paragraphs": [{"context": "a cat.", "qas": [
            {"id": name, "question": "what?", "answers": answers} for name in "pq"]}]}]}))
        predictions.write_text(json.dumps({"p": ""}))
        scores = json.loads(run("eval", "predictions", "--task", "squad1", "--data", data, "--predictions", predictions,
                                "--json"))
        self.assertEqual(scores, {"exact_match": 50.0, "f1": 0.0})

    def test_ranks_that_differ_end_before_they_begin(self):
        for option, path, value in [("--lr", "schedule.lr", "0.25"), ("--seeds", "task.seeds", "7"),
                                    ("--epochs", "task.epochs", "3")]:
            with self.subTest(option):
                words = self.words("out", "--global-batch-size", 16)
                codes, errors = end_of(start_ranks([words, [*words, option, value]]), ENDS_IN)
                self.assertEqual(codes, [2, 2], "\n".join(errors))
                for error in errors:
                    self.assertIn(path, error)
                self.assertFalse((self.path / "out").exists())

    def test_ranks_of_a_launcher_that_cannot_start_leave_no_folder(self):
        words = self.words("out", "--world-size", 2, "--global-batch-size", 16, "--launch", "processes")
        result = subprocess.run([os.path.abspath(MEGATRON), *map(str, words)], capture_output=True, text=True,
                                timeout=ENDS_IN, check=False, env=os.environ | {"GLOO_SOCKET_IFNAME": "nowhere"})
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("nowhere", result.stderr)
        self.assertFalse((self.path / "out").exists())

    def test_wrong_input_ends_before_it_begins(self):
        self.assertIn("fim.rate", self.finetune("out", "--fim-rate", 0.3, "--eval-iters", 1, code=2))
        self.assertIn("task.doc_stride has no effect", self.finetune("out", "--doc-stride", 5, code=2))
        self.assertIn("megatron finetune", run("plan", self.path / "recipe.toml", code=2))
        self.assertIn("must name the task's file", run("finetune", self.path / "recipe.toml", code=2))
        self.assertIn("data.sft", self.finetune("out", "--sft", code=2))
        self.assertFalse((self.path / "out").exists())


if __name__ == "__main__":
    unittest.main()
