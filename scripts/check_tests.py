#!/usr/bin/env python3
"""No test label but gpu ran empty, and no test skipped itself for a reason that tests/allowed_skips.txt does not
have; it prints what was skipped and why, and what each failed test of a GoogleTest program said. Usage: check_tests.py
BUILD, after ctest --output-junit tests.xml --test-output-size-passed 10000000 (GoogleTest programs and unittest count
their tests in what they print)."""
import collections
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXPECTED = {"pure", "torch", "ranks", "e2e", "interop"}
AT_LEAST = {"interop": 50}
SANITIZED = {"build-asan": {"pure": 800, "ranks": 300, "torch": 50}, "build-tsan": {"ranks": 300},
             "build-tsan-models": {"ranks": 500}}  # parts, by tree
# cmake/Layers.cmake leaves these out under the thread sanitizer, which ends a forked process that starts threads, and
# finds nothing in one that starts none; they run in the other trees.
FORKS = ["KilledWhileSaving.*", "Kept/VerifyBesideARun.*", "Saver.AFullDisk*", "Launch.*",
         "Sizes/ContractBetweenProcesses.HoldsOverGloo/0", "Sizes/ContractBetweenProcesses.HoldsOverGloo/2"]
ENDED = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?),?(?: where .*)? \(\d+ ms\)$", re.MULTILINE)  # GoogleTest's


def allowed_reasons():
    """(expression, why) of each reason for which a test may skip itself."""
    lines = (ROOT / "tests/allowed_skips.txt").read_text().splitlines()
    return [(re.compile(expression.strip()), why.strip())
            for expression, why in (line.split("|", 1) for line in lines if line and not line.startswith("#"))]


def reason_of(output):
    """What a test said as it skipped itself: unittest's `skipped '…'`, or what GoogleTest prints after `Skipped`."""
    said = re.search(r"skipped ['\"](.*)['\"]", output) or re.search(r": Skipped\n(.*)", output)
    return said[1] if said else (output.strip().splitlines() or ["nothing said"])[-1]


def methods_of(name, output):
    """(name, skipped, what it printed) of each method of a class of unittest that ran with -v. A method may print
    between its name and its end."""
    begins = list(re.finditer(r"^(test_\w+) \(\S+\)(?:\n.*)? \.\.\. ", output, re.MULTILINE))
    ends = [following.start() for following in begins[1:]] + [len(output)]
    tests = []
    for line, end in zip(begins, ends):
        said = output[line.end():end]
        skipped = re.search(r"^(?:.*\.\.\. )?skipped ['\"](.*)['\"]$", said, re.MULTILINE)
        tests.append((f"{name}.{line[1]}", bool(skipped), said))
    return tests or [(name, "skipped=" in output, output)]


def tests_of(case):
    """(name, skipped, what it printed) of each test of a ctest entry: those of a GoogleTest program or a class of
    unittest, else itself."""
    output = case.findtext("system-out") or ""
    if re.match(r"(e2e|interop)\.", case.get("name")):
        return methods_of(case.get("name"), output)
    tests, begin = [], 0
    for line in ENDED.finditer(output):
        tests.append((line[2], line[1] == "SKIPPED", output[begin:line.start()]))
        begin = line.end()
    return tests or [(case.get("name"), case.get("status") not in ("run", "fail"), output)]


def print_failures(case):
    """What failed tests of a GoogleTest program said: its whole output is long, and logs are cut in their middle."""
    output, begin = case.findtext("system-out") or "", 0
    for line in ENDED.finditer(output):
        if line[1] == "FAILED":
            said = output[begin:line.start()].splitlines()[-60:]
            print(f"failed in {case.get('name')}: {line[0]}", *said, sep="\n  ")
        begin = line.end()


def main():
    build = sys.argv[1]
    listing = json.loads(subprocess.check_output(["ctest", "--test-dir", build, "--show-only=json-v1"]))
    if not any(test["name"].startswith("e2e.") for test in listing["tests"]):  # a part, under a sanitizer
        AT_LEAST.clear()
        AT_LEAST.update(SANITIZED[pathlib.Path(build).name])
        EXPECTED.clear()
        EXPECTED.update(AT_LEAST)
        if build.endswith("tsan"):
            print("left out under the thread sanitizer:", *FORKS)
    labels = {test["name"]: next((p["value"] for p in test["properties"] if p["name"] == "LABELS"), [])
              for test in listing["tests"]}
    ran, skipped, reasons = collections.Counter(), collections.Counter(), collections.defaultdict(list)
    for case in xml.parse(f"{build}/tests.xml").getroot().iter("testcase"):
        print_failures(case)
        for name, was_skipped, output in tests_of(case):
            if was_skipped:
                reasons[reason_of(output)].append(name)
            for label in labels.get(case.get("name"), []):
                (skipped if was_skipped else ran)[label] += 1
    for label in sorted(EXPECTED | set(ran) | set(skipped)):
        print(f"label {label}: {ran[label]} ran, {skipped[label]} skipped")
    allowed, wrong = allowed_reasons(), 0
    for reason, names in sorted(reasons.items()):
        why = next((why for expression, why in allowed if expression.search(reason)), None)
        wrong += why is None
        print(f"skipped {len(names)}: {reason} ({why or 'NOT in tests/allowed_skips.txt'}):", *sorted(names),
              sep="\n  ")
    few = [f"{label}: {ran[label]} ran, {least} are the least"
           for label, least in AT_LEAST.items() if ran[label] < least]
    if few:
        print(*few, sep="\n")
    empty = sorted(label for label in EXPECTED | set(skipped) if not ran[label] and label != "gpu")
    if empty:
        print("labels that ran nothing:", ", ".join(empty))
    return bool(empty or wrong or few)


if __name__ == "__main__":
    sys.exit(main())
