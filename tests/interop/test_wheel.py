"""The wheel: built from the program that is there, installed into a new environment that has libtorch and no compiler,
it runs the commands of docs/python.md. What it reads of checkpoints is what the safetensors package reads."""
import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from peers import peers  # noqa: E402
from program import MEGATRON  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/python.md").read_text()
numpy, safetensors, torch, MISSING = peers("numpy", "safetensors.numpy", "torch")


def run(*words, code=0, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, encoding="utf-8", errors="replace",
                          timeout=300, **options)
    if done.returncode != code:
        raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout if code == 0 else done.stderr


@unittest.skipIf(MISSING, MISSING)
class Wheel(unittest.TestCase):
    """One method, as ctest runs each by itself: they share what is installed."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-wheel-test-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def test_a_wheel_serves_a_machine_without_a_compiler(self):
        for look in (self.it_says_what_it_needs, self.it_is_installed, self.the_page_runs,
                     self.the_program_stands_alone, self.weights_are_those_of_the_files,
                     self.damaged_weights_are_refused, self.shims_become_the_program, self.errors_say_what_to_do):
            with self.subTest(look.__name__):
                look()

    def it_says_what_it_needs(self):
        run(ROOT / "scripts/make_wheel.py", pathlib.Path(MEGATRON).resolve().parent, self.path)
        self.wheel = next(self.path.glob("megatron_cpp-*-py3-none-manylinux_2_*_x86_64.whl"))
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            metadata = email.message_from_bytes(archive.read(next(n for n in names if n.endswith("/METADATA"))))
        self.assertEqual(metadata["Requires-Dist"], "torch==2.11.0")
        self.assertFalse([name for name in names if re.search(r"lib(torch|c10|gomp|c|stdc\+\+)[._]", name)])

    def it_is_installed(self):
        """Torch is not downloaded again: the new environment finds the one that the program was built with, and what
        this test compares with, as neighbours."""
        venv.create(self.path / "env")
        self.python = self.path / "env/bin/python"
        self.site = next(self.path.glob("env/lib/python3*/site-packages"))
        run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python, "install",
            "--no-index", "--no-deps", self.wheel)
        torch_folder = pathlib.Path(torch.__file__).parent
        for neighbour in (torch_folder, torch_folder.parent / "nvidia"):
            if neighbour.exists():
                (self.site / neighbour.name).symlink_to(neighbour)
        for package in ("numpy", "numpy.libs"):
            (self.site / package).symlink_to(pathlib.Path(numpy.__file__).parents[1] / package)
        # Neither the sources nor a compiler: of PATH only the new environment and what every system has.
        tools = self.path / "tools"
        tools.mkdir()
        for tool in ("sh", "cp", "uname"):
            (tools / tool).symlink_to(shutil.which(tool))
        self.environment = {"PATH": f"{self.path}/env/bin:{tools}", "HOME": str(self.path), "LANG": "C.UTF-8"}
        self.work = self.path / "work"
        self.work.mkdir()
        self.run_folder = self.work / "runs/mine"
        (self.work / "text.txt").write_text("\n\n".join(
            (ROOT / "docs" / name).read_text() for name in ("tour.md", "data.md", "launching.md")))

    def the_page_runs(self):
        shell = re.search(r"```sh\n(.*?)```", PAGE, re.S)[1]
        run("/bin/sh", "-euc", shell, cwd=self.work, env=self.environment)
        python = re.search(r"```python\n(.*?)```", PAGE, re.S)[1]
        (self.work / "page.py").write_text(python)
        printed = run(self.python, "page.py", cwd=self.work, env=self.environment).splitlines()
        self.assertIn("resumed from runs/mine", "\n".join(printed))
        self.assertRegex(printed[-4], r"^\d\.\d+$")
        self.assertRegex(printed[-2], r"^\[[\d, ]+\] The text$")
        self.assertGreater(int(printed[-1].split()[1]), 2e6)

    def the_program_stands_alone(self):
        """Its run path leads to the neighbour torch, and to the libraries that it brought."""
        program = self.site / "megatron_cpp/bin/megatron"
        self.assertIn("2.11.0", run(program, "doctor", "--json", env={"PATH": ""}))
        self.assertIn("activation", run(program, "doctor", "--operators", env={"PATH": ""}))
        self.assertNotIn("libtorch", run("ldd", program))
        loaded = run("ldd", self.site / "megatron_cpp/lib/megatron/megatron-torch")
        for name in ("libsodium", "libsentencepiece", "libsimdjson"):
            self.assertRegex(loaded, rf"{name}[^=]*=> {re.escape(str(self.site))}/")

    def weights_are_those_of_the_files(self):
        sys.path.append(str(self.site))
        import megatron_cpp
        self.package = megatron_cpp
        run(MEGATRON, "checkpoint", "reshard", self.run_folder, self.path / "whole", "--weights-only")
        files = list((self.path / "whole").rglob("*.safetensors"))
        truth = {name: tensor for file in files for name, tensor in safetensors.load_file(file).items()}
        read = megatron_cpp.load_weights(self.run_folder, framework="numpy")
        self.assertEqual(sorted(read), sorted(truth))
        for name, tensor in truth.items():
            self.assertTrue(numpy.array_equal(read[name], tensor), name)
        run(MEGATRON, "checkpoint", "reshard", self.run_folder, self.path / "half", "--files", 3, "--dtype", "bf16",
            "--weights-only")
        half = megatron_cpp.load_weights(self.path / "half")
        as_numpy = megatron_cpp.load_weights(self.path / "half", framework="numpy")
        for name, tensor in truth.items():
            expected = torch.from_numpy(tensor).to(torch.bfloat16)
            self.assertTrue(torch.equal(half[name], expected), name)
            self.assertTrue(numpy.array_equal(as_numpy[name], expected.float().numpy()), name)
        self.assertEqual(sorted(megatron_cpp.load_weights(files[0])), sorted(safetensors.load_file(files[0])))
        several = [megatron_cpp.generate(self.run_folder, prompts, max_new_tokens=4, temperature=0)
                   for prompts in (["The", "--a -b"], "The")]
        self.assertEqual(several[0][0], several[1])
        with_moments = megatron_cpp.load_weights(self.run_folder, framework="numpy", optimizer=True)
        self.assertIn("optimizer.exp_avg." + sorted(truth)[0], with_moments)

    def damaged_weights_are_refused(self):
        manifest = next((self.path / "whole").rglob("manifest.json"))
        file = next((self.path / "whole").rglob("*.safetensors"))
        whole, data = manifest.read_text(), file.read_bytes()
        for wrong in (whole[:len(whole) // 2], whole.replace('"begin":', '"begin":9999999999', 1),
                      whole.replace('"F32"', '"F99"', 1), whole.replace('"file":0', '"file":7', 1),
                      re.sub(r'("shape":\[)(\d+)', r"\g<1>9\2", whole, count=1)):
            manifest.write_text(wrong)
            with self.assertRaises(self.package.MegatronError, msg=wrong[:100]):
                self.package.load_weights(self.path / "whole", framework="numpy")
        manifest.write_text(whole)
        for wrong in (b"", data[:7], b"\xff" * 8 + data[8:], data[:len(data) // 2], data[:8] + b"[" + data[9:]):
            file.write_bytes(wrong)
            for path in (file, self.path / "whole"):
                if path == file or len(wrong) < len(data):
                    with self.assertRaises(self.package.MegatronError):
                        self.package.load_weights(path, framework="numpy")
        file.write_bytes(data)
        self.package.load_weights(self.path / "whole", framework="numpy")

    def shims_become_the_program(self):
        folder = pathlib.Path(run(self.python, "-c", "import megatron_cpp as m; print(m.shims())",
                                  env=self.environment).strip())
        scripts = [path for path in (ROOT / "shims").glob("*.py") if path.name != "run_megatron.py"]
        for script in scripts:
            said = run(self.python, folder / script.name, "--no-such-flag", code=2, env=self.environment)
            self.assertIn("fix:", said)

    def errors_say_what_to_do(self):
        said = run(self.path / "env/bin/megatron", "train", "nosuch.toml", code=2, env=self.environment)
        self.assertIn("fix:", said)
        script = ("import megatron_cpp as m\ntry:\n  m.train('nosuch.toml', 'out')\n"
                  "except m.MegatronError as e:\n  print(e.code, e)")
        printed = run(self.python, "-c", script, cwd=self.work, env=self.environment)
        self.assertRegex(printed, "(?s)^2 .*nosuch.toml.*fix:")
        (self.site / "numpy").unlink()
        script = f"import megatron_cpp as m; m.load_weights({str(self.run_folder)!r}, framework='numpy')"
        self.assertIn("-m pip install numpy", run(self.python, "-c", script, code=1, env=self.environment))
        (self.site / "torch").unlink()
        said = run(self.path / "env/bin/megatron", "version", code=2, env=self.environment)
        self.assertIn("-m pip install torch==2.11.0", said)
        (self.site / "torch.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]))  # elsewhere in Python's path
        self.assertIn("megatron", run(self.path / "env/bin/megatron", "version", env=self.environment))


if __name__ == "__main__":
    unittest.main()
