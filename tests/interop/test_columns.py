"""Parquet and Arrow files that pyarrow and datasets have written give the same tokens as the JSON lines of the same
texts; what is damaged is refused, and nothing is written."""
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from peers import peers  # noqa: E402
from program import MEGATRON, drawn_seed, run, text_of_sentences  # noqa: E402

pyarrow, parquet, feather, datasets, MISSING = peers("pyarrow", "pyarrow.parquet", "pyarrow.feather", "datasets")


def texts():
    """Texts with what JSON escapes, of several lengths, repeated ones and an empty one."""
    lines = text_of_sentences(300, seed=3)
    odd = ['"quoted" \\ and\ttabs\r\nlines', "\x00\x1f\x7f", "ünïcödé 漢字 🙂", "", "x" * 5000]
    return [lines[0], *odd, *lines, *lines[:50], "last\n"]


@unittest.skipIf(MISSING, MISSING)
class Columns(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="megatron-columns-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        cls.texts = texts()
        count = len(cls.texts)
        cls.table = pyarrow.table({
            "id": pyarrow.array(range(count), pyarrow.int64()),
            "text": cls.texts,
            "score": pyarrow.array([i / 7 for i in range(count)], pyarrow.float32()),
            "tags": [[f"t{i % 3}"] * (i % 4) if i % 5 else None for i in range(count)],
            "meta": [{"lang": "en" if i % 2 else None, "ok": bool(i % 3), "parts": [{"n": i}] * (i % 3)}
                     for i in range(count)],
            "day": pyarrow.array([i for i in range(count)], pyarrow.date32()),  # left out
        })
        cls.rows = [{key: value for key, value in row.items() if key != "day"} for row in cls.table.to_pylist()]
        cls.jsonl = cls.path / "text.jsonl"
        cls.jsonl.write_text("".join(json.dumps(row) + "\n" for row in cls.rows))
        cls.tokenizer = cls.path / "tok"
        run("tokenizer", "train", "--input", cls.jsonl, "--vocab-size", 400, "--output", cls.tokenizer)
        cls.expected = cls.tokens_of("jsonl", cls.jsonl)

    @classmethod
    def tokens_of(cls, name, *inputs, options=()):
        prefix = cls.path / f"tokens_{name}"
        run("data", "preprocess", "--input", *inputs, "--tokenizer", cls.tokenizer, "--output-prefix", prefix,
            "--append-eod", "--workers", 1, *options)
        pairs = sorted(cls.path.glob(f"tokens_{name}_*_*"))
        files = {pair.name.removeprefix(prefix.name): pair.read_bytes() for pair in pairs}
        assert files
        return files

    def check(self, name, write):
        file = self.path / name
        write(str(file))
        self.assertEqual(self.tokens_of(name.replace(".", "-"), file), self.expected, name)

    def test_files_of_pyarrow_are_read_as_json_lines_of_the_same_rows(self):
        """One method, as ctest runs each by itself: they share what they compare with."""
        for look in (self.parquet_gives_the_tokens, self.arrow_gives_the_tokens, self.every_column_has_its_value,
                     self.other_jobs_and_keys_read_the_same, self.a_saved_dataset_gives_the_tokens):
            with self.subTest(look.__name__):
                look()

    def parquet_gives_the_tokens(self):
        plain = self.table.select(["text", "id"])
        ways = {
            "snappy": {}, "none": {"compression": "none", "use_dictionary": False},
            "zstd": {"compression": "zstd", "row_group_size": 70, "data_page_size": 500},
            "gzip": {"compression": "gzip", "data_page_version": "2.0", "data_page_size": 300},
            "lz4": {"compression": "lz4", "use_dictionary": ["text"], "write_batch_size": 16},
            "lengths": {"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY",
                                                                     "id": "DELTA_BINARY_PACKED"}},
            "prefixes": {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"},
                         "data_page_version": "2.0", "data_page_size": 400},
        }
        for way, options in ways.items():
            table = plain if "column_encoding" in options else self.table
            self.check(f"{way}.parquet", lambda file: parquet.write_table(table, file, **options))

    def arrow_gives_the_tokens(self):
        def stream(file, table=self.table, options=None, rows=64):
            with pyarrow.OSFile(file, "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema, options=options) as out:
                out.write_table(table, max_chunksize=rows)
        self.check("stream.arrow", stream)
        self.check("zstd.arrow", lambda f: stream(f, options=pyarrow.ipc.IpcWriteOptions(compression="zstd")))
        for compression in ("uncompressed", "lz4", "zstd"):
            self.check(f"{compression}.feather", lambda f: feather.write_feather(self.table, f, compression))
        text = self.table["text"]
        kinds = {"large": pyarrow.large_string(), "view": pyarrow.string_view(), "binary": pyarrow.binary(),
                 "codes": pyarrow.dictionary(pyarrow.int16(), pyarrow.string())}
        for name, kind in kinds.items():
            column = text.dictionary_encode().cast(kind) if name == "codes" else text.cast(kind)
            self.check(f"{name}.arrow", lambda f: stream(f, pyarrow.table({"text": column})))

    def every_column_has_its_value(self):
        """Seen by a filter that keeps all: its lines are the rows."""
        for name, write in {"all.parquet": lambda f: parquet.write_table(self.table, f, row_group_size=100),
                            "all.feather": lambda f: feather.write_feather(self.table, f)}.items():
            file, out = self.path / name, self.path / f"{name}.jsonl"
            write(str(file))
            run("data", "filter", "--input", file, "--output", out, "--min-tokens", 0)
            lines = [json.loads(line) for line in out.read_text().splitlines()]
            kept = {row["id"]: row for row in self.rows}
            self.assertGreater(len(lines), 300)
            for line in lines:
                row = kept[line["id"]]
                self.assertAlmostEqual(line.pop("score"), row["score"], 6)
                self.assertEqual(line, {key: value for key, value in row.items() if key != "score"})

    def other_jobs_and_keys_read_the_same(self):
        file = self.path / "keys.parquet"
        table = pyarrow.table({"text": self.texts, "parts": [[text, "more"] for text in self.texts]})
        parquet.write_table(table, file)
        lines = self.path / "keys.jsonl"
        lines.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        options = ["--json-keys", "parts", "text", "--split-sentences"]
        self.assertEqual(self.tokens_of("keys", file, options=options), self.tokens_of("lines", lines, options=options))
        run("tokenizer", "train", "--input", file, "--vocab-size", 400, "--output", self.path / "tok2")
        self.assertEqual((self.path / "tok2/tokenizer.json").read_text(),
                         (self.tokenizer / "tokenizer.json").read_text())
        empty = self.path / "empty.parquet"
        parquet.write_table(table.slice(0, 0), empty)
        self.assertEqual(self.tokens_of("two", empty, file)["_text_document.bin"], self.expected["_text_document.bin"])
        nulls = self.path / "nulls.parquet"
        parquet.write_table(pyarrow.table({"text": ["a", None]}), nulls)
        words = ["data", "preprocess", "--input", nulls, "--tokenizer", self.tokenizer, "--output-prefix",
                 self.path / "nulls"]
        self.assertIn("nulls.parquet, line 2", run(*words, code=2))
        self.assertEqual(json.loads(run(*words, "--on-error", "skip", "--json"))["bad_lines"], 1)

    def a_saved_dataset_gives_the_tokens(self):
        datasets.disable_progress_bars()
        saved = datasets.Dataset.from_dict({"text": self.texts})
        saved.save_to_disk(self.path / "saved", num_shards=3)
        self.assertEqual(len(list((self.path / "saved").glob("*.arrow"))), 3)
        self.assertEqual(self.tokens_of("saved", self.path / "saved"), self.expected)
        chosen = saved.select(range(len(self.texts) - 1, -1, -1)).select(range(len(self.texts) - 1, -1, -1))
        chosen.save_to_disk(self.path / "chosen")
        self.assertEqual(self.tokens_of("chosen", self.path / "chosen"), self.expected)
        datasets.DatasetDict({"train": saved, "test": saved}).save_to_disk(self.path / "splits")
        words = ["data", "preprocess", "--tokenizer", self.tokenizer, "--output-prefix", self.path / "s", "--input"]
        message = run(*words, self.path / "splits", code=2)
        self.assertIn(f"--input {self.path}/splits/train {self.path}/splits/test", message)
        self.assertEqual(self.tokens_of("train", self.path / "splits/train"), self.expected)
        state = self.path / "saved/state.json"
        for wrong in ("", "[]", '{"_data_files": [{"filename": "../text.jsonl"}]}', '{"_data_files": 7}', "{}"):
            state.write_text(wrong)
            run(*words, self.path / "saved", code=2)

    def test_what_is_damaged_is_refused_and_nothing_is_written(self):
        small = pyarrow.table({"text": self.texts[:40], "n": list(range(40))})
        good = {"cut.parquet": lambda f: parquet.write_table(small, f, compression="none"),
                "cut.feather": lambda f: feather.write_feather(small, f)}
        for name, write in good.items():
            file = self.path / name
            write(str(file))
            data = file.read_bytes()
            for size in (12, len(data) // 2, len(data) - 1):
                self.refused(file, data[:size])
            if name.endswith("parquet"):
                at = len(data) - 8  # the footer's size
                for lie in (1, len(data), 0xFFFFFFFF):
                    self.refused(file, data[:at] + struct.pack("<I", lie) + data[at + 4:])
        stream = self.path / "lies.arrow"
        with pyarrow.OSFile(str(stream), "wb") as sink, pyarrow.ipc.new_stream(sink, small.schema) as out:
            out.write_table(small)
        data = stream.read_bytes()
        self.refused(stream, data[:-8])  # without the mark of the end
        for lie in (1, 0x7FFFFFFF):
            self.refused(stream, data[:4] + struct.pack("<I", lie) + data[8:])
        for text, wrong in ((b"PAR1", b"PARE"), (b"ARROW1", b"ARROW2")):
            self.refused(self.path / ("x.parquet" if text == b"PAR1" else "x.arrow"), wrong + data)
        result = subprocess.run([MEGATRON, "data", "preprocess", "--input", "-", "--tokenizer", self.tokenizer,
                                 "--output-prefix", self.path / "pipe"], input=(self.path / "cut.feather").read_bytes(),
                                capture_output=True)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.bytes_at_random_do_no_harm()

    def refused(self, file, data):
        file.write_bytes(data)
        words = ["data", "preprocess", "--input", file, "--tokenizer", self.tokenizer, "--output-prefix",
                 self.path / "refused", "--on-error", "skip"]
        message = run(*words, code=2)
        self.assertIn(str(file), message)
        self.assertEqual(list(self.path.glob("refused*.bin")), [])

    def bytes_at_random_do_no_harm(self):
        """Tokens or exit code 2, never a crash."""
        draw = random.Random(drawn_seed())
        files = {"r.parquet": lambda f: parquet.write_table(self.table.slice(0, 50), f),
                 "r.feather": lambda f: feather.write_feather(self.table.slice(0, 50), f)}
        for name, write in files.items():
            file = self.path / name
            write(str(file))
            data = file.read_bytes()
            for _ in range(5):
                changed = bytearray(data)
                for _ in range(draw.randrange(1, 20)):
                    changed[draw.randrange(len(changed))] = draw.randrange(256)
                file.write_bytes(changed)
                result = subprocess.run([MEGATRON, "data", "preprocess", "--input", file, "--tokenizer", self.tokenizer,
                                         "--output-prefix", self.path / "random", "--on-error", "skip"],
                                        capture_output=True, timeout=100)
                self.assertIn(result.returncode, (0, 2), result.stderr)


if __name__ == "__main__":
    unittest.main()
