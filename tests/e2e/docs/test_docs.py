"""Pages that the program writes are as it writes them, and the page from Megatron-LM is true."""
import json
import pathlib
import re
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import RunFolder, run  # noqa: E402

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"


def section(page, title):
    return re.split(r"\n##+ ", re.split(rf"\n##+ {title}\n", page)[1])[0]


def rows(table):
    """The rows of a Markdown table, without the head."""
    lines = [line for line in table.splitlines() if line.startswith("| `--")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


class Pages(unittest.TestCase):
    maxDiff = None

    def test_the_generated_pages_are_those_of_this_program(self):
        for job, page in [("config", "config.md"), ("megatron-lm", "from_megatron_lm.md")]:
            self.assertEqual(run("docs", job), (DOCS / page).read_text(), f"make docs writes {page} again")


class FromMegatron(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = (DOCS / "from_megatron_lm.md").read_text()
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.help = run("train", "--help", "all")

    def test_the_command_of_the_page_means_what_it_says(self):
        block = section(self.page, "Keep the command").split("$ cat arguments.txt\n")[1]
        words, plan = block.split("$ megatron plan --megatron-args arguments.txt --program pretrain_gpt\n")
        arguments = self.place.path / "arguments.txt"
        arguments.write_text(words)
        out = run("plan", "--megatron-args", arguments, "--program", "pretrain_gpt")
        for line in plan.split("```")[0].splitlines():
            if line != "…":
                self.assertIn(line + "\n", out)
        recipe = self.place.path / "of_arguments.toml"
        recipe.write_text(out)
        planned = run("plan", recipe, "--device", "cpu", "--parallel.backend", "auto", "--vocab-size", 1000, "--json")
        self.assertGreater(json.loads(planned)["parameters"], 0)

    def test_flags_that_are_not_here_are_refused_in_one_error(self):
        found = re.findall(r"`(--fault-injector[\w-]+)`", section(self.page, "Flags that are refused"))
        self.assertGreater(len(found), 5)
        arguments = self.place.path / "refused.txt"
        arguments.write_text(" ".join(f"{flag} 77" for flag in found))
        message = run("plan", "--megatron-args", arguments, code=2)
        listed = "\n        ".join(f"{flag} 77 (injects faults)" for flag in found)
        self.assertIn(f"pretrain_gpt: these options need what is not here.\n  got:  {listed}\n", message)

    def test_accepted_flags_are_options_of_train(self):
        found = rows(section(self.page, "Accepted under Megatron-LM's name"))
        self.assertGreater(len(found), 90)
        for flags, option, *_ in found:
            head = re.search(rf"(?m)^  --{re.escape(option.strip('`'))}\b.*", self.help)[0]
            for flag in re.findall(r"--[\w-]+", flags):
                self.assertIn(flag, head)

    def test_switches_are_accepted_and_mean_what_the_page_says(self):
        empty = self.place.path / "empty.toml"
        empty.write_text("")
        for switch, words in rows(section(self.page, "Switches that stand for other options")):
            option, value = words.strip("`").split()[:2]
            other = {"true": "false", "false": "true"}.get(value, "9" if value.isdigit() else "nonesuch")
            message = run("train", empty, switch.strip("`"), option, other, code=2)
            self.assertIn(f"both say {option[2:]}.\n  got:  {switch.strip('`')} and {option}", message)

    def test_refused_flags_are_refused_with_the_fix_of_the_page(self):
        found = rows(section(self.page, "Refused, with what to write instead"))
        self.assertGreater(len(found), 30)
        message = run("plan", self.place.recipe, *(flag.strip("`") for flag, _ in found), code=2)
        self.assertEqual(message.count("this flag of Megatron-LM is not supported."), len(found))
        for flag, fix in found:
            self.assertIn(f"  got:  {flag.strip('`')}\n", message)
            self.assertIn(fix.removeprefix("leave it out"), message)


if __name__ == "__main__":
    unittest.main()
