"""Makes `import torch` work where pip installed its wheel without the 3 GB of CUDA libraries that it is linked to.

    torch_on_cpu.py SITE_PACKAGES ENVIRONMENT

SITE_PACKAGES holds the wheel; ENVIRONMENT is a virtual environment, which then imports it from there. Torch's Python
part is linked to libtorch_cuda, cuDNN and cuFile, of which nothing runs on a CPU. They are replaced by libraries of the
same names, loaded before, that define what it wants of them and trap where that is called.
"""
import pathlib
import subprocess
import sys

LACKING = ["libtorch_cuda.so", "libcudnn.so.9", "libcufile.so.0"]  # all is defined in the first
DEFINERS = ["libtorch_cuda.so", "libtorch_nvshmem.so"]
USERS = ["libtorch_python.so", "libtorch.so"]
AT_IMPORT = ["_ZN4c10d15get_gil_checkerEv"]  # called as torch is imported: a reference to a pointer that is set
PRESENT = ["libtorch_cpu.so", "libc10.so", "libc10_cuda.so", "libshm.so"]


def symbols(lib, files, which):
    lines = subprocess.check_output(["nm", "--dynamic", f"--{which}-only", "--format=posix", *(lib / f for f in files)],
                                    text=True)
    return {line.split()[0].split("@")[0] for line in lines.splitlines() if " " in line}


def main():
    packages, environment = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    lib, site = packages / "torch/lib", next(environment.glob("lib/python3*/site-packages"))
    if (packages / "nvidia/cudnn").exists():  # all is there: a machine with a GPU
        (site / "torch_on_cpu.pth").write_text(f"{packages}\n")
        return
    lacking = symbols(lib, USERS, "undefined") - symbols(lib, PRESENT + USERS, "defined")
    of_cuda = symbols(lib, DEFINERS, "defined")
    names = sorted(name for name in lacking if name in of_cuda or name.startswith(("cudnn", "cuFile")))
    folder = environment / "lib/torch_on_cpu"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "stubs.s"
    with open(source, "w") as out:
        out.write(".data\nnothing: .zero 256\n")
        for name in names:
            if name.startswith("_ZT"):
                body = ".data\n{0}: .quad 0, 1f\n.zero 240\n1: .asciz \"{0}\"\n"  # of a type its name is read
            elif name in AT_IMPORT:
                body = ".text\n{0}: lea nothing(%rip), %rax\nret\n"
            else:
                body = ".text\n{0}: ud2\n"
            out.write(f".globl {name}\n" + body.format(name))
    for name in LACKING:
        subprocess.run(["g++", "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-o", folder / name,
                        "-xassembler", source if name == LACKING[0] else "/dev/null"], check=True)
    load = "; ".join(f"ctypes.CDLL({str(folder / name)!r}, ctypes.RTLD_GLOBAL)" for name in LACKING)
    (site / "torch_on_cpu.pth").write_text(f"{packages}\nimport ctypes; {load}\n")
    print(f"torch of {packages}: {len(names)} functions of CUDA libraries stubbed")


if __name__ == "__main__":
    main()
