#!/usr/bin/env python3
"""No test label but gpu ran empty. Usage: check_tests.py BUILD, after ctest --output-junit tests.xml."""
import collections
import json
import subprocess
import sys
import xml.etree.ElementTree as xml

EXPECTED = {"pure", "torch", "ranks", "e2e", "interop"}


def main():
    build = sys.argv[1]
    listing = json.loads(subprocess.check_output(["ctest", "--test-dir", build, "--show-only=json-v1"]))
    labels = {test["name"]: next((p["value"] for p in test["properties"] if p["name"] == "LABELS"), [])
              for test in listing["tests"]}
    ran, skipped = collections.Counter(), collections.Counter()
    for case in xml.parse(f"{build}/tests.xml").getroot().iter("testcase"):
        for label in labels.get(case.get("name"), []):
            (ran if case.get("status") in ("run", "fail") else skipped)[label] += 1
    for label in sorted(EXPECTED | set(ran) | set(skipped)):
        print(f"label {label}: {ran[label]} ran, {skipped[label]} skipped")
    empty = sorted(label for label in EXPECTED | set(skipped) if not ran[label] and label != "gpu")
    if empty:
        print("labels that ran nothing:", ", ".join(empty))
    return bool(empty)


if __name__ == "__main__":
    sys.exit(main())
