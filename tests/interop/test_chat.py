"""Conversations are the same tokens to the program and to transformers' apply_chat_template.

Needs numpy and transformers."""
import json
import pathlib
import shutil
import struct
import sys
import tempfile
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import MODELS, run  # noqa: E402

numpy, transformers, MISSING = peers("numpy", "transformers")
SMOLLM2 = MODELS / "smollm2-135m-instruct"
NO_MODEL = "" if SMOLLM2.exists() else f"{SMOLLM2} is not there"

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful assistant.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nYou may call one or more functions.\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n<tool_call>\n{\"name\": <function-name>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first)
           or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.arguments | tojson }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- message.content }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")
LLAMA31 = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
MISTRAL = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + "
           "message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + "
           "eos_token}}{% endif %}{% endfor %}")
MISTRAL_V1 = MISTRAL.replace("+ eos_token", "+ eos_token + ' '")

# Of version 0.3, which has white space, comments and lines where trim_blocks and lstrip_blocks matter.
MISTRAL_V3 = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- This block checks for alternating messages #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{% for message in loop_messages %}
    {% if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("roles must alternate") }}
    {% endif %}
    {# counts #}
    {% set ns.index = ns.index + 1 %}
{% endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS]" + tools | tojson }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""
PHI4 = ("{% for message in messages %}{% if (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + "
        "message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant"
        "<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}")

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


@unittest.skipIf(MISSING or NO_MODEL, MISSING or NO_MODEL)
class Chat(unittest.TestCase):
    def tokenizer_with(self, folder, template):
        """SmolLM2's tokenizer with another template."""
        folder.mkdir()
        shutil.copy(SMOLLM2 / "tokenizer.json", folder)
        config = json.loads((SMOLLM2 / "tokenizer_config.json").read_text())
        config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return transformers.AutoTokenizer.from_pretrained(folder)

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
        self.check_family(CHATML, WITH_SYSTEM)
        self.check_family(QWEN25, WITH_SYSTEM)

    def test_llama_2(self):
        self.check_family(LLAMA2, WITH_SYSTEM)

    def test_llama_3(self):
        self.check_family(LLAMA3, WITH_SYSTEM)
        self.check_family(LLAMA31, WITH_SYSTEM)

    def test_mistral(self):
        self.check_family(MISTRAL, TALKS)
        self.check_family(MISTRAL_V1, TALKS)
        self.check_family(MISTRAL_V3, TALKS)

    def test_others_are_refused(self):
        for template in PHI4, CHATML.replace("'<|im_end|>' + '\n'", "'<|im_end|>'"):
            with tempfile.TemporaryDirectory(prefix="megatron-chat-") as name:
                folder = pathlib.Path(name)
                self.tokenizer_with(folder / "tokenizer", template)
                (folder / "chats.jsonl").write_text(json.dumps({"messages": TALKS[0]}) + "\n")
                with self.assertRaisesRegex(Exception, "a chat template must be"):
                    self.train(folder, folder / "tokenizer")

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
