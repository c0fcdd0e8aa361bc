#!/usr/bin/env python3
"""Unpacks texts, vocabularies and reference results that many tests need: unpack.py OUTPUT. `unpack.py --pack SOURCE`
writes the archive anew from a folder of that form, of which 4 MB are the most that the tree holds.

packed.tar.xz has them smaller than xz makes them: of *.safetensors the first bytes of all numbers, then the second ones
(sign and exponent repeat, the rest does not); not GPT-2's encoder.json, which follows from its merges; and of
golden/megatron not what samples/ has already. What each is and where it is from: README.md."""
import io
import json
import pathlib
import shutil
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
ARCHIVE = HERE / "packed.tar.xz"
ENCODER = "data/gpt2/encoder.json"


def planes(data, back):
    """Bytes 0, 4, 8, … of the numbers of a file, then 1, 5, 9, …; `back`: in their order again."""
    begin = 8 + int.from_bytes(data[:8], "little")
    end = begin + (len(data) - begin) // 4 * 4
    numbers = bytearray(data[begin:end])
    count = len(numbers) // 4
    for i in range(4):
        if back:
            numbers[i::4] = data[begin + i * count:begin + (i + 1) * count]
        else:
            numbers[i * count:(i + 1) * count] = data[begin + i:end:4]
    return data[:begin] + bytes(numbers) + data[end:]


def encoder(merges):
    """The ids of GPT-2: its 256 bytes as characters, its merges in their order, the end of a text."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    tokens = [chr(byte) for byte in shown] + [chr(256 + i) for i in range(len(hidden))]
    tokens += [line.replace(" ", "") for line in merges.split("\n")[1:] if line] + ["<|endoftext|>"]
    return json.dumps({token: i for i, token in enumerate(tokens)})


def pack(source):
    samples = source / "samples"
    own = {path.relative_to(samples): path.read_bytes() for path in samples.rglob("*") if path.is_file()}
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            name, data = path.relative_to(source), path.read_bytes()
            if str(name) == ENCODER:
                assert json.loads(data) == json.loads(encoder((path.parent / "vocab.bpe").read_text(encoding="utf-8")))
                continue
            if name.is_relative_to("golden/megatron") and own.get(name.relative_to("golden/megatron")) == data:
                continue
            if path.suffix == ".safetensors":
                data = planes(data, back=False)
            entry = tarfile.TarInfo(str(name))
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def unpack(output):
    shutil.rmtree(output, ignore_errors=True)
    with tarfile.open(ARCHIVE) as archive:
        for entry in archive:
            data = archive.extractfile(entry).read()
            path = output / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(planes(data, back=True) if path.suffix == ".safetensors" else data)
    for path in [path for path in (output / "samples").rglob("*") if path.is_file()]:
        other = output / "golden/megatron" / path.relative_to(output / "samples")
        if not other.exists():
            other.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, other)
    (output / ENCODER).write_text(encoder((output / ENCODER).with_name("vocab.bpe").read_text(encoding="utf-8")))


if __name__ == "__main__":
    pack(pathlib.Path(sys.argv[2])) if sys.argv[1] == "--pack" else unpack(pathlib.Path(sys.argv[1]))
