"""The jobs that make data: what they refuse, and that what they print is true."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path += [str(pathlib.Path(__file__).resolve().parents[up] / name) for up, name in ((2, "testing"), (3, "scripts"))]
import kill_preprocess_test  # noqa: E402
from program import MEGATRON, UNPACKED, drawn_seed, run, text_of_sentences  # noqa: E402


class DataJobs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="megatron-data-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.text = self.path / "text.txt"
        self.text.write_text("\n".join(text_of_sentences(300)))

    def train(self, *options, code=0):
        return run("tokenizer", "train", "--input", self.text, "--vocab-size", 300, "--output",
                   self.path / "tokenizer", *options, code=code)

    def preprocess(self, *options, code=0):
        return run("data", "preprocess", "--input", self.text, "--tokenizer", self.path / "tokenizer",
                   "--output-prefix", self.path / "tokens", *options, code=code)

    def test_a_standard_output_that_is_full_is_a_failure(self):
        for job in (["docs", "config"], ["version"], ["data", "info", "--help"]):
            with open("/dev/full", "w") as full:
                result = subprocess.run([MEGATRON, *job], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual(result.returncode, 1, job)
            self.assertIn("standard output: could not be written.\n  got:  No space left on device", result.stderr)

    def test_words_that_mean_nothing_are_refused(self):
        self.assertIn("stray", run("docs", "config", "stray", code=2))

    def test_outputs_that_cannot_be_written_are_refused_with_rule_got_and_fix(self):
        self.train()
        below_a_file = self.text / "folder"
        for message in (self.train("--output", below_a_file, code=2),
                        self.preprocess("--output-prefix", below_a_file / "tokens", code=2)):
            self.assertIn(str(below_a_file), message)
            self.assertIn("got:", message)
            self.assertIn("fix:", message)

    def test_wrong_numbers_name_their_option(self):
        self.train()
        for option, values in {"--workers": [-1, 1025], "--piece-bytes": [0, 1 << 40]}.items():
            for value in values:
                self.assertIn(option, self.preprocess(option, value, code=2))
        self.assertFalse((self.path / "tokens_text_document.bin").exists())
        self.assertIn("--sizes", run("bench", "comm", "--sizes", 6, code=2))

    def test_a_vocabulary_is_not_learned_from_nothing(self):
        self.text.write_text("")
        self.assertIn("must hold text", self.train(code=2))
        self.assertFalse((self.path / "tokenizer").exists())

    def test_a_sample_longer_than_any_model_is_refused_before_files_are_written(self):
        self.train()
        self.preprocess("--format", "lines")
        message = run("data", "index", self.path / "tokens_text_document", "--seq-length", 99999999999, "--samples",
                      "1,1,0", "--split", "9,1,0", "--output", self.path / "index", code=2)
        self.assertIn("99999999999", message)
        self.assertEqual(list(self.path.glob("index/*")), [])

    def test_an_index_whose_last_part_has_no_text_leaves_nothing(self):
        self.text.write_text("one line\n")
        self.train()
        self.preprocess("--format", "lines")
        for kind in (["--kind", "gpt"], ["--kind", "bert", "--one-segment"]):
            run("data", "index", self.path / "tokens_text_document", *kind, "--seq-length", 16, "--samples", "1,1,1",
                "--output", self.path / "index", code=2)
            self.assertFalse((self.path / "index").exists())

    def test_a_pattern_of_megatrons_names_all_files_it_matches(self):
        self.train()
        for name, text in (("d2", "second"), ("d1", "first"), ("other", "no")):
            (self.path / f"{name}.jsonl").write_text(json.dumps({"text": text}) + "\n")
        words = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", self.path / "tokenizer"]
        run("preprocess_data", "--input", self.path / "d*.jsonl", "--output-prefix", self.path / "all", *words)
        self.assertEqual(run("data", "cat", self.path / "all_text_document", "--tokenizer", self.path / "tokenizer",
                             "--json").count("\n"), 2)
        self.assertIn("which none does", run("preprocess_data", "--input", self.path / "x*", "--output-prefix",
                                             self.path / "none", *words, code=2))

    def test_the_order_of_sentences_is_megatron_cores(self):
        golden = UNPACKED / "samples"
        for kind in "bert", "t5":
            run("data", "index", golden / "indexed/bert_text_sentence", "--kind", kind, "--seq-length", 128,
                "--samples", "1000,20,1", "--split", "949,46,5", "--output", self.path / kind)
            self.assertEqual((self.path / kind / "valid_sample_index.npy").read_bytes(),
                             (golden / kind / "pretrain/valid.sample_index.npy").read_bytes())
        message = run("data", "index", golden / "indexed/bert_text_sentence", "--kind", "ict", "--seq-length", 128,
                      "--samples", "1,1,1", "--output", self.path / "ict", code=2)
        self.assertIn("must be one of gpt, bert, t5", message)

    def test_a_path_that_is_not_utf8_can_be_reported(self):
        output = os.fsencode(self.path) + b"/\xff"
        words = ["tokenizer", "train", "--input", self.text, "--vocab-size", "300", "--output", output, "--json"]
        result = subprocess.run([MEGATRON, *words], stdout=subprocess.PIPE)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(json.loads(result.stdout)["vocab_size"], 300)

    def test_pairs_are_summed_up_printed_split_and_merged_again(self):
        self.train()
        self.preprocess("--format", "lines")
        pair, lines = self.path / "tokens_text_document", self.text.read_text().splitlines()
        info = json.loads(run("data", "info", pair, "--json"))
        self.assertEqual(info["documents"], len(lines))
        self.assertEqual(sum(row["documents"] for row in info["document_lengths"]), len(lines))
        self.assertEqual(info["bin_bytes"], 2 * info["tokens"])
        self.assertLess(info["greatest_id"], 300)
        self.assertIn("█", run("data", "info", pair))
        printed = run("data", "cat", pair, "--range", "3:5", "--tokenizer", self.path / "tokenizer")
        self.assertEqual(printed, f"--- document 3\n{lines[3]}\n--- document 4\n{lines[4]}\n")
        third = run("data", "cat", pair, "--range", "2")
        self.assertIn("--range", run("data", "cat", pair, "--range", "5:3", code=2))
        run("data", "split", pair, "--shares", "8,1,1", "--output-prefix", self.path / "part", "--names", "a", "b", "c")
        parts = [self.path / f"part_{name}" for name in "abc"]
        sizes = [struct.unpack_from("<Q", pathlib.Path(f"{part}.idx").read_bytes(), 18) for part in parts]
        self.assertEqual(sizes, [(240,), (30,), (30,)])
        run("data", "merge", *parts, "--output-prefix", self.path / "again")
        for ending in (".bin", ".idx"):
            self.assertEqual((self.path / f"again{ending}").read_bytes(), pathlib.Path(f"{pair}{ending}").read_bytes())
        run("data", "split", pair, "--documents", "2,1", "--output-prefix", self.path / "few")
        self.assertEqual(run("data", "cat", self.path / "few_1"), third.replace("2", "0", 1))
        ids = json.loads(run("data", "cat", self.path / "few_1", "--json"))["sequences"][0]["ids"]
        self.assertEqual(third.split("\n")[1], " ".join(map(str, ids)))
        for wrong in (["--documents", "301"], ["--shares", "1", "--documents", "1"]):
            run("data", "split", pair, *wrong, "--output-prefix", self.path / "wrong", code=2)
        self.assertIn("inputs", run("data", "merge", *parts, "--output-prefix", parts[1], code=2))

    def test_a_damaged_index_is_refused_by_every_job_that_reads_pairs(self):
        self.train()
        self.preprocess("--format", "lines")
        index = self.path / "tokens_text_document.idx"
        content = bytearray(index.read_bytes())
        content[34:38] = (1 << 30).to_bytes(4, "little")  # the length of the first sequence
        index.write_bytes(content)
        pair = self.path / "tokens_text_document"
        for words in (["info", pair], ["cat", pair], ["merge", pair, "--output-prefix", self.path / "x"],
                      ["split", pair, "--shares", "1,1", "--output-prefix", self.path / "x"]):
            self.assertIn("must lie within the .bin file", run("data", *words, code=2))
        self.assertEqual(list(self.path.glob("x*")), [])

    def test_bad_lines_end_a_run_or_are_counted_and_reported(self):
        self.train()
        lines = '{"text": "one", "title": "a"}\nnonsense\n{"text": "two", "title": "b"}\n'
        words = ["data", "preprocess", "--input", "-", "--format", "jsonl", "--tokenizer", self.path / "tokenizer",
                 "--output-prefix", self.path / "piped", "--json-keys", "text", "title", "--json"]
        self.assertIn("standard input, line 2, byte 30: each line must be JSON", run(*words, code=2, stdin=lines))
        self.assertEqual(list(self.path.glob("piped*")), [])
        report = json.loads(run(*words, "--on-error", "skip", stdin=lines))
        self.assertEqual(report["bad_lines"], 1)
        self.assertEqual([pair["documents"] for pair in report["pairs"]], [2, 2])
        for alone in (["--keep-newlines"], ["--lang", "de"], ["--piece-bytes", 100]):
            self.assertIn(f"{alone[0]} needs", self.preprocess(*alone, code=2))
        self.assertIn("sentences", self.preprocess("--split-sentences", "--lang", "xx", code=2))

    def test_killed_again_and_again_the_files_come_out_the_same(self):
        kill_preprocess_test.kill_after_notes(kill_preprocess_test.Input(self.path, megabytes=24), 3)

    def test_killed_at_random_moments_the_files_come_out_the_same(self):
        kill_preprocess_test.kill_at_random_moments(kill_preprocess_test.Input(self.path, megabytes=8), 4, drawn_seed())

    def test_blank_lines_and_empty_documents_are_counted(self):
        self.train()
        lines = '{"text": "one"}\n\n{"text": ""}\n \n'
        words = ["data", "preprocess", "--input", "-", "--format", "jsonl", "--tokenizer", self.path / "tokenizer",
                 "--output-prefix", self.path / "piped"]
        report = json.loads(run(*words, "--json", stdin=lines))
        self.assertEqual((report["blank_lines"], report["empty_documents"]), (2, 1))
        self.assertIn("2 blank lines skipped; 1 documents without a token", run(*words, stdin=lines))

    def test_a_folder_is_no_input(self):
        self.train()
        self.assertIn(f"{self.path}/*", self.preprocess("--input", self.path, code=2))

    def test_documents_of_bert_end_with_sep_and_texts_are_framed_where_asked(self):
        vocabulary = self.path / "vocab.txt"
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "."]))
        self.text.write_text('{"text": ["The cat.", "the"]}\n{"text": "cat"}\n')

        def ids(*options):
            run("data", "preprocess", "--input", self.text, "--format", "jsonl", "--tokenizer", vocabulary,
                "--tokenizer-type", "BertWordPieceLowerCase", "--output-prefix", self.path / "bert", *options)
            printed = run("data", "cat", self.path / "bert_text_document", "--range", "0:2", "--json")
            return [row["ids"] for line in printed.splitlines() for row in json.loads(line)["sequences"]]
        self.assertEqual(ids(), [[5, 6, 7], [5], [6]])
        self.assertEqual(ids("--append-eod"), [[5, 6, 7], [5, 3], [6, 3]])
        self.assertEqual(ids("--add-special-tokens", "--append-eod"),
                         [[2, 5, 6, 7, 3], [2, 5, 3, 3], [2, 6, 3, 3]])

    def test_the_data_benchmark_measures_every_part(self):
        self.train()
        report = json.loads(run("bench", "data", "--input", self.text, "--tokenizer", self.path / "tokenizer",
                                "--seq-length", 16, "--samples", 100, "--fetches", 10, "--repeats", 1, "--json"))
        self.assertAlmostEqual(report["text_mb"] * 1e6, self.text.stat().st_size)
        self.assertGreaterEqual(report["index_samples"], 100)
        for figure in ("preprocess_mb_per_s", "index_s", "fetch_us_per_sample", "fetch_tokens_per_s"):
            self.assertGreater(report[figure], 0)


if __name__ == "__main__":
    unittest.main()
