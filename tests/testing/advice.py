"""The errors of the program as data: rule, got and fix, and a command line after what a fix says was done to it."""
import functools
import os
import pathlib
import re
import shlex
import subprocess

MEGATRON = os.environ.get("MEGATRON", str(pathlib.Path(__file__).resolve().parents[2] / "build/megatron"))
GROUPS = {"tokenizer", "data", "eval", "checkpoint", "bench", "docs"}  # whose jobs have two names
# What a fix may leave open, in capitals, and what the tests put there. Some depend on the option.
PLACEHOLDERS = {"FILE", "FOLDER", "PREFIX", "TEXT", "DIR", "RECIPE", "RECIPE.toml", "FROM", "TO", "FIRST", "SECOND",
                "P", "A", "B", "Q", "N", "K"}
_options = {}


class Violation:
    def __init__(self, rule):
        self.rule, self.got, self.fix = rule, None, None

    def __repr__(self):
        return f"{self.rule}\n  got:  {self.got}\n  fix:  {self.fix}"


def violations(message):
    """The broken rules of an error as it is printed. What has no got or fix keeps None there."""
    found, part = [], "fix"
    for line in message.splitlines():
        if not line or re.match(r"(note|warning): ", line):
            continue
        if line.startswith("  got:  ") and found:
            part, found[-1].got = "got", line[8:]
        elif line.startswith("  fix:  ") and found:
            part, found[-1].fix = "fix", line[8:]
        elif part != "rule" and not line.startswith("  "):
            part = "rule"
            found.append(Violation(line))
        elif found:
            setattr(found[-1], part, getattr(found[-1], part) + "\n" + line)
    return found


def job_of(words):
    """The name of the job that a command line calls, of one word or two."""
    words = [str(word) for word in words]
    return tuple(words[:2] if words and words[0] in GROUPS and len(words) > 1 else words[:1])


def normal(name):
    return name.removeprefix("--").replace("_", "-")


@functools.cache
def help_of(job, *topic):
    """What a job prints for --help; nothing where that is an error."""
    result = subprocess.run([os.path.abspath(MEGATRON), *job, "--help", *topic], capture_output=True, text=True,
                            timeout=60)
    return result.stdout if result.returncode == 0 else ""


def whole_help(job):
    """What a job prints about all its options; of a few it says all without being asked for it."""
    text = help_of(job)
    return help_of(job, "all") if "\n--help all lists every option" in text else text


def options_of(job):
    """The options of a job by each of their names, each a set of all its names, from its help."""
    if job not in _options:
        by_name = {"help": {"help"}}
        for line in whole_help(job).splitlines():
            if not re.match(r"\s+--[a-z]", line):
                continue
            head = re.split(r"\s{2,}|(?<=[\w-])\s(?=[A-Z(\[{])", line.strip())[0]
            names = {normal(name) for name in re.findall(r"--([a-zA-Z][\w.-]*)", head)}
            for name in names:
                by_name[name] = names
        _options[job] = by_name
    return _options[job]


def names_of(option, job):
    """All names of an option that was typed as `option`; empty where the job has none so called."""
    known, name = options_of(job), normal(option.split("=")[0])
    if name in known:
        return known[name]
    return known.get(name.removeprefix("no-"), set()) if name.startswith("no-") else set()


def unknown_options(text, job):
    """Options that a fix names and its job does not have. Those after the name of another job are that job's."""
    unknown = []
    text = re.sub(r" -- (?=[a-z])", " megatron ", text)  # what another job is given to run
    for part in re.split(r"(?=\bmegatron [a-z])", re.sub(r"\[[^\]]*\]", "", text)):  # without what is optional
        words = re.findall(r"[\w.-]+", part)
        of = job
        if part.startswith("megatron "):
            of = job_of(words[1:])
            of = of if options_of(of).keys() > {"help"} else job_of(words[1:2])
        unknown += [name for name in re.findall(r"(?<![\w-])--[a-zA-Z][\w.-]*", part)
                    if not names_of(name.rstrip("."), of)]
    return unknown


class Amendment:
    def __init__(self, words=(), left_out=()):
        self.words, self.left_out = list(words), list(left_out)


def amendment(fix):
    """What a fix says to type: options at its beginning, or `leave X and Y out`; None for prose."""
    lexer = shlex.shlex(fix, posix=True, punctuation_chars="")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # an apostrophe of prose
        words = fix.split()
    if words and words[0] == "leave":
        out = []
        for word in words[1:]:
            word = word.rstrip(",;")
            if word == "out":
                return Amendment(left_out=out)
            if word != "and":
                out.append(word)
        return None
    if not words or not words[0].startswith("--"):
        return None
    taken = []
    for word in words:
        if word in ("or", "and") or word.startswith("("):
            break
        end = word[-1:] in (",", ";")
        taken.append(word[:-1] if end else word)
        if end:
            break
    return Amendment(taken)


def commands(fix):
    """The command lines of the program that a fix names, with what they are about, each up to where its prose begins:
    its job, options with a value each, and what stands for a file."""
    found = []
    if fix.startswith("one of\n"):  # jobs, each with a line about it
        return found
    for part in re.split(r"(?=\bmegatron [a-z])", re.sub(r"\[[^\]]*\]", "", fix))[1:]:  # without what is optional
        words = part.split()[1:]
        job = job_of(words)
        if len(job) == 2 and not options_of(job).keys() > {"help"}:
            job = job[:1]
        taken, rest = list(job), words[len(job):]
        for at, word in enumerate(rest):
            before = rest[at - 1] if at else ""
            if not (word.startswith("--") or before.startswith("--") or word.rstrip(";,.") in PLACEHOLDERS):
                break
            taken.append(word.rstrip(";,."))
            if word[-1] in ";,.":
                break
        if len(taken) > len(job):  # no more than the name of a job
            found.append(taken)
    return found


def contradictions(words, found):
    """Options to which the fixes of one message give two values."""
    values = {}
    for violation in found:
        change = amendment(violation.fix) if violation.fix else None
        for at, word in enumerate(change.words if change else []):
            if word.startswith("--"):
                name = frozenset(names_of(word, job_of(words))) or word
                following = [other for other in change.words[at + 1:at + 2] if not other.startswith("--")]
                if PLACEHOLDERS & set(following):
                    continue
                values.setdefault(name, set()).add(tuple(following) if "=" not in word else word.split("=")[1])
    return [sorted(name)[0] if isinstance(name, frozenset) else name
            for name, given in values.items() if len(given) > 1]


def amended(words, change, fill):
    """The command line `words` with what an Amendment says. `fill(option, placeholder)`: what is put where a fix leaves
    something open."""
    job, words = job_of(words), [str(word) for word in words]
    result, skipped = [], False
    removed = [names_of(option, job) or {normal(option)} for option in [*change.left_out, *change.words]
               if option.startswith("--")]
    plain = [word for word in change.left_out if not word.startswith("--")]
    for word in words:
        if word.startswith("--") and len(word) > 2:
            names = names_of(word, job) or {normal(word.split("=")[0])}
            skipped = any(names & other for other in removed)
        if not skipped and word not in plain:
            result.append(word)
    option = ""
    for word in change.words:
        option = word if word.startswith("--") else option
        result.append(str(fill(option, word)) if word in PLACEHOLDERS else word)
    return result


def complaints(words, message):
    """What is wrong with the form of an error that the command line `words` has given."""
    found = violations(message)
    problems = [] if found else [f"no rule in: {message!r}"]
    for violation in found:
        if not violation.got or not violation.fix:
            problems.append(f"without got or fix: {violation}")
        else:
            if violation.fix.startswith("one of\n"):
                continue  # a list of jobs
            unknown = [option for option in unknown_options(violation.fix, job_of(words))
                       if option not in violation.got]  # such are to be left out
            job = " ".join(job_of(words))
            if "----" in violation.fix:
                problems.append(f"dashes twice: {violation}")
            problems += [f"{option} is no option of megatron {job}: {violation}" for option in unknown]
    return problems
