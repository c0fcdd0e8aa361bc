"""Every error says a fix, and what the fix says works: its words are typed, and the rule is kept."""
import concurrent.futures
import os
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
import advice  # noqa: E402
from program import MEGATRON, RunFolder, run  # noqa: E402

# Command lines that are wrong, by job. The words before each line's own are those of a command that is right: {text} a
# text, {tok} a tokenizer, {pair} the tokens of the text, {run} a trained run, {recipe} its recipe, {new} a name where
# nothing is. tests/plan/mend_test.cpp tries the rules over a run's options, one by one and together, in process.
WRONG = {
    "train {recipe} --data-path {pair} --tokenizer {tok} --train.out {new} --train-iters 0": """
        --tp 3 --world-size 3
        --pp 3 --world-size 3
        --hidden-size 65 --world-size 4 --tp 3 --model.activation relu2
        --lr -1
        --hidden-size 9223372036854775807
        --world-size 100000
        --schedule nonsense
        --rampup-batch-size x
        --rampup-batch-size
        --data-path ""
        --data-path 0.5 {pair} 0.5
        --data-path -1 {pair}
        --data-args-path {text}
        --train-data-path {pair}
        --data-path {pair}.bin
        --data-path {text}
        --train.out {run2} --tokenizer {other_tok}
        --train-itters 5
        --parallel.tpp 2
        --num-layers many
        --lr
        --no-sp=5
        --swiglu --model.activation relu
        --bf16 --fp16
        --vocab-file x
        --use-flash-attn
        --lr-warmup-iters 5
        --context-parallel-size 2 --seq-length 30
        --cp 2 --world-size 2 --cp-comm-type a2a --num-query-groups 1
        --tokenizer {new}
        --split 1,x
        --vocab-size 100
        --model.head classes --model.num_classes 3
        --eval-interval 0 --data-path
        --load {new}
        --load {text}
        --load {run} --hidden-size 32
        --no-load-strict
        --finetune
        --finetune --load {run} --hidden-size 32
        --parallel.backend nccl
        --device cuda
        --log.trace t.txt
        --log.fields nope
        --log.fields
        --data.sft --data.packed --data.fim_data
        --reset-position-ids --data.packed
        --threads-per-rank -3
        word""",
    "plan {recipe} --vocab-size 320": """
        --tp 3 --world-size 3 --pp 3
        --draw picture.png
        --trace {text}
        --launches --json
        --launches --cp 2 --world-size 2
        --launches --fp32-residual-connection --train.dtype bf16
        --launches --num-experts 2 --moe-router-force-load-balancing --disable-bias-linear
        --launches --sp --tp 2 --world-size 2 --num-experts 2 --moe-router-topk 2 --disable-bias-linear
        --unknown
        --seq-length 5000000
        --seq-length x""",
    "plan": """
        {text}
        {new}
        {recipe} {recipe}""",
    "finetune {task_recipe} --task mnli --train-data {mnli} --valid-data {mnli} --tokenizer {tok} --epochs 0 "
    "--train.out {new}": """
        --task mnl
        --seeds 1,1
        --seeds x
        --epochs -1
        --data.sft
        --split 1,0,0 --eval-iters 3
        --train-data=
        --doc-stride 0
        --n-best 3
        --task.n_best 0 --task squad1
        --tp 3 --world-size 3""",
    "eval lambada --load {run} --data {text} --format jsonl --limit 1": """
        --tp 3
        --tp 3 --world-size 3
        --tp 3 --world-size 4
        --pp 7
        --world-size 3 --tp 2
        --world-size 3 --dp 2
        --format json
        --limit -1
        --batch-size -1
        --dtype fp8
        --device tpu
        --tp 0
        --progress maybe
        --load {new}
        word""",
    "eval": "\nlos --load {run}",
    "eval loss --load {run} --data {text}": """
        --window 99
        --window 1
        --stride -1
        --limit-tokens -1
        --window -1
        --data {new}
        --data=
        --load=
        --data {pair} --detokenize
        --threads-per-rank -1""",
    "eval choice --load {run} --data {text}": "\n--limit 2",
    "eval mnli --load {run} --data {text}": "\n--limit 1",
    "eval predictions --task mnli --data {mnli} --predictions {predictions}": """
        --task nli
        --null-odds {text}
        --null-threshold 2
        --limit -1
        --data=
        --predictions=""",
    "generate --load {run} --max-new-tokens 1 --prompt the": """
        --prompt
        --prompt-file {new}
        --chat
        --chat --system be
        --system be
        --timeout-s 0
        --temperature -2
        --top-k -1
        --top-p 0
        --top-p 2
        --max-new-tokens -1
        --num-beams 4
        --tp 3
        --pp 3 --world-size 2
        --world-size 2
        --tp 4 --world-size 2
        --tp 2 --etp 1
        --ep 2
        --etp -1
        --tokenizer {new}
        --tokenizer=x
        --dtype int8
        --load=
        --seed -1
        --hidden-size 5""",
    "generate --load {run}": "\n--json",
    "tokenizer": "\ntrian",
    "tokenizer train --input {text} --vocab-size 300 --output {new}": """
        --vocab-size 3
        --vocab-size 0
        --kind bp
        --input {new}
        --input=
        --cased
        --limit-alphabet 5
        --kind unigram --min-frequency 3
        --threads -1
        --threads 5000
        --vocab-size 9999999999
        --json-key body
        --format json""",
    "tokenizer encode --tokenizer {tok} --input {text}": """
        --special-tokens some
        --tokenizer {text}
        --tokenizer=
        --input {new}
        --threads -1
        --tokenizer-type GPT
        --tokenizer-type GPT2BPETokeniser
        --tokenizer-type Llama2Tokenizer""",
    "tokenizer decode --tokenizer {tok} --input {ids}": "\n--tokenizer {new}",
    "data": "\ninf x",
    "data info": "\n{pair}.bin\n{pair} {pair}\n--json\n{new}\n{pair}.idx --json",
    "data cat {pair}": "\n--range 5:2\n--range x\n--range 999999:\n--tokenizer-type GPT2BPETokenizer",
    "data merge {pair} {pair} --output-prefix {new}": "\n--output-prefix=\n--progress x",
    "data split {pair} --output-prefix {new} --shares 8,1,1": """
        --shares 0,0
        --shares 8,-1
        --documents 5
        --names a
        --names a a b""",
    "data split {pair} --output-prefix {new}": "\n--documents 99999999\n--documents -1\n--documents 0\n--progress off",
    "data preprocess --input {text} --tokenizer {tok} --output-prefix {new}": """
        --input=
        --format lins
        --piece-bytes 100
        --piece-bytes 1 --format pieces
        --max-document-mb 0
        --keep-newlines
        --lang tlh --split-sentences
        --workers -1
        --on-error ignore
        --note-mb 0
        --json-keys
        --tokenizer=
        --json-keys a b --format lines
        --json-keys body
        --progress soon""",
    "data index {pair} --output {new} --seq-length 32 --samples 10,0,0": """
        --kind gtp
        --seq-length 0
        --samples -1
        --samples 1,2,3,4
        --one-segment
        --short-seq-prob 0.5
        --output=
        --split x""",
    "data filter --input {text} --output {new}": """
        --language klingon
        --language
        --min-tokens -1
        --json-key body
        --on-error ignore
        --url-key u
        --block-domains {new}
        --workers -1""",
    "data dedup --input {text} --output {new}": """
        --threshold 2
        --hashes -1
        --bands 5
        --bands 5000 --rows 5000
        --shingle-size 0
        --memory-mb 0
        --workers -2
        --input {new}
        --input -
        --max-document-mb 0""",
    "data overlap --input {text} --test {text}": """
        --ngram 99
        --min-ngram 99
        --common -1
        --test=
        --test-format foo
        --test-format squad
        --test-key body
        --input=""",
    "checkpoint": "\nverfy {run}",
    "checkpoint info": "\n{new}\n{run} {run}",
    "checkpoint verify": "\n{text}\n--json",
    "checkpoint reshard {run} {new}": "\n--files 0\n--dtype fp8\n{run}",
    "checkpoint diff {run} {run}": "\n--tolerance -1\nthird",
    "checkpoint prune {run} --keep-last 1 --dry-run": "\n--keep-last 0\n--keep-every -1\n{new}",
    "checkpoint export --load {run} --output {new}": """
        --dtype fp64
        --dtype q8_0
        --format zip
        --format gguf
        --output=
        word
        --output {run}""",
    "checkpoint import --from {run} --output {new}": "\n--dtype fp64\n--from={new}",
    "bench": "\nstpe",
    "bench step --model {recipe} --steps 1 --warmup 0 --seq-length 16": """
        --steps 0
        --tp 3 --world-size 3
        --pp 3 --world-size 3
        --schedule nonsense
        --dtype fp8
        --model nosuch
        --micro-batch-size 0
        --microbatches 1000000000
        --loss-chunk-tokens -1
        --kernels avx3
        --optimizer.clip-norm max
        --launch thread
        word""",
    "bench comm --sizes 4096 --repeats 1": "\n--ranks 0\n--sizes 0\nword",
    "bench data --input {text} --tokenizer {tok} --samples 10 --fetches 10 --seq-length 8 --repeats 1":
        "\n--repeats 0\n--workers -1\n--input=\nword",
    "bench tokenizer --input {text} --vocab-size 300 --repeats 1": "\n--repeats 0\n--threads -1\n--one-character-mb -1",
    "bench tokenizer": "\n--repeats 1\n--one-character-mb 1 --vocab-size 0",
    "bench generate --load {run} --prompt-tokens 2 --new-tokens 2 --prefill-tokens 4 --repeats 1":
        "\n--repeats 0\n--prompt-tokens 9999\n--tp 3",
    "bench pipeline {recipe} --vocab-size 320 --pp 2 --world-size 2 --steps 1 --rounds 1":
        "\n--steps 0\n--steps 1000000000000\n--schedules zzz",
    "bench scaling": "\n--measured --steps 0\n--world-size 3\n--measured --width 17\n--recipes gpt_18.4b",
    "doctor": "\nword\n--jsn",
    "version": "\n--json",
    "plot {run}": "\n--x time\n--smooth 0\n--field nosuch",
    "plot": "\n{new}\n--json",
    "docs": "\nconfg",
    "docs config": "\nword",
    "docs megatron-lm": "\nword",
    "": "\ntokeniser\n--versin",
}


# Commands that are refused without a wrong word too, for what they lack or for a file that these tests have none of.
REFUSED = {"plan", "eval", "eval choice --load {run} --data {text}", "eval mnli --load {run} --data {text}",
           "generate --load {run}", "tokenizer", "data", "data info", "data split {pair} --output-prefix {new}",
           "bench tokenizer", "checkpoint", "checkpoint info", "checkpoint verify", "bench", "plot", "docs", "",
           "bench scaling"}
# Rules that are looked at once another is kept, and that the same line breaks too.
LATER = ("This machine's memory must hold", "a chat needs a template", "SentencePiece must be able",
         "each line must have the key", "parallel.*: tp*cp*dp*pp must equal", "squad needs a BERT",
         "task.n_best has no effect", "a table of MNLI must have")


class Advice(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.place.train("run", "--train-iters", 1)
        cls.empty = cls.place.path / "work"
        cls.empty.mkdir()
        cls.names = {"text": cls.place.path / "text.jsonl", "tok": cls.place.tokenizer, "run": cls.place.path / "run",
                     "pair": cls.place.path / "tokens_text_document", "recipe": cls.place.recipe,
                     "mnli": cls.place.path / "mnli.tsv", "predictions": cls.place.path / "predictions.tsv"}
        shutil.copytree(cls.place.path / "run", cls.place.path / "run2")
        draw = random.Random(5)
        (cls.place.path / "other.txt").write_text("".join(
            "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=6)) * 2 + "\n" for _ in range(300)))
        run("tokenizer", "train", "--input", cls.place.path / "other.txt", "--vocab-size", 500, "--output",
            cls.place.path / "other")
        cls.names["whole_recipe"] = cls.place.path / "whole.toml"  # which needs no word more
        cls.names["whole_recipe"].write_text(cls.place.recipe.read_text().replace("train_iters = 30", "train_iters = 1")
                                             .replace("[data]\n", f'[data]\ndata_path = ["{cls.names["pair"]}"]\n'
                                                      f'tokenizer = "{cls.place.tokenizer}"\n'))
        cls.names |= {"run2": cls.place.path / "run2", "other_tok": cls.place.path / "other"}
        cls.names |= {"ids": cls.place.path / "ids.txt", "task_recipe": cls.place.path / "task.toml"}
        cls.names["ids"].write_text("1 2 3\n")
        recipe = [line for line in cls.place.recipe.read_text().splitlines()
                  if not line.startswith(("split", "train_iters"))]
        cls.names["task_recipe"].write_text("\n".join(recipe))
        cls.names["mnli"].write_text("index\tsentence1\tsentence2\tgold_label\n" +
                                     "".join(f"{i}\ta dog sees\ta dog\tentailment\n" for i in range(4)))
        cls.names["predictions"].write_text("index\tprediction\n" + "".join(f"{i}\tentailment\n" for i in range(4)))

    def lines(self):
        for command, wrong in WRONG.items():
            for line in filter(None, map(str.strip, wrong.splitlines())):
                yield shlex.split(command), shlex.split(line)

    def words(self, base, more, number):
        """A right command with wrong words: an option that is given again takes the place of the first."""
        names = self.names | {"new": self.place.path / f"new{number}"}
        base, more = ([word.format(**names) for word in part] for part in (base, more))
        job = advice.job_of(base)
        given = advice.Amendment([word for word in more if word.startswith("--")])
        return advice.amended(base, given, None)[:-len(given.words) or None] + more if job else base + more

    def fill(self, option, placeholder):
        kinds = {"--load": "run", "--tokenizer": "tok", "--data-path": "pair", "--train-data-path": "pair",
                 "--model": "recipe", "--task.train": "mnli", "--train-data": "mnli", "--valid-data": "mnli",
                 "--predictions": "predictions"}
        if option == "--language":
            return "english"
        if option in kinds:
            return self.names[kinds[option]]
        if placeholder in ("FOLDER", "PREFIX", "DIR", "TO", "Q") or option.startswith("--output"):
            return self.place.path / f"filled{os.urandom(4).hex()}"
        return self.names["text"] if placeholder == "FILE" else "1"

    def call(self, words, may_measure=True):
        """Exit code and standard error; no code where the job was still at work, which nothing has refused."""
        limit = 3 if words[:1] == ["bench"] and may_measure else 60  # what it measures would take all cores for long
        try:
            result = subprocess.run([os.path.abspath(MEGATRON), *words], capture_output=True, text=True, timeout=limit,
                                    errors="replace", stdin=subprocess.DEVNULL, cwd=self.empty)
        except subprocess.TimeoutExpired:
            return None, ""
        return result.returncode, result.stderr

    def try_base(self, number, command):
        """The rules that a command breaks without a wrong word, and what is wrong with that."""
        code, message = self.call(self.words(shlex.split(command), [], number))
        refused = code == 2
        problems = [f"not right by itself: {command}\n{message}"] if refused and command not in REFUSED else []
        return {violation.rule for violation in advice.violations(message)} if refused else set(), problems

    def try_line(self, number, base, more, always=()):
        """What is wrong with the advice on one command line, and how many broken rules it has named."""
        words = self.words(base, more, number)
        code, message = self.call(words, may_measure=False)
        where = f"megatron {' '.join(words)}\n{message}"
        if code != 2:
            return 0, [f"exit code {code}, not 2: {where}"]
        problems = [f"{complaint}\n  of {where}" for complaint in advice.complaints(words, message)]
        found = advice.violations(message)
        changes = [(violation, advice.amendment(violation.fix)) for violation in found if violation.fix]
        for violation, change in changes:
            if change is None:
                continue
            # What one run of the program can show of all fixes together needs no run for each.
            together = len(changes) > 1 and all(other for _, other in changes)
            if together and violation is not found[0]:
                continue
            fixed = words
            for broken, other in changes if together else [(violation, change)]:
                if "must be one that this job has" in broken.rule and other.words:  # an option's right name
                    fixed = [other.words[0] if word == broken.got else word for word in fixed]
                else:
                    fixed = advice.amended(fixed, other, self.fill)
            code, after = self.call(fixed)
            typed = f"megatron {' '.join(map(str, fixed))}"
            left = {other.rule for other in advice.violations(after)} if code == 2 else set()
            for other in found if together else [violation]:
                if other.rule in left:
                    problems.append(f"still broken after\n  {typed}\n  {other}\n{after}")
            if code not in (None, 0, 2):
                problems.append(f"exit code {code} after\n  {typed}\n  {violation}\n{after}")
            if [rule for rule in left - {other.rule for other in found} - set(always)
                    if not any(later in rule for later in LATER)]:
                problems.append(f"the fix breaks another rule:\n  {typed}\n  {violation}\n{after}")
        for violation in found:
            for command in advice.commands(violation.fix or ""):
                problems += self.try_command(command, where)
        problems += [f"two values of {option} in one message: {where}"
                     for option in advice.contradictions(words, found)]
        return len(found), problems

    def try_command(self, command, where):
        """What is wrong with a command line that a fix names, what it leaves open filled."""
        option, typed = "", []
        recipe = "task_recipe" if command[0] == "finetune" else "whole_recipe"
        first = {"RECIPE": recipe, "RECIPE.toml": recipe} | dict.fromkeys(("PREFIX", "P", "A", "B"), "pair") | \
            dict.fromkeys(("DIR", "FROM", "FOLDER", "FIRST", "SECOND"), "run2")
        for word in command:
            if word not in advice.PLACEHOLDERS:
                typed.append(word)
            elif not option and word in first:
                typed.append(str(self.names[first[word]]))
            else:
                typed.append(str(self.fill(option, word)))
            option = word if word.startswith("--") else ""
        code, message = self.call(typed)
        return [f"refused: megatron {' '.join(typed)}\n{message}\n  of {where}"] if code == 2 else []

    def test_every_fix_can_be_typed_and_works(self):
        lines = list(enumerate(self.lines()))
        for command in {tuple(base) for _, (base, _) in lines}:
            advice.options_of(advice.job_of(command))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            bases = list(pool.map(lambda entry: self.try_base(1000 + entry[0], entry[1]), enumerate(WRONG)))
            always = {tuple(shlex.split(command)): rules for command, (rules, _) in zip(WRONG, bases)}
            results = list(pool.map(lambda entry: self.try_line(entry[0], *entry[1], always[tuple(entry[1][0])]),
                                    lines))
        results += [(0, problems) for _, problems in bases]
        problems = [problem for _, found in results for problem in found]
        rules = sum(count for count, _ in results)
        print(f"{len(lines)} wrong command lines, {rules} broken rules", file=sys.stderr)
        self.assertEqual(problems, [], "\n\n".join(problems))
        self.assertGreaterEqual(rules, 250)


class Reader(unittest.TestCase):
    """What reads the fixes: were it blind, the test above would pass whatever they say."""

    def test_fixes_are_taken_apart_as_they_are_meant(self):
        for fix, words in [("--tp 2 or 4", ["--tp", "2"]), ("--lr 0.1 (the default)", ["--lr", "0.1"]),
                           ('--pp-layout "Et|tL", or balanced', ["--pp-layout", "Et|tL"])]:
            self.assertEqual(advice.amendment(fix).words, words)
        self.assertEqual(advice.amendment("leave --sft and --packed out, or not").left_out, ["--sft", "--packed"])
        self.assertIsNone(advice.amendment("name another folder: --train.out"))
        self.assertEqual(advice.commands("megatron data merge A B --output-prefix P makes one; megatron plan RECIPE."),
                         [["data", "merge", "A", "B", "--output-prefix", "P"], ["plan", "RECIPE"]])
        line = ["train", "R", "--tp", "3", "--sp", "--lr", "1"]
        self.assertEqual(advice.amended(line, advice.Amendment(["--tensor-model-parallel-size", "2"]), None),
                         ["train", "R", "--sp", "--lr", "1", "--tensor-model-parallel-size", "2"])

    def test_what_is_wrong_is_seen(self):
        words = ["eval", "lambada", "--load", "x"]
        bad = ("a rule.\n  got:  3\n  fix:  --ffn-hidden-size 258\nanother.\n  got:  1\n"
               "third.\n  got:  2\n  fix:  --tp 2")
        found = advice.complaints(words, bad)
        self.assertEqual(len(found), 2, found)
        self.assertIn("--ffn-hidden-size is no option", found[0])
        self.assertIn("without got or fix", found[1])
        self.assertEqual(advice.complaints(words, "terminate called"), ["without got or fix: terminate called\n  got:  "
                                                                        "None\n  fix:  None"])


class FirstStarts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)

    def test_load_and_save_of_a_folder_that_is_not_there_yet_begin_anew(self):
        folder = self.place.path / "ckpt"
        words = ["--load", folder, "--save", folder, "--save-interval", 1]
        said = self.call(self.place.train_words("run", *words, "--train-iters", 1))
        self.assertIn(f"note: {folder} has no checkpoint yet", said)
        said = self.call(self.place.train_words("run", *words, "--train-iters", 2))
        self.assertNotIn("has no checkpoint yet", said)
        self.assertEqual(sorted(self.place.losses("run")), [1, 2])
        self.assertIn("--save", self.place.train("other", "--load", self.place.path / "nowhere", code=2))

    def call(self, words):
        result = subprocess.run([os.path.abspath(MEGATRON), *map(str, words)], capture_output=True, text=True,
                                timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stderr

    def test_the_tokenizer_that_lies_with_the_weights_is_taken(self):
        self.place.train("source", "--train-iters", 1)
        exported = self.place.path / "exported"
        run("checkpoint", "export", "--load", self.place.path / "source", "--output", exported)
        words = ["train", self.place.recipe, "--data-path", self.place.path / "tokens_text_document",
                 "--load", exported, "--train.out", self.place.path / "tuned", "--train-iters", 1]
        run(*words)
        self.assertIn(f'tokenizer = "{exported}"', (self.place.path / "tuned/recipe.toml").read_text())

    def test_lambada_is_told_by_its_content(self):
        self.place.train("told", "--train-iters", 1)
        plain, lines = self.place.path / "plain.txt", self.place.path / "passages"
        plain.write_text("the cat sees\na dog likes\n")
        lines.write_text('{"text": "the cat sees"}\n{"text": "a dog likes"}\n')
        results = [run("eval", "lambada", "--load", self.place.path / "told", "--data", file, "--json", *more)
                   for file, more in [(plain, []), (lines, []), (plain, ["--format", "lines"]),
                                      (lines, ["--format", "jsonl"]), (plain, ["--format", "plain"])]]
        sums = {result.split('"nll_sum":')[1].split(",")[0] for result in results}
        self.assertEqual(len(sums), 1, results)


if __name__ == "__main__":
    unittest.main()
