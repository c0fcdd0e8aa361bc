#!/usr/bin/env python3
"""No test label but gpu ran empty; which tests wanted trained models and had none. Usage: check_tests.py BUILD, after
ctest --output-junit tests.xml."""
import collections
import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as xml

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests/testing"))
from program import MODELS  # noqa: E402

EXPECTED = {"pure", "torch", "ranks", "e2e", "interop"}


def wants_model(output):
    """Whether that is why a test skipped itself: its reason names a folder of models that is absent."""
    lines = output.replace("/tests/..", "").splitlines()  # C++ tests name the folder from their own
    return any(str(MODELS) in line and "is not there" in line for line in lines)


def main():
    build = sys.argv[1]
    listing = json.loads(subprocess.check_output(["ctest", "--test-dir", build, "--show-only=json-v1"]))
    labels = {test["name"]: next((p["value"] for p in test["properties"] if p["name"] == "LABELS"), [])
              for test in listing["tests"]}
    ran, skipped, without_model = collections.Counter(), collections.Counter(), []
    for case in xml.parse(f"{build}/tests.xml").getroot().iter("testcase"):
        if case.get("status") not in ("run", "fail") and wants_model(case.findtext("system-out") or ""):
            without_model.append(case.get("name"))
        for label in labels.get(case.get("name"), []):
            (ran if case.get("status") in ("run", "fail") else skipped)[label] += 1
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
