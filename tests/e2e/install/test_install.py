"""The program and the library as installed: the examples are built with find_package(megatron) alone, and run."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(MEGATRON).resolve().parent
EXAMPLES = ["train_in_30_lines", "custom_loss", "generate"]


def run(*words, cwd=None, code=0, **variables):
    result = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=300,
                            env={**os.environ, **variables})
    if result.returncode != code:
        raise AssertionError(f"{' '.join(map(str, words))}: exit code {result.returncode}, expected {code}\n"
                             f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}")
    return result.stdout


class Install(unittest.TestCase):
    """One method, as ctest runs each by itself: they share what is installed."""

    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)
        self.prefix = self.place.path / "a prefix"
        run("cmake", "--install", BUILD, "--prefix", self.prefix, "--strip")

    def test_what_is_installed_serves_the_program_and_those_who_embed_the_library(self):
        for look in (self.nothing_names_the_sources, self.the_program_finds_its_files, self.headers_and_examples_build,
                     self.the_examples_train_and_write, self.another_libtorch_is_refused, self.packages_are_whole):
            with self.subTest(look.__name__):
                look()

    def nothing_names_the_sources(self):
        # But for libtorch, where `make setup` has put it below them: find_package falls back on it, and asserts of
        # its headers name it.
        own = re.compile(re.escape(str(ROOT).encode()) + rb"/(?!\.venv/)")
        files = [path for path in self.prefix.rglob("*") if path.is_file()]
        self.assertGreater(len(files), 100)
        for path in files:
            self.assertIsNone(own.search(path.read_bytes()), path)

    def the_program_finds_its_files(self):
        program = self.prefix / "bin/megatron"
        self.assertIn("0.3.0", run(program, "version"))
        words = ["bench", "scaling", "--hardware", "dgx-h100", "--recipes", "gpt_1.3b", "--json"]
        self.assertIn("gpt_1.3b", run(program, *words, cwd=self.prefix))
        words = ["bench", "generate", "--model", "gpt_tiny", "--prompt-tokens", 2, "--new-tokens", 2,
                 "--prefill-tokens", 4, "--repeats", 1, "--json"]
        self.assertIn("tokens_per_s", run(program, *words, cwd=self.prefix))  # by the other one
        plugin = self.prefix / "lib/megatron/libmegatron_cuda.so"
        self.assertEqual('"cuda_plugin":true' in run(program, "doctor", "--json").replace(" ", ""), plugin.exists())

    def headers_and_examples_build(self):
        self.build = self.place.path / "build"
        run("cmake", "-G", "Ninja", "-S", pathlib.Path(__file__).parent / "project", "-B", self.build,
            f"-DCMAKE_PREFIX_PATH={self.prefix}", "-DCMAKE_BUILD_TYPE=Release",
            f"-DHEADERS={self.prefix}/include", f"-DEXAMPLES={self.prefix}/share/megatron/examples")
        # ccache knows them again below another prefix.
        begin = time.perf_counter()
        run("cmake", "--build", self.build, CCACHE_BASEDIR=str(self.place.path), CCACHE_NOHASHDIR="1")
        print(f"built in {time.perf_counter() - begin:.1f} s: headers in two orders, {', '.join(EXAMPLES)}",
              file=sys.stderr)  # bench/find_package.py measures it without ccache

    def the_examples_train_and_write(self):
        tokens, out = self.place.path / "tokens_text_document", self.place.path / "small"
        printed = run(self.build / "train_in_30_lines/train_in_30_lines", tokens, self.place.tokenizer, out)
        losses = [float(loss) for loss in re.findall(r"lm loss: ([0-9.E+-]+)", printed)]
        self.assertLess(losses[-1], losses[0] - 2, printed)
        words = [self.place.recipe, "--data-path", tokens, "--tokenizer", self.place.tokenizer, "--eval-interval", 15,
                 "--eval-iters", 4, "--world-size", 2, "--pp", 2, "--train.out", self.place.path / "custom"]
        printed = run(self.build / "custom_loss/custom_loss", *words)
        entropies = dict(re.findall(r"iteration (\d+): entropy ([0-9.]+) over 8 microbatches", printed))
        self.assertEqual(list(entropies), ["15", "30"], printed)
        self.assertLess(float(entropies["30"]), float(entropies["15"]))
        self.a_loss_is_refused_before_anything_is_written(words)
        self.a_device_is_looked_for(words)
        generate = self.build / "generate/generate"
        alone = run(generate, out, "the cat")
        self.assertRegex(alone, r"^the cat \w+")
        self.assertEqual(run(generate, out, "the cat", 2), alone)
        run(MEGATRON, "checkpoint", "export", "--load", out, "--output", self.place.path / "hugging face")
        self.assertEqual(run(generate, self.place.path / "hugging face", "the cat"), alone)

    def a_loss_is_refused_before_anything_is_written(self, words):
        out = self.place.path / "refused_run"
        more = ["--mtp-num-layers", 1, "--position-embedding-type", "rope", "--world-size", 1, "--pp", 1,
                "--train.out", out]
        result = subprocess.run([str(word) for word in [self.build / "custom_loss/custom_loss", *words, *more]],
                                capture_output=True, text=True, timeout=300)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("excludes model.mtp_num_layers", result.stderr)
        self.assertFalse(out.exists())

    def a_device_is_looked_for(self, words):
        """A program that embeds the library finds the plugin, so that a GPU is all that a machine without one lacks."""
        if list(pathlib.Path("/dev").glob("nvidia[0-9]*")):
            return
        result = subprocess.run([str(word) for word in [self.build / "custom_loss/custom_loss", *words]] +
                                ["--device", "cuda", "--parallel.backend", "nccl"], capture_output=True, text=True,
                                timeout=300)
        self.assertNotEqual(result.returncode, 0)
        plugin = self.prefix / "lib/megatron/libmegatron_cuda.so"
        found = f"the plugin is {plugin}" if plugin.exists() else "and no plugin"
        self.assertIn(f"no /dev/nvidia* on this machine; {found}", result.stderr)

    def another_libtorch_is_refused(self):
        torch = self.place.path / "torch"
        (torch / "lib").mkdir(parents=True)
        (torch / "lib/libtorch_cpu.so").touch()
        (torch / "include/torch/headeronly").mkdir(parents=True)
        (torch / "include/torch/headeronly/version.h").write_text('#define TORCH_VERSION \\\n  "2.10.1"\n')
        words = ["cmake", "-G", "Ninja", "-S", ROOT / "examples/generate", "-B", self.place.path / "refused",
                 f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DTORCH_DIR={torch}"]
        result = subprocess.run(list(map(str, words)), capture_output=True, text=True)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("libtorch must be the version", " ".join(result.stderr.split()))

    def packages_are_whole(self):
        if not shutil.which("dpkg-deb"):
            return
        folder = self.place.path / "packages"
        run("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", "DEB", "-B", folder)
        for package, needed in {"megatron-cpp": "libsodium23", "libmegatron-dev": "libsodium-dev"}.items():
            file = next(folder.glob(f"{package}_0.3.0_*.deb"))
            self.assertIn(needed, run("dpkg-deb", "-f", file, "Depends"))
            run("dpkg-deb", "-x", file, folder / "root")
            self.assertIn("Apache License", (folder / f"root/usr/share/doc/{package}/copyright").read_text())
        names = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if path.is_file()}
        packed = {str(path.relative_to(folder / "root/usr")) for path in (folder / "root").rglob("*") if path.is_file()}
        self.assertEqual(packed, names)
        run("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", "TGZ", "-B", folder)
        run("tar", "-xzf", next(folder.glob("*.tar.gz")), "-C", folder)
        (tree,) = (path for path in folder.glob("megatron-cpp-0.3.0-*") if path.is_dir())
        self.assertEqual({str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}, names)
        computes = run("readelf", "-d", self.prefix / "lib/megatron/megatron-torch")
        torch = re.search(r"RUNPATH.*:(/[^\]:]*)\]", computes)[1]
        (tree / "lib/megatron/torch").mkdir()
        (tree / "lib/megatron/torch/lib").symlink_to(torch)
        self.assertIn("0.3.0", run(tree / "bin/megatron", "version"))
        self.assertIn("activation", run(tree / "bin/megatron", "doctor", "--operators"))
        path = run("readelf", "-d", folder / "root/usr/lib/megatron/megatron-torch")
        self.assertIn("[$ORIGIN/torch/lib]", path)
        for config in (folder / "root").rglob("*.cmake"):
            self.assertNotIn(str(ROOT), config.read_text())


class Components(unittest.TestCase):
    def test_a_component_that_is_required_is_refused(self):
        with tempfile.TemporaryDirectory(prefix="megatron-components-") as folder:
            script = pathlib.Path(folder) / "find.cmake"
            script.write_text(f'find_package(megatron REQUIRED COMPONENTS cuda PATHS "{BUILD}" NO_DEFAULT_PATH)\n')
            result = subprocess.run(["cmake", "-P", script], capture_output=True, text=True)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("COMPONENTS cuda", result.stderr)
        self.assertIn("has no components", " ".join(result.stderr.split()))


if __name__ == "__main__":
    unittest.main()
