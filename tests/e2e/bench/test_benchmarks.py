"""What results of benchmarks must say, the table made from them, and the run of them all. None of it measures."""
import contextlib
import importlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "tests/testing"), str(ROOT / "bench")]
from program import run  # noqa: E402

report = importlib.import_module("report")
run_all = importlib.import_module("run_all")


def a_report(folder, name="some-step", quiet=True):
    arguments = report.parse(report.options("", rounds=3), ["--results", str(folder)])
    made = report.Report(name, "Some step", arguments)
    made.load.measured = lambda: {"load_average_before": 0.1, "others_share": 0.0 if quiet else 0.4,
                                  "stolen_share": 0.0, "quiet": quiet}
    return made


def check(folder):
    done = subprocess.run([sys.executable, ROOT / "scripts/check_results.py", folder], capture_output=True, text=True)
    return done.returncode, done.stdout


class Silent(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="megatron-bench-")
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)
        self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))


class Results(Silent):
    def test_written_result_has_all_fields(self):
        made = a_report(self.folder)
        made.add("step", [20, 30, 40], "tokens/s", [10, 20, 10], "peer", at_least=1.4)
        made.add("time", [1, 2, 4], "s", [2, 2, 12], "peer", inverse=True, at_least=3)
        path = made.write()
        fields = json.loads(path.read_text())
        rate, seconds = fields["rows"]
        self.assertEqual((rate["ours"], rate["peer"], rate["ratio"], rate["range"], rate["rounds"], rate["met"]),
                         (30, 10, 3, [1.5, 4], 3, True))
        self.assertEqual((seconds["ratio"], seconds["range"], seconds["met"]), (1, [1, 3], False))
        self.assertEqual(path.name, f"some-step_{fields['date'][:10]}_{report.machine_name(fields['machine'])}.json")
        self.assertEqual(fields["rounds"], 3)
        if subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True).returncode == 0:
            self.assertEqual(check(self.folder)[0], 0, check(self.folder)[1])

    def test_goal_of_time_is_not_judged_on_a_busy_machine(self):
        made = a_report(self.folder, quiet=False)
        made.add("step", [30], "tokens/s", [10], "peer", at_least=1.4)
        made.add("memory", [30], "MB", [10], "peer", at_most=0.8, timed=False)
        self.assertEqual([row["met"] for row in made.finish()["rows"]], [None, False])

    def test_rounds_that_are_not_pairs_are_no_row(self):
        with self.assertRaises(ValueError):
            a_report(self.folder).add("step", [1, 2], "s", [1], "peer")

    def test_load_is_what_is_left_of_the_processors_time(self):
        load, cores = report.Load(), os.cpu_count() or 1
        load.start, load.begin = (100.0, 5.0, 20.0), time.perf_counter() - 1000
        load.now = lambda: (100.0 + 600 * cores, 5.0 + 10 * cores, 20.0 + 400 * cores)
        measured = load.measured()
        self.assertEqual((measured["others_share"], measured["stolen_share"], measured["quiet"]), (0.2, 0.01, False))
        load.now = lambda: (100.0 + 410 * cores, 5.0, 20.0 + 400 * cores)
        self.assertTrue(load.measured()["quiet"])

    def test_processor_time_of_what_a_benchmark_started_is_its_own(self):
        before = report.Load.now()
        subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 1: pass"], check=True)
        after = report.Load.now()
        self.assertGreaterEqual(after[2] - before[2], 0.99)
        self.assertGreaterEqual(after[0] - before[0], 0.9)  # the processors' clock ticks 100 times a second

    def test_machine_paths_do_not_get_into_commands(self):
        self.assertEqual(report.relative(str(ROOT / "build/megatron")), "build/megatron")
        self.assertEqual(report.relative("/some/where/text.jsonl"), "text.jsonl")
        self.assertEqual(report.relative("--rounds"), "--rounds")

    def test_markdown_of_a_command_is_a_result(self):
        words = [sys.executable, ROOT / "bench/report.py", "layouts", "Some layouts", "--results", self.folder,
                 "--rounds", "2", "--", "sh", "-c", "echo '| a |'"]
        done = subprocess.run(words, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        path, = self.folder.iterdir()
        self.assertIn("| rounds | 2 |", path.read_text())
        self.assertIn("| command | `sh -c 'echo '\"'\"'| a |'\"'\"''` |", path.read_text())
        self.assertIn("\n| a |\n", path.read_text())
        failing = subprocess.run([*words[:-1], "echo half; exit 3"], capture_output=True)
        self.assertEqual(failing.returncode, 3)


class Check(Silent):
    """Each field that is taken out of a good result is missed."""

    def setUp(self):
        super().setUp()
        made = a_report(self.folder)
        made.fields["commit"] = "0123456789abcdef0123456789abcdef01234567"
        made.add("step", [20], "tokens/s", [10], "peer", at_least=1.4)
        self.path = made.write()
        self.good = json.loads(self.path.read_text())

    def assert_refused(self, changes, said):
        self.path.write_text(json.dumps(self.good | changes))
        code, text = check(self.folder)
        self.assertEqual(code, 1, f"{changes} pass")
        self.assertIn(said, text)

    def test_good_one_passes(self):
        self.assertEqual(check(self.folder)[0], 0, check(self.folder)[1])

    def test_each_field_is_demanded(self):
        for changes, said in (({"commit": "unknown"}, "commit"), ({"commit": None}, "commit"),
                              ({"machine": {}}, "machine"), ({"machine": None}, "machine"),
                              ({"command": ""}, "command"), ({"rounds": 0}, "rounds"),
                              ({"rounds": None}, "rounds"), ({"date": "2020-01-01T00:00:00+00:00"}, "date"),
                              ({"load": None}, "load"), ({"quick": True}, "short form"), ({"rows": []}, "rows"),
                              ({"name": "other"}, "name"), ({"changed": None}, "changed")):
            with self.subTest(changes):
                self.assert_refused(changes, said)

    def test_goal_judged_on_a_busy_machine_is_refused(self):
        self.assert_refused({"load": self.good["load"] | {"quiet": False}}, "busy")

    def test_file_of_another_name_is_refused(self):
        self.path.rename(self.path.with_name("2026-11-21_step.md"))
        code, text = check(self.folder)
        self.assertEqual(code, 1)
        self.assertIn("not named", text)

    def test_markdown_without_fields_is_refused(self):
        self.path.unlink()
        (self.folder / "step_2026-11-25_2-core.md").write_text("# Step\n\n| a | b |\n|--|--|\n| fast | yes |\n")
        code, text = check(self.folder)
        self.assertEqual(code, 1)
        for field in ("commit", "machine", "command", "rounds"):
            self.assertIn(field, text)


class Table(Silent):
    def table(self, *options):
        page = self.folder / "page.md"
        if not page.exists():
            page.write_text("# Page\n\n<!-- generated by scripts/performance.py: begin -->\n"
                            "<!-- generated by scripts/performance.py: end -->\nafter\n")
        done = subprocess.run([sys.executable, ROOT / "scripts/performance.py", "--results", self.folder / "results",
                               "--page", page, *options], capture_output=True, text=True)
        return done.returncode, page.read_text()

    def test_newest_of_each_is_shown(self):
        (self.folder / "results").mkdir()
        for day, ours in (("2026-01-02", 11), ("2026-01-03", 23), ("2026-01-01", 37)):
            made = a_report(self.folder / "results")
            made.add("step", [ours] * 3, "tokens/s", [10] * 3, "peer", at_least=1.4)
            fields = made.finish() | {"date": f"{day}T00:00:00+00:00", "commit": "c" * 40, "changed": []}
            (self.folder / f"results/some-step_{day}_{report.machine_name(fields['machine'])}.json").write_text(
                json.dumps(fields))
        code, text = self.table()
        self.assertEqual(code, 0)
        self.assertIn("| step | 23 tokens/s | 10 tokens/s, peer | 2.30 x | ≥ 1.4 x | met |", text)
        self.assertEqual(text.count("| step |"), 1)
        self.assertTrue(text.startswith("# Page\n") and text.endswith("after\n"))
        self.assertEqual(self.table("--check")[0], 0)
        newer, = (self.folder / "results").glob("*2026-01-03*")
        newer.write_text(newer.read_text().replace("23", "12"))
        code, unchanged = self.table("--check")
        self.assertEqual((code, unchanged), (1, text))

    def test_busy_machine_is_told(self):
        made = a_report(self.folder / "results", quiet=False)
        made.add("step", [30] * 3, "tokens/s", [10] * 3, "peer", at_least=1.4)
        made.write()
        _, text = self.table()
        self.assertIn("others took 40% of the processors", text)
        self.assertIn("| not judged |", text)
        self.assertNotIn("| met |", text)


class RunAll(Silent):
    """Benchmarks that only end in the one way or the other."""

    def run_these(self, *scripts, limit_s=60):
        found = []
        for name, code in scripts:
            path = self.folder / f"{name}.py"
            path.write_text(code)
            found.append(run_all.Benchmark(name, [str(path)], 1, 1))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            ends = run_all.run_all(found, True, str(self.folder), limit_s, self.folder)
            failed = run_all.summary(ends)
        return failed, ends, out.getvalue()

    def test_a_failure_stops_no_other_and_is_told_at_the_end(self):
        failed, ends, text = self.run_these(
            ("bench-a", "raise SystemExit('no disk')"), ("bench-b", f"open({str(self.folder / 'ran')!r}, 'w')"),
            ("bench-c", "print('skipped: no GPU\\n  fix:  another machine')\nraise SystemExit(77)"))
        self.assertTrue(failed)
        self.assertEqual([end[:2] for end in ends],
                         [("bench-a", "failed"), ("bench-b", "done"), ("bench-c", "skipped")])
        self.assertTrue((self.folder / "ran").exists())
        self.assertIn("no disk", text)
        self.assertIn("[2/3] bench-b", text)
        self.assertRegex(text, r"failed +bench-a +exit code 1")
        self.assertRegex(text, r"skipped +bench-c +no GPU")
        self.assertIn("1 done, 1 skipped, 1 failed", text)

    def test_none_failed(self):
        self.assertFalse(self.run_these(("bench-a", ""))[0])

    def test_one_that_hangs_is_ended_with_all_that_it_started(self):
        child = self.folder / "child"
        failed, ends, _ = self.run_these(("bench-a", f"""
import pathlib, subprocess, sys, time
pathlib.Path({str(child)!r}).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
time.sleep(600)"""), limit_s=15)
        self.assertTrue(failed)
        self.assertIn("did not end within 15 s", ends[0][2])
        with self.assertRaises(ProcessLookupError):
            for _ in range(100):  # until its new parent has waited for it
                os.kill(int(child.read_text()), 0)
                time.sleep(0.1)

    def test_every_benchmark_of_the_list_is_a_file_and_tells_its_options(self):
        listed = list(run_all.benchmarks())
        self.assertEqual(len({each.name for each in listed}), len(listed))
        named = {each.words[0] for each in listed} | {word.split("/")[-1] for each in listed for word in each.words}
        scripts = {path.name for path in (ROOT / "bench").iterdir()
                   if path.suffix in (".py", ".sh")} - {"run_all.py", "run_all.sh", "setup.sh"}
        self.assertEqual(scripts - named, set(), "run_all.py does not run these")


class CheckpointStreams(unittest.TestCase):
    def test_the_disk_is_what_several_streams_give(self):
        with tempfile.TemporaryDirectory(prefix="megatron-bench-") as folder:
            found = json.loads(run("bench", "checkpoint", "--recipe", ROOT / "configs/gpt_tiny.toml", "--folder",
                                   folder, "--streams", 1, 3, "--repeats", 2, "--json"))
            for kind in ("write", "read"):
                rates = found[f"{kind}_direct_gb_s_by_streams"]
                self.assertEqual(list(rates), ["1", "3"])
                self.assertEqual(found[f"{kind}_direct_gb_s"], max(rates.values()))
            self.assertAlmostEqual(found["load_split_cold_vs_read"],
                                   found["load_split_cold_gb_s"] / found["read_direct_gb_s"])
            self.assertAlmostEqual(found["save_vs_write_direct"], found["save_gb_s"] / found["write_direct_gb_s"])
            self.assertEqual(os.listdir(folder), [])

    def test_numbers_of_streams_are_looked_at(self):
        for streams in ([0], [1, 300]):
            self.assertIn("fix:  --streams 1 2 4 8", run("bench", "checkpoint", "--streams", *streams, code=2))


if __name__ == "__main__":
    unittest.main()
