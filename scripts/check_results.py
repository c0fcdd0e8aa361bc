#!/usr/bin/env python3
"""Every result of a benchmark names its commit, machine, command and rounds: check_results.py [FOLDER].

bench/report.py writes such files: NAME_DATE_MACHINE.json, or .md with a table of the fields. Those of EARLIER were
written before that was demanded and stay as they are."""
import datetime
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EARLIER = {"2026-11-21_data_2-core-x86.md", "2026-11-21_foundation_2-core-x86.md", "2026-11-21_pipeline_2-core-x86.md",
           "2026-11-21_precision-and-checkpoints_2-core-x86.md", "2026-11-22_bert-t5-and-evaluation_2-core-x86.md",
           "2026-11-22_precision-and-checkpoints_2-core-x86.md", "2026-11-22_precision_2-core-amd.md",
           "2026-11-22_tokenizers-and-data_2-core-x86.md"}
NAME = re.compile(r"^([a-z0-9][a-z0-9-]*)_(\d{4}-\d{2}-\d{2})_([a-z0-9][a-z0-9.-]*)\.(json|md)$")
COMMIT = re.compile(r"^[0-9a-f]{40}$")
MACHINE = ("cpu", "cores", "memory_gb", "instruction_sets", "gpu")
LOAD = ("load_average_before", "others_share", "stolen_share", "quiet")


def is_date(text):
    try:
        return datetime.datetime.fromisoformat(str(text)).tzinfo is not None
    except ValueError:
        return False


def problems_of_fields(fields, name, day):
    """Problems of what both forms have."""
    if fields.get("name") != name:
        yield f"name is {fields.get('name')!r}, the file's is {name!r}"
    if not is_date(fields.get("date")) or not str(fields["date"]).startswith(day):
        yield f"date is {fields.get('date')!r}, not a time of {day} with its zone"
    if not COMMIT.match(str(fields.get("commit"))):
        yield f"commit is {fields.get('commit')!r}, not 40 hexadecimal digits"
    if not str(fields.get("command") or "").strip(" `"):
        yield "command is empty"
    if not re.match(r"^[1-9]\d*$", str(fields.get("rounds"))):
        yield f"rounds is {fields.get('rounds')!r}, not 1 or more"


def problems_of_json(fields, name, day):
    yield from problems_of_fields(fields, name, day)
    for field, wanted in (("machine", MACHINE), ("load", LOAD)):
        given = fields.get(field)
        missing = [key for key in wanted if key not in given] if isinstance(given, dict) else wanted
        if missing:
            yield f"{field} is missing {', '.join(missing)}"
    if fields.get("quick") is not False:
        yield "quick is not false: the short form is no result"
    if not isinstance(fields.get("changed"), list):
        yield "changed does not list the files that differed from the commit"
    rows = fields.get("rows")
    if not rows or not isinstance(rows, list):
        yield "no rows"
        return
    for row in rows:
        if not row.get("what") or not isinstance(row.get("ours"), (int, float)):
            yield f"a row without what or ours: {row}"
        if "goal" in row and "met" not in row:
            yield f"{row.get('what')}: a goal, and not whether it is met"
        noisy = isinstance(fields.get("load"), dict) and not fields["load"].get("quiet")
        if noisy and row.get("timed", True) and row.get("met") is not None:
            yield f"{row.get('what')}: a goal of time judged on a busy machine"


def fields_of_markdown(text):
    """The table of two columns that such a file begins with."""
    rows = re.findall(r"^\| *([a-z ]+?) *\| *(.*?) *\|$", text.split("\n\n")[1] if "\n\n" in text else "", re.MULTILINE)
    return dict(rows)


def problems_of(path):
    match = NAME.match(path.name)
    if not match:
        yield "not named NAME_DATE_MACHINE.json or .md"
        return
    name, day, _, ending = match.groups()
    if ending == "md":
        fields = fields_of_markdown(path.read_text(encoding="utf-8"))
        yield from problems_of_fields(fields, name, day)
        if not fields.get("machine"):
            yield "machine is empty"
        return
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        yield f"no JSON: {error}"
        return
    yield from problems_of_json(fields, name, day)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "bench/results")
    files = sorted(path for path in folder.iterdir() if path.name not in EARLIER)
    problems = [f"{path.name}: {problem}" for path in files for problem in problems_of(path)]
    if problems:
        problems.append("fix: write results by bench/report.py (bench/README.md)")
    print("\n".join([*problems, f"results: {len(files)} files with fields"]))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
