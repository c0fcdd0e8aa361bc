#!/usr/bin/env python3
"""No test label but gpu ran empty; which tests wanted trained models and had none. Usage: check_tests.py BUILD, after
ctest --output-junit tests.xml --test-output-size-passed 10000000 (GoogleTest programs count their tests in what they
print)."""
import collections
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests/testing"))
from program import MODELS  # noqa: E402

EXPECTED = {"pure", "torch", "ranks", "e2e", "interop"}


def wants_model(reason):
    """Whether that is why a test skipped itself: its reason names a folder of models that is absent."""
    reason = reason.replace("/tests/..", "")  # C++ tests name the folder from their own
    return any(str(MODELS) in line and "is not there" in line for line in reason.splitlines())


def tests_of(case):
    """(name, skipped, what it printed) of each test of a ctest entry: many of a GoogleTest program, else itself."""
    output = case.findtext("system-out") or ""
    ended = r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?),?(?: where .*)? \(\d+ ms\)$"
    tests, begin = [], 0
    for line in re.finditer(ended, output, re.MULTILINE):
        tests.append((line[2], line[1] == "SKIPPED", output[begin:line.start()]))
        begin = line.end()
    return tests or [(case.get("name"), case.get("status") not in ("run", "fail"), output)]


def main():
    build = sys.argv[1]
    listing = json.loads(subprocess.check_output(["ctest", "--test-dir", build, "--show-only=json-v1"]))
    labels = {test["name"]: next((p["value"] for p in test["properties"] if p["name"] == "LABELS"), [])
              for test in listing["tests"]}
    ran, skipped, without_model = collections.Counter(), collections.Counter(), []
    for case in xml.parse(f"{build}/tests.xml").getroot().iter("testcase"):
        for name, was_skipped, output in tests_of(case):
            if was_skipped and wants_model(output):
                without_model.append(name)
            for label in labels.get(case.get("name"), []):
                (skipped if was_skipped else ran)[label] += 1
    for label in sorted(EXPECTED | set(ran) | set(skipped)):
        print(f"label {label}: {ran[label]} ran, {skipped[label]} skipped")
    if without_model:
        print(f"skipped for want of trained models, which are not in {MODELS}",
              "(MEGATRON_MODELS=FOLDER names another; docs/interchange.md says which):",
              *sorted(without_model), sep="\n  ")
    empty = sorted(label for label in EXPECTED | set(skipped) if not ran[label] and label != "gpu")
    if empty:
        print("labels that ran nothing:", ", ".join(empty))
    return bool(empty)


if __name__ == "__main__":
    sys.exit(main())
