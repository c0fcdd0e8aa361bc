"""Weights as tensors, read without the program: checkpoints of a run (slices of several ranks are put together) and
Hugging Face folders."""
import json
import math
import mmap
import pathlib
import sys

from ._program import _wrong

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_MAX_HEADER = 100_000_000
_MAX_MANIFEST = 1 << 27


class _Torch:
    NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
             "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}

    def __init__(self):
        import torch
        self.torch = torch

    def empty(self, dtype, shape):
        return self.torch.empty(shape, dtype=getattr(self.torch, self.NAMES[dtype]))

    def fill(self, tensor, place, shape, dtype, data):
        if data:
            source = self.torch.frombuffer(bytearray(data), dtype=getattr(self.torch, self.NAMES[dtype]))
            tensor[place] = source.reshape(shape)


class _Numpy:
    NAMES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
             "I8": "i1", "U8": "u1", "BOOL": "?"}

    def __init__(self):
        import numpy
        self.numpy = numpy

    def empty(self, dtype, shape):
        return self.numpy.empty(shape, "<f4" if dtype == "BF16" else self.NAMES[dtype])

    def fill(self, array, place, shape, dtype, data):
        source = self.numpy.frombuffer(data, self.NAMES[dtype])
        if dtype == "BF16":  # numpy has no bfloat16: float32 holds each exactly
            source = (source.astype("<u4") << 16).view("<f4")
        array[place] = source.reshape(shape)


def _damaged(path, what):
    return _wrong(f"{path} must be whole.", what,
                  "load another checkpoint; `megatron checkpoint verify` tells which are whole")


def _unread(path, name, dtype):
    return _wrong(f"load_weights reads tensors of the types {', '.join(_BYTES)}.", f"{name} of {dtype!r} in {path}",
                  "read it with the package safetensors")


def _is_shape(values):
    return isinstance(values, list) and all(isinstance(n, int) and 0 <= n < 1 << 62 for n in values)


class _File:
    """A mapped file, whose parts are checked against its size."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            self.size = file.seek(0, 2)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""

    def part(self, begin, size):
        if not 0 <= begin <= self.size or size > self.size - begin:
            raise _damaged(self.path, f"{self.size} bytes, where {size} at {begin} are needed")
        return self._map[begin:begin + size]


def _read_tensor(backend, name, dtype, shape, slices, where):
    """One tensor of `slices`: (offset, shape, file, begin)."""
    if dtype not in _BYTES:
        raise _unread(where, name, dtype)
    available = sum(_BYTES[dtype] * math.prod(part) for _, part, _, _ in slices)
    if available != _BYTES[dtype] * math.prod(shape):  # before memory is taken for it
        raise _damaged(where, f"slices of {available} bytes for a tensor of the shape {shape}")
    parts = []
    for offset, part, file, begin in slices:
        if len(offset) != len(shape) or len(part) != len(shape) or \
                any(o + n > whole for o, n, whole in zip(offset, part, shape)):
            raise _damaged(where, f"a slice at {offset} of {part} outside of {shape}")
        parts.append((tuple(slice(o, o + n) for o, n in zip(offset, part)), part,
                      file.part(begin, _BYTES[dtype] * math.prod(part))))
    tensor = backend.empty(dtype, shape)
    for place, part, data in parts:
        backend.fill(tensor, place, part, dtype, data)
    return tensor


def _checkpoint(folder):
    """The iter_ folder that `folder` means, or None."""
    if (folder / "manifest.json").is_file():
        return folder
    for holder in (folder, folder / "checkpoints"):
        if (holder / "latest").is_file():
            name = (holder / "latest").read_text().strip()
            if "/" not in name and (holder / name / "manifest.json").is_file():
                return holder / name
            raise _damaged(holder / "latest", f"{name!r}, which is no checkpoint there")
    return None


def _of_checkpoint(folder, backend, wanted):
    path = folder / "manifest.json"
    if path.stat().st_size > _MAX_MANIFEST:
        raise _damaged(path, f"{path.stat().st_size} bytes")
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["format"] != "megatron-cpp checkpoint" or manifest["version"] != 1:
            raise _damaged(path, f"{manifest['format']!r}, version {manifest['version']}")
        names = [entry["name"] for entry in manifest["body"]["files"]]
        tensors = {name: (tensor["dtype"], tensor["shape"],
                          [(part["offset"], part["shape"], part["file"], part["begin"]) for part in tensor["slices"]])
                   for name, tensor in manifest["body"]["tensors"].items() if wanted(name)}
        for _, shape, slices in tensors.values():
            ok = _is_shape(shape) and all(_is_shape(o) and _is_shape(s) and _is_shape([f, b]) and f < len(names)
                                          for o, s, f, b in slices)
            if not ok:
                raise ValueError("a shape or place that is none")
        if any(not isinstance(name, str) or not name or name[0] == "." or "/" in name for name in names):
            raise ValueError("a file's name that is none")
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"no manifest: {error!r}") from None
    files = [_File(folder / name) for name in names]
    return {name: _read_tensor(backend, name, dtype, shape, [(o, s, files[f], b) for o, s, f, b in slices], path)
            for name, (dtype, shape, slices) in tensors.items()}


def _of_safetensors(paths, backend, wanted):
    weights = {}
    for path in paths:
        file = _File(path)
        size = int.from_bytes(file.part(0, 8), "little")
        if size > _MAX_HEADER:
            raise _damaged(path, f"a header of {size} bytes")
        try:
            header = json.loads(file.part(8, size))
            entries = [(name, entry["dtype"], entry["shape"], *entry["data_offsets"])
                       for name, entry in header.items() if name != "__metadata__" and wanted(name)]
            if not all(_is_shape(shape) and _is_shape([begin, end]) for _, _, shape, begin, end in entries):
                raise ValueError("a shape or place that is none")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(path, f"no header of safetensors: {error!r}") from None
        for name, dtype, shape, begin, end in entries:
            if dtype not in _BYTES:
                raise _unread(path, name, dtype)
            if end - begin != _BYTES[dtype] * math.prod(shape):
                raise _damaged(path, f"{end - begin} bytes for {name} of the type {dtype} and shape {shape}")
            whole = ([0] * len(shape), shape, file, 8 + size + begin)
            weights[name] = _read_tensor(backend, name, dtype, shape, [whole], path)
    return weights


def _of_shards(index, backend, wanted):
    """The tensors that an index names, each of the file that it names for it."""
    try:
        file_of = json.loads(index.read_bytes())["weight_map"]
        if any(not isinstance(name, str) or not name or name[0] == "." or "/" in name for name in file_of.values()):
            raise ValueError("a file's name that is none")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(index, f"no index of safetensors: {error!r}") from None
    weights = {}
    for name in sorted(set(file_of.values())):
        if not (index.parent / name).is_file():
            raise _wrong(f"{index.parent} must hold every file that {index.name} names.", f"no {name}",
                         "fetch the folder again")
        weights |= _of_safetensors([index.parent / name], backend,
                                   lambda tensor, name=name: wanted(tensor) and file_of.get(tensor, name) == name)
    for tensor, name in file_of.items():
        if wanted(tensor) and tensor not in weights:
            raise _wrong(f"{index.parent / name} must hold {tensor}, as {index.name} says.", "it does not",
                         "fetch the folder again")
    return weights


def load_weights(path, framework="torch", optimizer=False):
    """The weights at `path` by name, on the CPU: a run's folder, its checkpoints or one of them (with `optimizer` its
    moments too, as optimizer.exp_avg.NAME …), a Hugging Face folder or a .safetensors file. `framework`: "torch" or
    "numpy", where bfloat16 becomes float32. Checksums are not compared: `megatron checkpoint verify` does that."""
    if framework not in ("torch", "numpy"):
        raise _wrong('framework must be "torch" or "numpy".', repr(framework), 'framework="torch"')
    try:
        backend = _Torch() if framework == "torch" else _Numpy()
    except ImportError as error:
        raise _wrong(f"load_weights needs {framework}.", str(error),
                     f"{sys.executable} -m pip install {framework}") from None
    path = pathlib.Path(path)

    def wanted(name):
        return optimizer or not name.startswith("optimizer.")

    if path.is_file() and path.suffix == ".safetensors":
        return _of_safetensors([path], backend, wanted)
    if path.is_dir():
        if (checkpoint := _checkpoint(path)) is not None:
            return _of_checkpoint(checkpoint, backend, wanted)
        if (whole := path / "model.safetensors").is_file():
            return _of_safetensors([whole], backend, wanted)
        if (index := path / "model.safetensors.index.json").is_file():
            return _of_shards(index, backend, wanted)
        if files := sorted(path.glob("*.safetensors")):
            return _of_safetensors(files, backend, wanted)
    raise _wrong("weights are read from a run's folder, a checkpoint or safetensors files.", f"none of these at {path}",
                 "name a folder that has checkpoints/ or .safetensors files")
