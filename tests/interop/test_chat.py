"""Conversations are the same tokens to the program and to transformers' apply_chat_template.

Needs numpy and transformers. Renders snippets of Jinja by both too, where the unit tests are beside the program."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import MEGATRON, MODELS, UNPACKED, drawn_seed, run  # noqa: E402

numpy, transformers, MISSING = peers("numpy", "transformers")
SMOLLM2 = MODELS / "smollm2-135m-instruct"
NO_MODEL = "" if SMOLLM2.exists() else f"{SMOLLM2} is not there"

TEMPLATES = {path.stem: path.read_text() for path in
             (pathlib.Path(__file__).resolve().parents[1] / "golden/chat").glob("*.jinja")}

PUBLISHED = {path.stem: path.read_text() for path in (UNPACKED / "golden/chat/published").glob("*.jinja")}

USER, ASSISTANT, SYSTEM = (lambda text, role=role: {"role": role, "content": text}
                           for role in ("user", "assistant", "system"))
TALKS = [
    [USER("Hi"), ASSISTANT("Hello, what is it?")],
    [USER(" blanks at both ends \n"), ASSISTANT("\n\nlines \n"), USER("Grüße, 東京 😀"), ASSISTANT("2 + 2 = 4.\n")],
    [USER("a"), ASSISTANT(""), USER("b"), ASSISTANT("c")],
    [USER("no answer yet")],
]
WITH_SYSTEM = TALKS + [[SYSTEM(" Be brief. "), USER("Hi"), ASSISTANT("Yes.")]]


def documents(prefix):
    """The documents of an int32 pair."""
    idx = pathlib.Path(str(prefix) + ".idx").read_bytes()
    count, = struct.unpack_from("<Q", idx, 18)
    lengths = numpy.frombuffer(idx, "<i4", count, 34)
    return numpy.split(numpy.fromfile(str(prefix) + ".bin", "<i4"), numpy.cumsum(lengths)[:-1])


@unittest.skipIf(MISSING, MISSING)
class Golden(unittest.TestCase):
    def test_what_the_unit_tests_compare_with_is_what_transformers_writes(self):
        import chat_golden
        self.assertEqual((chat_golden.PACKED / "rendered.json").read_text(),
                         chat_golden.text_of(chat_golden.golden(), 3) + "\n")


TEXT_TEST = pathlib.Path(MEGATRON).resolve().parent / "text_test"


@unittest.skipIf(MISSING, MISSING)
class Snippets(unittest.TestCase):
    def test_the_snippets_of_the_unit_tests_are_what_jinja_writes(self):
        import chat_golden
        import jinja_snippets
        self.assertEqual(jinja_snippets.PATH.read_text(),
                         chat_golden.text_of(jinja_snippets.results(jinja_snippets.snippets()), 2) + "\n")

    @unittest.skipUnless(TEXT_TEST.exists(), f"{TEXT_TEST} is not there")
    def test_what_is_drawn_of_filters_tests_methods_and_formats_is_the_same_text_or_refused(self):
        import jinja_snippets
        seed = drawn_seed()
        with tempfile.TemporaryDirectory(prefix="megatron-jinja-") as name:
            path = pathlib.Path(name) / "snippets.json"
            path.write_text(json.dumps(jinja_snippets.results(jinja_snippets.generated(seed, 3000))))
            done = subprocess.run([TEXT_TEST, "--gtest_filter=Jinja.RendersSnippetsAsJinjaDoes"],
                                  env={**os.environ, "MEGATRON_JINJA_SNIPPETS": str(path)}, capture_output=True,
                                  text=True)
        self.assertEqual(done.returncode, 0, done.stdout[-8000:])
        self.assertIn("[  PASSED  ] 1 test", done.stdout)


@unittest.skipIf(MISSING or NO_MODEL, MISSING or NO_MODEL)
class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.theirs = transformers.AutoTokenizer.from_pretrained(SMOLLM2)

    def tokenizer_with(self, folder, template):
        """SmolLM2's tokenizer with another template, in a folder and as transformers has it."""
        folder.mkdir()
        shutil.copy(SMOLLM2 / "tokenizer.json", folder)
        config = json.loads((SMOLLM2 / "tokenizer_config.json").read_text())
        config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        self.theirs.chat_template = template
        return self.theirs

    def train(self, folder, tokenizer):
        recipe = folder / "recipe.toml"
        recipe.write_text("[model]\nnum_layers = 1\nhidden_size = 8\nnum_attention_heads = 1\n"
                          "[data]\nseq_length = 128\nsft = true\nsplit = '1'\n[train]\ntrain_iters = 1\n")
        run("train", recipe, "--data-path", folder / "chats.jsonl", "--tokenizer", tokenizer, "--data-cache-path",
            folder / "cache", "--train.out", folder / "run")
        return documents(next((folder / "cache").glob("*chats.idx")).with_suffix(""))

    def check_family(self, template, talks):
        with tempfile.TemporaryDirectory(prefix="megatron-chat-") as name:
            folder = pathlib.Path(name)
            theirs = self.tokenizer_with(folder / "tokenizer", template)
            (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
            ours = self.train(folder, folder / "tokenizer")
        self.assertEqual(len(ours), len(talks))
        for talk, stored in zip(talks, ours):
            ids = theirs.apply_chat_template(talk, tokenize=True, return_dict=False)
            self.assertEqual(numpy.where(stored < 0, ~stored, stored).tolist(), ids, talk)
            learned = theirs.decode(stored[stored >= 0])
            for turn in talk:
                if turn["role"] == "assistant":
                    self.assertIn(turn["content"].strip(), learned)
                else:
                    self.assertNotIn(turn["content"].strip() + "<", learned)

    def test_chatml_of_smollm2_and_qwen(self):
        self.check_family(json.loads((SMOLLM2 / "tokenizer_config.json").read_text())["chat_template"], WITH_SYSTEM)
        self.check_family(TEMPLATES["chatml"], WITH_SYSTEM)
        self.check_family(TEMPLATES["qwen2.5"], WITH_SYSTEM)

    def test_llama_2(self):
        self.check_family(TEMPLATES["llama2"], WITH_SYSTEM)

    def test_llama_3(self):
        self.check_family(TEMPLATES["llama3"], WITH_SYSTEM)
        self.check_family(TEMPLATES["llama3.1"], WITH_SYSTEM)

    def test_mistral(self):
        self.check_family(TEMPLATES["mistral"], TALKS)
        self.check_family(TEMPLATES["mistral"].replace("+ eos_token", "+ eos_token + ' '"), TALKS)
        self.check_family(TEMPLATES["mistral_v3"], TALKS)

    def test_templates_that_the_program_has_no_word_of(self):
        self.check_family(TEMPLATES["chatml"].replace("'<|im_end|>' + '\n'", "'<|im_end|>'"), WITH_SYSTEM)
        for name in "google-gemma-2-2b-it", "LFM2-8B-A1B", "llama-cpp-rwkv-world":
            self.check_family(PUBLISHED[name], TALKS)

    def test_marked_answers_are_those_of_transformers(self):
        template = TEMPLATES["chatml"].replace(
            "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
            "{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}{% generation %}"
            "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}"
            "{{ message['content'] + '<|im_end|>\n' }}{% endif %}")
        self.assertIn("{% generation %}", template)
        with tempfile.TemporaryDirectory(prefix="megatron-chat-") as name:
            folder = pathlib.Path(name)
            theirs = self.tokenizer_with(folder / "tokenizer", template)
            # Of a token over the border of an answer transformers learns the whole: none begins with a line end here.
            talks = [talk for talk in WITH_SYSTEM if not talk[1:2] or not talk[1]["content"].startswith("\n")]
            (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
            ours = self.train(folder, folder / "tokenizer")
        for talk, stored in zip(talks, ours):
            result = theirs.apply_chat_template(talk, tokenize=True, return_dict=True,
                                                return_assistant_tokens_mask=True)
            self.assertEqual((stored >= 0).astype(int).tolist(), result["assistant_masks"], talk)
            self.assertEqual(numpy.where(stored < 0, ~stored, stored).tolist(), result["input_ids"], talk)

    def test_an_answer_that_the_template_changes_later_is_named(self):
        with tempfile.TemporaryDirectory(prefix="megatron-chat-") as name:
            folder = pathlib.Path(name)
            self.tokenizer_with(folder / "tokenizer", PUBLISHED["Qwen-Qwen3-0.6B"])
            (folder / "chats.jsonl").write_text(json.dumps({"messages": TALKS[1]}) + "\n")
            with self.assertRaisesRegex(Exception, "line 1: .*(?s:.*)message 2"):
                self.train(folder, folder / "tokenizer")

    def test_what_is_advised_fits_what_the_template_does(self):
        asks = ["generate", "--load", SMOLLM2, "--chat", "--system", "Be brief.", "--prompt", "Hi"]
        for template, advice in [("{{ raise_exception('no system') }}", "fix:  leave --system out\n"),
                                 ("{{ messages | urlize }}", "fix:  leave --chat and --system out, or name a chat")]:
            with tempfile.TemporaryDirectory(prefix="megatron-chat-") as name:
                folder = pathlib.Path(name) / "tokenizer"
                self.tokenizer_with(folder, template)
                self.assertIn(advice, run(*asks, "--tokenizer", folder, code=2) + "\n", template)

    def test_generation_is_asked_with_the_same_prompt(self):
        theirs = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
        for system in ("", "Answer in one word."):
            talk = ([SYSTEM(system)] if system else []) + [USER("What is the capital of France?")]
            words = ["--system", system] if system else []
            report = json.loads(run("generate", "--load", SMOLLM2, "--chat", "--prompt", talk[-1]["content"],
                                    "--max-new-tokens", 1, "--temperature", 0, "--json", *words))
            ids = theirs.apply_chat_template(talk, tokenize=True, add_generation_prompt=True, return_dict=False)
            self.assertEqual(report["prompt_ids"], ids)


if __name__ == "__main__":
    unittest.main()
