"""The help of every job, as a reader meets it: usage, types, choices, what is written, examples that the job takes."""
import pathlib
import re
import shlex
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from advice import help_of, job_of, unknown_options, whole_help  # noqa: E402
from program import RunFolder, run  # noqa: E402


def jobs():
    """Every job of one name or two, from the lists that the program prints."""
    for first in re.findall(r"^  megatron (\S+)", run("--help"), re.MULTILINE):
        listing = help_of((first,)) if first != "version" else ""
        names = re.findall(rf"^  megatron {first} (\S+)  ", listing, re.MULTILINE)
        yield from ([first, name] for name in names) if names else [[first]]


JOBS = [job for job in jobs() if job != ["version"]]


class Help(unittest.TestCase):
    def test_every_job_shows_usage_exit_codes_and_examples(self):
        self.assertGreater(len(JOBS), 35)
        for job in JOBS:
            with self.subTest(job=job):
                text = help_of(tuple(job))
                self.assertTrue(text.startswith("megatron " + job[0]), text[:80])
                for words in ["exit codes: 0 done, 1 the run failed, 2 the command", "\nexamples:\n  "]:
                    self.assertIn(words, text)

    def test_the_options_of_every_example_are_the_jobs(self):
        for job in JOBS:
            examples = help_of(tuple(job)).split("\nexamples:\n")[1].strip().splitlines()
            for example in examples:
                with self.subTest(example=example):
                    command = re.search(r"\bmegatron .*", example.split(">")[0])[0]
                    words = shlex.split(command)[1:]
                    self.assertEqual(words[:len(job)], job)
                    self.assertEqual(unknown_options(command, job_of(words)), [])

    def test_options_show_their_type_or_choices_and_no_sentence_about_it(self):
        types = re.compile(r"^  --\S+(, --\S+)*( (INT|FLOAT|STRING)(\.\.\.)?| \{[^ ]+\}(\.\.\.)?)?(\s{2,}\S.*)?$")
        for job in JOBS:
            text = whole_help(tuple(job))
            self.assertIn("\nexit codes: ", text, job)
            for line in text.splitlines():
                if line.startswith("  --"):
                    self.assertRegex(line, types, job)
            for words in ["(a text;", "a list of texts", "an integer", "(true or false"]:
                self.assertNotIn(words, text, job)

    def test_a_training_shows_a_page_and_the_rest_by_section(self):
        short, model = help_of(("train",)), run("train", "--help", "model")
        everything = whole_help(("train",))
        self.assertLess(len(short.splitlines()), 75)
        for words in ["--lr FLOAT", "--optimizer {adam,", "--tp INT", "--tokenizer STRING", "--help SECTION"]:
            self.assertIn(words, short)
        self.assertNotIn("rotary", short)
        self.assertIn("--model.rotary_base, --rotary-base FLOAT", model)
        self.assertNotIn("--schedule.lr", model)
        self.assertIn("--schedule.lr, --lr FLOAT", everything)
        self.assertIn("one of all, model, parallel", run("train", "--help", "modle", code=2))

    def test_what_must_be_given_is_marked(self):
        text = help_of(("data", "preprocess"))
        for option in ["--input", "--tokenizer", "--output-prefix"]:
            self.assertRegex(text, rf"(?ms)^  {option} STRING(\.\.\.)?\s(?:(?!^  --).)*\(required\)")

    def test_each_choice_in_braces_is_taken_and_another_word_is_not(self):
        """Of a recipe: the choices of the help are those of the rules."""
        place = RunFolder()
        self.addCleanup(place.close)
        found = [(names.split(",")[0], choices.replace(",", ", ")) for names, choices in
                 re.findall(r"^  (--.*?) \{(\S+)\}", whole_help(("train",)), re.MULTILINE)]
        self.assertGreater(len(found), 15)
        own, of_recipe = ([each for each in found if ("." in each[0]) == recipe] for recipe in (False, True))
        for options in own, of_recipe:  # what is wrong with the words is said before the rules are looked at
            message = place.train("run", *(word for option, _ in options for word in (option, "nonesuch")), code=2)
            for option, choices in options:
                self.assertRegex(message, rf"(?m)^(--)?{re.escape(option[2:])} must be one of {re.escape(choices)}\.$")
        self.assertFalse((place.path / "run").exists())


if __name__ == "__main__":
    unittest.main()
