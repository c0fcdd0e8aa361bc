#!/usr/bin/env python3
"""What transformers makes of published chat templates, and Jinja2 of short ones: golden/chat/rendered.json of the
archive tests/golden/packed.tar.xz. Written where that is unpacked; pack it again by tests/golden/unpack.py.

    python3 chat_golden.py [--templates FOLDER]

Needs transformers and jinja2. FOLDER: templates to take into golden/chat/published first; those that are there
come from the source distribution of llama_cpp_python 0.3.36, vendor/llama.cpp/models/templates
(pip download --no-deps --no-binary llama_cpp_python llama_cpp_python==0.3.36).
"""
import argparse
import datetime
import json
import pathlib
import shutil

import jinja2
from transformers.utils import chat_template_utils

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden/chat"
PACKED = pathlib.Path(__file__).resolve().parents[2] / ".cache/golden/golden/chat"
PUBLISHED = """
Apertus-8B-Instruct Bielik-11B-v3.0-Instruct ByteDance-Seed-OSS GLM-4.6 GLM-4.7-Flash HuggingFaceTB-SmolLM3-3B
Kimi-K2-Instruct Kimi-K2-Thinking LFM2-8B-A1B LFM2.5-8B-A1B MiMo-VL MiniMax-M1 MiniMax-M2
Mistral-Small-3.2-24B-Instruct-2506 NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 NVIDIA-Nemotron-Nano-v2
NousResearch-Hermes-3-Llama-3.1-8B-tool_use Qwen-QwQ-32B Qwen-Qwen2.5-7B-Instruct Qwen-Qwen3-0.6B Qwen3-Coder Qwen3.5-4B
Reka-Edge Spark2.5 StepFun3.5-Flash deepseek-ai-DeepSeek-R1-Distill-Qwen-32B deepseek-ai-DeepSeek-V3.1
deepseek-ai-DeepSeek-V3.2 fireworks-ai-llama-3-firefunction-v2 google-gemma-2-2b-it ibm-granite-granite-3.3-2B-Instruct
ibm-granite-granite-4.0 inclusionai-ling-3.0-flash llama-cpp-deepseek-r1 llama-cpp-rwkv-world
meetkai-functionary-medium-v3.1 meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct
microsoft-Phi-3.5-mini-instruct mistralai-Ministral-3-14B-Reasoning-2512 mistralai-Mistral-Nemo-Instruct-2407
moonshotai-Kimi-K2 openai-gpt-oss-120b openbmb-MiniCPM5-1B poolside-Laguna-XS.2 unsloth-Apriel-1.5
upstage-Solar-Open-100B
""".split()

NOW = datetime.datetime(2026, 7, 26, 12, 0, 0)

USER, ASSISTANT, SYSTEM = (lambda content, role=role, **more: {"role": role, "content": content, **more}
                           for role in ("user", "assistant", "system"))
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place <now>.",
    "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "City, as \"Zürich\""},
        "days": {"type": "integer", "description": "From 1"},
        "units": {"type": "string", "enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "string"}}}}}}
CALL = {"id": "call12345", "type": "function",
        "function": {"name": "get_weather", "arguments": {"place": "Zürich", "days": 2}}}

# Variables of a rendering, besides those of every one.
CONVERSATIONS = {
    "question": {"messages": [USER("Hi")], "add_generation_prompt": True},
    "turns": {"messages": [USER(" blanks at both ends \n"), ASSISTANT("\n\nlines \n"), USER("Grüße, 東京 😀 <b>\"'&"),
                           ASSISTANT("2 + 2 = 4.\n")]},
    "system": {"messages": [SYSTEM(" Be brief. "), USER("Hi"), ASSISTANT("Yes."), USER("More?")],
               "add_generation_prompt": True},
    "thought": {"messages": [USER("2 + 2?"), ASSISTANT("<think>\nTwo and two.\n</think>\n\n4"), USER("3 + 3?"),
                             ASSISTANT("<think>Three.</think>6")]},
    "reasons": {"messages": [SYSTEM("Think."), USER("2 + 2?"), ASSISTANT("4", reasoning_content="Two and two."),
                             USER("3 + 3?")], "add_generation_prompt": True, "enable_thinking": False},
    "tools": {"messages": [SYSTEM("Use tools."), USER("Weather?"), ASSISTANT("", tool_calls=[CALL]),
                           {"role": "tool", "name": "get_weather", "tool_call_id": "call12345",
                            "content": "{\"C\": 21.5}"}, ASSISTANT("Warm."), USER("Thanks")],
              "tools": [TOOL], "add_generation_prompt": True},
    "parts": {"messages": [USER([{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}])]},
    "user_twice": {"messages": [USER("a"), USER("b")]},
}
EVERY = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": False}

# Jinja itself, by short templates of these variables; two spaces between them.
VARIABLES = {"n": 7, "x": 2.5, "no": None, "yes": True, "word": "Grüße 東京", "line": " a, b,c \n", "empty": "",
             "list": [3, 1, 2], "words": ["b", "A", "c"], "nested": {"a": {"b": [1, {"c": "d"}]}, "items": 5},
             "people": [{"name": "Bo", "age": 3}, {"name": "al", "age": 5, "tag": "<&>"}, {"name": "Bo", "age": 4}]}
EXPRESSIONS = """
n + 1 * 2 - 3  n / 2  n // 2  -n // 2  n % 3  -n % 3  n % -3  2 ** 3 ** 2  1 / 3  1e3  0.1 + 0.2  1e16  1e-5  -x  +x
x // 1  7.0  1_000
n ~ x ~ no ~ yes ~ empty  'a' 'b' "c"  'a\\n\\t\\'\\x41\\u00e9'  "it's"  '%s has %d%%' % ('a', 3)  'a' * 3  list + [4]
[1, 'a', none, x, true]
(1,)  (1, 2)  ()  {}  {'a': 1, 'b': [2, "it's"]}  {1: 'a'}[1]  ['é', 'a\\nb', "'", '"']  missing  missing is defined
no is none
n > 3 and n < 10  1 < 2 < 3  3 < 2 or yes  not yes  not n == 7  'a' if no else 'b'  'a' if no  n == 7.0  1 == true
'7' == n
list == [3, 1, 2]  (1, 2) == [1, 2]  nested == nested  'a' < 'b'  'a' in 'cat'  4 in list  2 not in list
'a' in nested  'a' in missing
list[0]  list[-1]  list[9]  list[1:]  list[::-1]  list[:-1]  list[-2:]  list[5:]  word[0]  word[-1]  word[2:4]
word[::-1]  word[::2]  line[-9:2]
nested.a.b[1].c  nested['a']['b'][0]  nested.items is callable  nested['items']  nested.zip  no.x  list.x
n.real is defined  word.x is defined
nested.a.b[1]['c'][0]  list.0  nested.get('zip')  nested.get('zip', 3)  nested.get('items')  nested.items()|list
nested.keys()|list
word|length  list|length  nested|length  missing|length  word|upper  word|lower  'abc'|upper  'ABC'|lower
'a b-c'|title  'aBC'|capitalize
line|trim  line.strip()  line.lstrip()  line.rstrip('\\n ')  line.split(',')  line.split()  ' a b c '.split(none, 1)
'a,b,c'.rsplit(',', 1)  'abc'.split('b')
'a b c'.rsplit()  'a\\nb\\r\\nc\\n'.splitlines()  'abc'.startswith('a')  'abc'.startswith(('x', 'a'))
'abc'.endswith('c')  'abcb'.replace('b', 'x')  'abcb'.replace('b', 'x', 1)
'abc'.find('c')  '東京é'.find('é')  'abc'.rfind('x')  'abcabc'.count('bc')  '-'.join(words)  'x'.join('abc')
'{} and {}'.format(1, 'b')  '{0}{1}{0}'.format('a', 'b')  '{{}}'.format()
'12'.isdigit()  'a1'.isalnum()  'Ab'.isalpha()  ' '.isspace()  'ab'.islower()  '7'.zfill(3)  '-7'.zfill(4)
'ab'.removeprefix('a')  'ab'.removesuffix('b')  'a=b=c'.partition('=')  'abc'.rpartition('=')
words|join(', ')  list|join  people|join('-', attribute='name')  list|sort  list|sort(reverse=true)  words|sort
words|sort(case_sensitive=true)  people|sort(attribute='name')|map(attribute='age')|list
people|map(attribute='tag', default='-')|list  people|selectattr('age', '>', 3)|list|length
people|rejectattr('tag')|list|length  people|selectattr('tag', 'defined')|map(attribute='name')|join
list|select('odd')|list  list|reject('gt', 1)|list  list|map('string')|join('+')  words|map('upper')|list
list|select|list  people|map(attribute='name')|unique|list  list|first  list|last  empty|first
list|sum  people|sum(attribute='age')  list|min  list|max  list|reverse|list  'abc'|reverse  nested|dictsort|first
{'b': 1, 'A': 2}|dictsort  {'b': 1, 'A': 2}|items|list
missing|default('d')  empty|default('d')  empty|default('d', true)  no|default('d')  missing|d  '3'|int + 1  'x'|int
'x'|int(5)  2.7|int  '4'|float  n|string + 'a'  -3|abs  x|round  3.5|round
word|tojson  nested|tojson  people|tojson(indent=2)  '\\u2028\\x7f\\x01"\\\\/\\n'|tojson
'é😀'|tojson(ensure_ascii=true)  {'b': 1, 'a': [1.0, none, true, 1e20]}|tojson(sort_keys=true)  []|tojson(indent=1)
[1, 2]|tojson(separators=(',', ':'))
'a\\nb\\n\\nc'|indent  'a\\nb'|indent(2, true)  'a\\n\\nb'|indent(1, blank=true)  '<&>'|safe  ('<b>'|safe) + '<c>'
'<c>' + ('<b>'|safe)  ('<b>'|safe) ~ '<c>'  ' <b> '|safe|trim
n is odd  n is even  n is divisibleby 7  n is divisibleby(2)  n is number  yes is number  n is integer  x is float
word is string  nested is mapping  list is iterable  word is iterable
list is sequence  nested is sequence  n is sequence  missing is sequence  missing is iterable  yes is boolean
yes is true  no is false  n is sameas none  n is eq 7  n is in list  3 is in list  'ab' is lower  n is not none
missing is undefined  not missing
namespace(a=1).a  dict(a=1, b=2)  range(3)|list  range(1, 7, 3)|list  range(3, 0, -1)|list  strftime_now('%d %b %Y')
strftime_now('%Y-%m-%dT%H:%M:%S %A %B %j')  (list|map('string'))|length  nested.a|list
[[1, 2], (3,)]  [no, missing is defined]  'x' if missing else 'y' if no else 'z'  (n if yes) + 1  list|length > 2
words|join|length  -2|abs  n.__class__  list.append(4)  nested.update({})  1 // 0  missing.x  no + 1  'a' + 1  n()
[] + ()  'a' < 1  nested|foo  n is foo  foo()  ''.format('a', b=1)  9223372036854775807 + 1
""".strip().replace("\n", "  ").split("  ")
EXPRESSIONS = ["{{ " + expression + " }}" for expression in EXPRESSIONS]

# Whole templates, of the same variables.
TEMPLATES = [
    "{% for i in list %}{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for i in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.length }}{{"
    " loop.first }}{% endfor %}", "{% for i in list %}[{{ loop.previtem }} {{ loop.nextitem }}]{% endfor %}",
    "{% for i in list if i > 1 %}{{ loop.index }}:{{ i }} {% else %}none{% endfor %}",
    "{% for i in [] %}{{ i }}{% else %}none{% endfor %}", "{% for i in missing %}{{ i }}{% endfor %}-",
    "{% for k, v in nested.a.items() %}{{ k }}={{ v }}{% endfor %}", "{% for k in nested %}{{ k }} {% endfor %}",
    "{% for (a, b) in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}", "{% for c in word %}{{ c }}|{% endfor %}",
    "{% for i in list %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in list %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in list %}{% for j in list %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfo"
    "r %}", "{% set a = 1 %}{% for i in list %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }}",
    "{% set ns = namespace(a=0, b='') %}{% for i in list %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b ~ i %}{% end"
    "for %}{{ ns.a }} {{ ns.b }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set t = 1, 2 %}{{ t }}",
    "{% set a %}x{{ n }}\n{% endset %}[{{ a }}]", "{% set a | upper | trim %}  x{{ n }} {% endset %}[{{ a }}]",
    "{% filter upper %}a{{ n }}b{% endfilter %}", "{% if no %}a{% elif n > 3 %}b{% else %}c{% endif %}",
    "{% if n > 9 %}a{% else %}{% set q = 3 %}{% endif %}{{ q }}",
    "{% macro f(a, b=2, c='x' ~ a) %}({{ a }}{{ b }}{{ c }}){% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f(b=1, a=0) }"
    "}{{ f() }}", "{% macro f(a) %}{{ a }}{% if a > 0 %}{{ f(a - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{{ z }}{% endmacro %}{{ f() }}{% set z = 5 %}{{ f() }}",
    "{% macro f() %}{% set z = 1 %}{{ z }}{% endmacro %}{% set z = 5 %}{{ f() }}{{ z }}",
    "{%- macro f(a) -%}\n  {{ a }}\n{%- endmacro -%}\n{{ f('x') | upper }}",
    "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{# a comment #}a\n{# another\n #}\nb", "{#- a -#}  b",
    "a  {#- b #}", "{% raw %}{{ n }}{% endraw %}\nb", "a {%- raw -%} {{ n }} {%- endraw %} b",
    "  {% if yes %}\n    a\n  {% endif %}\nb\n", "a {% if yes %} b {% endif %} c",
    "a\n\n  {%- if yes -%}\n  b  \n{%- endif -%}\n c", "a\n  {%+ if yes %}\nb{% endif +%}\nc",
    "  {{ n }}  \n  {{- n -}}  \n", "{{ n }}\n{{ n }}\n\n", "a\r\nb\rc\r\n", "{{ {'a': {'b': 1}} }}",
    "{{ {'a': 1}.a }}{{ '}}' }}", "{% generation %}a{{ n }}{% endgeneration %}b",
    "{% for i in list %}{% generation %}{{ i }}{% endgeneration %},{% endfor %}",
    "{% set a = 'x' %}{% generation %}{% set a = 'y' %}{{ a }}{% endgeneration %}{{ a }}",
    "{% set g = people | map(attribute='age') %}{{ g | list }}{{ g | list }}",
    "{% if people | selectattr('age', 'gt', 9) %}a{% endif %}", "{% for i in list | reverse %}{{ i }}{% endfor %}",
    "{% for i in range(2) %}{{ i }}{% endfor %}", "{{ raise_exception('no: ' ~ n) }}", "{% set loop = 3 %}{{ loop }}",
    "{% for i in list %}{% set l = loop %}{{ l.index }}{% endfor %}", "{{ list | length }}{{ '{%' }}",
    "{% for i in list %}{{ i }}", "{% if %}{% endif %}", "{{ }}", "{{ 'a }}", "{% endfor %}", "{% foo %}", "{{ n",
    "{# a", "{{ a b }}", "{{ (n }}", "{% set n %}", "{% break %}", "{{ n. }}", "{% for a in list %}{% endif %}",
    "{% raw %}", "{{ 1 +  }}",
]


class Day(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def rendered(template, variables):
    """{"text": …, "generated": byte ranges}, {"raises": message} or {"refused": why}."""
    given = {**EVERY, **variables}
    others = {key: value for key, value in given.items()
              if key not in ("messages", "tools", "documents", "add_generation_prompt")}
    chat_template_utils.datetime, real = Day, chat_template_utils.datetime
    try:
        text, ranges = chat_template_utils._render_with_assistant_indices(
            chat_template_utils._compile_jinja_template(template), given.get("messages"), given["tools"], None,
            given["add_generation_prompt"], **others)
    except jinja2.exceptions.TemplateError as error:
        return {"raises": str(error)} if type(error) is jinja2.exceptions.TemplateError else {"refused": str(error)}
    except Exception as error:  # of Python
        return {"refused": f"{type(error).__name__}: {error}"}
    finally:
        chat_template_utils.datetime = real
    result = {"text": text}
    if ranges:
        result["generated"] = [[len(text[:i].encode()) for i in one] for one in ranges]
    return result


def templates():
    """The text of each, by its name."""
    return {path.stem: path.read_bytes().decode() for folder in (GOLDEN, PACKED / "published")
            for path in sorted(folder.glob("*.jinja"))}


def golden():
    return {
        "every": EVERY, "conversations": CONVERSATIONS, "variables": VARIABLES,
        "published": {name: {key: rendered(template, variables) for key, variables in CONVERSATIONS.items()}
                      for name, template in templates().items()},
        "short": [[template, rendered(template, VARIABLES)]
                  for template in EXPRESSIONS + TEMPLATES],
    }


def text_of(value, depth=2):
    """JSON with a line for each value of the upper levels."""
    if depth == 0 or not value or not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    parts = [f"{json.dumps(key, ensure_ascii=False)}: {text_of(part, depth - 1)}" for key, part in value.items()] \
        if isinstance(value, dict) else [text_of(part, depth - 1) for part in value]
    return begin + "\n" + ",\n".join(parts) + "\n" + end


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates", type=pathlib.Path)
    folder = parser.parse_args().templates
    if folder:
        (PACKED / "published").mkdir(parents=True, exist_ok=True)
        for name in PUBLISHED:
            shutil.copyfile(folder / f"{name}.jinja", PACKED / "published" / f"{name}.jinja")
    (PACKED / "rendered.json").write_text(text_of(golden(), 3) + "\n")


if __name__ == "__main__":
    main()
