#!/usr/bin/env python3
"""Packs the built program as a wheel: make_wheel.py BUILD [OUTPUT], after the program is built.

The wheel has the Python package of python/, the program as `cmake --install` installs it, the shared libraries that a
Linux does not have by itself, and shims/. It holds no Python extension, so one wheel serves every Python from 3.10 on;
its tag names the oldest glibc that the program and its libraries run with. libtorch is not in it: it requires torch."""
import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = "megatron_cpp"
TORCH = "2.11.0"
# What every Linux with a C++ compiler's run-time libraries has, and what comes with torch.
SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+|z)\.so|ld-linux)")
OF_TORCH = re.compile(r"^lib(torch|c10|gomp|cud|cupti|nccl|cublas|cusparse|nv)")
# The libraries beside the programs, then torch as the neighbour of this package.
RUN_PATHS = {"bin": "$ORIGIN/../lib", "lib": "$ORIGIN",
             "lib/megatron": "$ORIGIN/..:$ORIGIN/../../../torch/lib:$ORIGIN/../../../nvidia/nccl/lib:"
                             "$ORIGIN/../../../nvidia/cu13/lib"}


def stop(rule, got, fix):
    sys.exit(f"{rule}\n  got:  {got}\n  fix:  {fix}")


def output_of(*words):
    return subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True).stdout


def needed_libraries(program):
    """(name, path) of each library to be packed, those that libraries need included."""
    found = {}
    for line in output_of("ldd", program).splitlines():
        match = re.match(r"\s*(\S+) => (\S+)", line)
        if match and not SYSTEM.match(match[1]) and not OF_TORCH.match(match[1]):
            if match[2] == "not":
                stop("every library of the program must be there.", f"no {match[1]}", "make setup")
            if "/torch/" not in match[2] and "/nvidia/" not in match[2]:
                found[match[1]] = pathlib.Path(match[2]).resolve()
    return found


def glibc_of(files):
    """The oldest glibc of a Linux that runs all of the files, as (major, minor): of what they ask for the newest, and
    that of the first Linux with the libstdc++ that they ask for (the policies of manylinux)."""
    first_with = {29: (2, 34), 30: (2, 35), 31: (2, 38), 32: (2, 38), 33: (2, 39)}
    versions = [(2, 17)]
    for file in files:
        wanted = output_of("readelf", "--version-info", "--wide", file)
        versions += [(int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", wanted)]
        versions += [first_with.get(int(minor), (2, 41) if int(minor) > 33 else (2, 17))
                     for minor in re.findall(r"GLIBCXX_3\.4\.(\d+)", wanted)]
    return max(versions)


def licence_of(library):
    """The copyright file of the Debian package that a library is from, if it is from one."""
    for path in (library, pathlib.Path(str(library).removeprefix("/usr"))):  # dpkg may know it by its older place
        owner = subprocess.run(["dpkg-query", "-S", str(path)], capture_output=True, text=True)
        if owner.returncode == 0:
            package = owner.stdout.split(":")[0]
            return package, pathlib.Path(f"/usr/share/doc/{package}/copyright")
    return None


def fill(package, build):
    """The package's folder as it is to be installed."""
    shutil.copytree(ROOT / "python" / PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    output_of("cmake", "--install", build, "--component", "program", "--prefix", package, "--strip")
    shutil.rmtree(package / "share/doc")
    shutil.rmtree(package / "lib/megatron/torch", ignore_errors=True)  # of MEGATRON_BUNDLE_LIBTORCH: torch is required
    if (ROOT / "shims").is_dir():
        shims = package / "share/megatron/shims"
        shutil.copytree(ROOT / "shims", shims, ignore=shutil.ignore_patterns("__pycache__", "*.md"), dirs_exist_ok=True)
        shutil.copy(ROOT / "python/shims/run_megatron.py", shims)
    licences = {}
    for name, library in sorted(needed_libraries(build / "megatron-torch").items()):
        (package / "lib").mkdir(exist_ok=True)
        shutil.copy(library, package / "lib" / name)
        if licence := licence_of(library):
            licences[licence[0]] = licence[1]
    binaries = [path for folder in RUN_PATHS for path in (package / folder).glob("*") if path.is_file()]
    for path in binaries:
        path.chmod(0o755)
        output_of("patchelf", "--set-rpath", RUN_PATHS[str(path.parent.relative_to(package))], path)
    return binaries, licences


def digest_of(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def write_wheel(path, files):
    """`files`: (name in the wheel, bytes, mode). The same files give the same bytes."""
    record = f"{path.name.split('-')[0]}-{path.name.split('-')[1]}.dist-info/RECORD"
    lines = []
    temporary = path.with_suffix(".part")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
        for name, data, mode in files:
            add(name, data, mode)
            lines.append(f"{name},sha256={digest_of(data)},{len(data)}\n")
        add(record, ("".join(lines) + f"{record},,\n").encode(), 0o644)
    temporary.rename(path)


def metadata_of(version):
    readme = (ROOT / "README.md").read_text()
    return f"""Metadata-Version: 2.1
Name: megatron-cpp
Version: {version}
Summary: Trains and runs GPTs, BERTs and T5s over many ranks, on libtorch
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: torch=={TORCH}
Description-Content-Type: text/markdown

{readme}"""


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build").resolve()
    output = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else build / "packages"
    if not (build / "megatron").exists():
        stop("a wheel is made of a program that is built.", f"no {build}/megatron", "make build")
    if not shutil.which("patchelf"):
        stop("make wheel needs patchelf.", "no patchelf in PATH", "apt-get install patchelf")
    version = re.search(r"(?m)^CMAKE_PROJECT_VERSION:STATIC=(.+)$", (build / "CMakeCache.txt").read_text())[1]
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="megatron-wheel-") as folder:
        package = pathlib.Path(folder) / PACKAGE
        binaries, licences = fill(package, build)
        major, minor = glibc_of(binaries)
        tag = f"py3-none-manylinux_{major}_{minor}_{os.uname().machine}"
        info = f"{PACKAGE}-{version}.dist-info"
        files = [(str(path.relative_to(folder)), path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)
                 for path in sorted(package.rglob("*")) if path.is_file()]
        files += [(f"{info}/METADATA", metadata_of(version).encode(), 0o644),
                  (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: megatron-cpp\nRoot-Is-Purelib: false\n"
                                    f"Tag: {tag}\n".encode(), 0o644),
                  (f"{info}/entry_points.txt",
                   f"[console_scripts]\nmegatron = {PACKAGE}.__main__:main\n".encode(), 0o644),
                  (f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644)]
        files += [(f"{info}/licenses/{name}", path.read_bytes(), 0o644)
                  for name, path in sorted(licences.items()) if path.is_file()]
        wheel = output / f"{PACKAGE}-{version}-{tag}.whl"
        write_wheel(wheel, files)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
