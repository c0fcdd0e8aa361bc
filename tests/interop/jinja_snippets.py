#!/usr/bin/env python3
"""Small Jinja templates and what transformers' Jinja makes of them.

    python3 jinja_snippets.py

writes tests/text/jinja_snippets.json, which the unit tests compare with: all that templates may use, by name.
generated() combines filters, tests, operators, methods and formats with values of every kind; test_chat.py has both
sides render those. Needs transformers and jinja2.
"""
import copy
import itertools
import json
import pathlib
import random

import chat_golden

PATH = pathlib.Path(__file__).resolve().parents[1] / "text/jinja_snippets.json"
VARIABLES = {
    **chat_golden.VARIABLES, "big": 1234567.891, "neg": -7, "one": 1,
    "text": "The quick brown fox. It's <b>bold</b> & more",
    "tree": [{"name": "a", "sub": [{"name": "b", "sub": []}, {"name": "c", "sub": [{"name": "d", "sub": []}]}]},
             {"name": "e", "sub": []}],
    "pairs": [["x", 1], ["y", 2]], "mixed": {"b": 2, "A": 1, "c": None}}

EXPRESSIONS = r"""
0x1f  0X1F  0b101  0o17  1_000 + 0x_f  0_0  012  1__0  0x  0b2  1e3  1.5e-3  '\101\0x' | length  '\8'  n | round(1)
x | round  2.675 | round(2)  3.5 | round | int  n | round  -7 | round(-1)  15 | round(-1)  25 | round(-1)
2.5 | round(0, 'ceil')  2.41 | round(1, 'ceil')  2.49 | round(1, 'floor')  n | round(1, 'floor')
-2.5 | round(0, 'floor')  2.5 | round(0, 'up')  'a' | round  '%03d' % n  '%5.2f' % x  '%-6s|' % 'ab'
'%+d % d' % (n, n)  '%x %X %#x %o' % (255, 255, 255, 8)  '%e' % big  '%g %G' % (big, 1e-10)  '%r' % 'a'
'%c%c' % ('a', 98)  '%5s|%.2s' % ('a', 'abc')  '%*d' % (5, n)  '%(a)s-%(b)03d' % {'a': 1, 'b': 2}  '%s' % [1]
'a' % [1]  'a' % 1  '%d' % 2.9  '%d' % 'a'  '%s'  % ()  '%i%u' % (1, 2)  '%05.1f|' % -2.25  '%.3d' % n  '%s' % missing
'%%' % ()  '%'  % ()  '%y' % 1  '%s %s' % (1,)  '%(a)s' % 1  '%5%' % ()  '%s and %d' | format('a', 3)
'%(k)s' | format(k=1)  n | format  '%s' | format(1, k=2)  '{:>5}|{:<5}|{:^5}' .format('a', 'b', 'c')
'{:03d} {:+d} {:,}' .format(7, 7, 1234567)  '{:.2f} {:8.3e} {:%}' .format(x, x, x)
'{a} {b.name} {c[0]}' .format(a=1, b={'name': 2}, c=list)  '{0!r} {0!s}' .format('a')
'{:x} {:#b} {:_}' .format(255, 5, 1234567)  '{:*^7}' .format('é')  '{:5}|{:<5}|' .format(1, 1)  '{:.2}' .format('abc')
'{} {0}' .format(1)  '{:d}' .format('a')  '{a}' .format_map({'a': 1})  '{:5}' .format(none)  '{}' .format(true)
'{:d}' .format(true)  '{' .format(1)  '{:,.1f}' .format(big)  text | center(60)  'abc' | center(6)  'ab' | center(5)
text | truncate(20)  text | truncate(20, true)  text | truncate(9, true, '', 0)  text | truncate(20, false, '…')
'short' | truncate(3)  text | wordcount  '東京 é_1 x' | wordcount  text | wordwrap(12)
'a bb cccccccccc d' | wordwrap(4)  'a bb cccccccccc d' | wordwrap(4, false)
'a b\n\nc d' | wordwrap(2, wrapstring='|')  text | striptags  'a <!-- <b> --> b' | striptags  text | escape
text | e | length  '<' | escape | escape  '<' | escape | forceescape  ('<' | escape) is escaped  '<' is escaped
text | urlencode  'a b/ü?' | urlencode  {'a b': 'c/d', 'e': 1} | urlencode  pairs | urlencode
{'class': 'a<b', 'id': none, 'n': 1} | xmlattr  {'a': 1} | xmlattr(false)  {'a b': 1} | xmlattr  1 | filesizeformat
999 | filesizeformat  12345 | filesizeformat  12345678 | filesizeformat(true)  1e30 | filesizeformat
list | batch(2) | list  list | batch(2, '-') | list  list | slice(2) | list  list | slice(2, 0) | list
range(7) | slice(3) | list  people | groupby('name') | map(attribute='grouper') | list
(people | groupby('name'))[0].list | length  people | groupby('name')
people | groupby('tag', default='') | map('first') | list  people | groupby('name', case_sensitive=true) | length
people | sort(attribute='name,age') | map(attribute='age') | list
people | sort(attribute='age', reverse=true) | first  [[2, 1], [1, 5], [1]] | sort  (1, 2) < (1, 3)  [1] <= [1]
[1] < ['a']  list | map('round', 1) | list  words | map('replace', 'A', 'x') | list  list | select('gt', 1) | list
people | map(attribute='tag.x', default=0) | list
people | map(attribute='tag', default='?') | join(',')  words | select('in', ['a', 'b']) | list
words | reject('upper') | list  mixed | dictsort(by='value')  {'b': 2, 'a': 1} | dictsort(by='value')
mixed | dictsort(true)  mixed | dictsort(reverse=true)  mixed | dictsort(by='x')  mixed | map('upper') | join
mixed | list  '42.7' | int  '0x1f' | int(0, 16)  '0x1f' | int(base=0)  '1e3' | int  ' 7 ' | int  '7_0' | int
'x' | int(-1)  'inf' | int(5)  'z' | int(0, 36)  '1.5' | float  '1e-2' | float  '.5' | float  'x' | float
'x' | float(1.5)  'nan' | float  '-inf' | float  missing | int  none | int(3)  true | abs  'a,b' | replace(',', ', ')
123 | replace(2, 'x')  'abc' | replace('', '-')  missing | indent  1 | indent  mixed | attr('b')  missing | attr('b')
mixed | attr('items') is callable  [1, 2] | sum(start=10)  ['a'] | sum(start='')  [[1], [2]] | sum(start=[])  [] | min
[3, 1] | max  words | max  people | max(attribute='age') | tojson  [1, true, 1.0, 2] | unique | list
[[1], [1]] | unique | list  nested.items() | unique | list  [(1, [2])] | unique | list
[(1, 2), (1, 2)] | unique | list  {1: 2, none: 3, true: 4} | tojson  {'b': 1, 'a': 2} | tojson(sort_keys=true)
(1, 2) | tojson  range(2) | tojson  missing | tojson  'upper' is filter  'foo' is filter  'pprint' is filter
'odd' is test  'foo' is test  lipsum is defined  cycler is defined  joiner is callable  missing is callable
loop is defined  range is callable  namespace() is callable  x is odd  3.0 is odd  'a' is odd  x is divisibleby(0.5)
range(3) | string is string  range(3)[1:] | list  range(3) == range(3)  range(3) == [0, 1, 2]  range(3)[-1]
3 in range(4)  range(3) is sequence  range(0) | length  range(3) | first  (range(3) | list) + [9]  range(3) + [1]
range(1, 2, 0)  range(200000)  [1, 2] * 2  2 * (1,)  [] * 5  'a' * -1  n % 4.5  -7 % 2.5  7 // 2.0  -7 // 2.0  2 ** -1
2 ** 0.5  2.0 ** 3  0 ** -1  1 / 0  -x // 1  1e308 * 10  +n  +x  +'a'  -true  n + true  1 if missing
(1 if missing) is undefined  [1, 2][5] is defined  'abc'[1]  'abc'['x'] is defined  dict([('a', 1)], b=2)
dict({'a': 1}, a=2)  dict(pairs)  dict(1)  namespace({'a': 1}).a  namespace(pairs).x  dict([1])  [1, 2, *list] | list
range(*[1, 4]) | list  dict(**{'a': 1})  dict(**{'a': 1}, b=2)  dict(a=1, **{'a': 2})  range(*[1], 4)  dict(**mixed)
'abc'.upper()  'Straße'.upper()  'ÀÉß' | lower  'éa' | upper  'ünd 東京' | title  'ÉA' | capitalize  'aBc'.swapcase()
'hello wORLD'.title()  'ΑΣ'.lower()  word | upper  word | lower  word.isalpha()  'é'.islower()  'abc1'.isidentifier()
'Ab Cd'.istitle()  'é'.isascii()  '12'.isnumeric()  'a-b-c'.split('-', maxsplit=1)  'a b c'.rsplit(maxsplit=1)
'a\nb'.splitlines(true)  'a\r\nb'.splitlines(keepends=true)  'a\tb'.expandtabs(4)  'abcabc'.find('b', 2)
'abcabc'.rfind('b', 0, 3)  'abcabc'.index('c', -2)  'abcabc'.rindex('z')  'aaa'.count('a', 1)  'abc'.count('')
'abc'.find('', 9)  'a'.center(4, '*')  'a'.ljust(3) + '|'  'a'.rjust(3, '0')  '+5'.zfill(4)  'abc'.replace('', '-', 2)
'x'.join(['a', 1])  ['😀', '\u200b', '\x7f', 'é', '—', '\u3000', '\U000e0001']  ['a', "it's", 'q"', '\\']
{'k': ('v',)}  (people | selectattr('age', 'ge', 4) | list)[0].name
people | selectattr('tag', 'undefined') | map(attribute='name') | list
people | rejectattr('age', 'in', [3, 4]) | list | length  list | first | string ~ '!'  nested.a.b | last | tojson
n is not odd and not x is integer  n is eq(7)  n is ge 7  n is sameas n  no is sameas none  n is in [7]
n is not in [7]  yes is eq true  list | join | int + 1  [['a', 1]] | map('first') | list  words | map('length') | sum
words | sort | reverse | join  nested | length is eq 2  'a' ~ 1 ~ none ~ true ~ 2.5 ~ [1]  'a' 'b'  n.x is defined
self is defined  caller is defined  list.index(1)  (1, 2).count(1)  list.count(9)  mixed.pop('b')  list.sort()
{}.setdefault('a', 1)  mixed.get('z', 'd')  mixed.keys() | sort | list  mixed.values() | list  mixed.items() | first
x.real is defined  f() is defined  cycler()  joiner()()  (joiner(', ')() ~ '|')
cycler(1, 2).next()  cycler('a').current
"""
TEMPLATES = [
    # call, caller, varargs, kwargs
    "{% macro box(title) %}[{{ title }}: {{ caller() }}]{% endmacro %}{% call box('a') %}in {{ n }}{% endcall %}",
    "{% macro each(items) %}{% for i in items %}{{ caller(i, loop.index) }};{% endfor %}{% endmacro %}"
    "{% call(item, at) each(list) %}{{ at }}={{ item }}{% endcall %}",
    "{% macro f() %}{{ caller(b=2) }}{% endmacro %}{% call(a=1, b=3) f() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}",
    "{% macro f() %}{{ caller is defined }}{{ caller() if caller else 'none' }}{% endmacro %}{{ f() }}"
    "{% call f() %}y{% endcall %}",
    "{% macro f(caller=none) %}{{ caller is none }}{% endmacro %}{{ f() }}{% call f() %}{% endcall %}",
    "{% call n %}{% endcall %}", "{% call foo() %}{% endcall %}",
    "{% for i in list %}{% macro f() %}<{{ i }}{{ loop.index }}>{% endmacro %}{{ f() }}{% endfor %}",
    "{% macro f() %}{% macro g(x) %}({{ x }}){% endmacro %}{{ g(1) }}{{ g(2) }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, a=3) }}{{ f() }}",
    "{% macro f(a) %}{{ a }}{{ varargs | join(',') }}{{ kwargs | dictsort }}{% endmacro %}{{ f(1, 2, 3, k='v') }}",
    "{% macro f(a) %}{{ kwargs }}{% endmacro %}{{ f(1, a=2) }}", "{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}"
    "{{ f(*[1, 2]) }}{{ f(**{'a': 3, 'b': 4}) }}{{ f(1, **{'b': 5}) }}",
    "{% macro f(a, b=1) %}{% endmacro %}{{ f.name }}{{ f.arguments }}{{ f.catch_kwargs }}{{ f.caller }}",
    "{% macro f(a, a2=a) %}{{ a2 }}{% endmacro %}{{ f(3) }}{{ f(a=4) }}", "{% macro f(a=1, b) %}{% endmacro %}",
    "{% set f = range %}{{ f(2) | list }}", "{% macro f() %}m{% endmacro %}{% set g = f %}{{ g() }}",
    "{% macro f() %}{{ x2 }}{% endmacro %}{% set x2 = 1 %}{{ f() }}{% set x2 = 2 %}{{ f() }}",
    "{% macro outer() %}{% set v = 1 %}{% call inner() %}{{ v }}{% endcall %}{% endmacro %}"
    "{% macro inner() %}<{{ caller() }}>{% endmacro %}{{ outer() }}",
    "{% macro f() %}{% call g() %}{{ caller is defined }}{% endcall %}{% endmacro %}"
    "{% macro g() %}{{ caller() }}{% endmacro %}{{ f() }}",
    # with
    "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a }}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with a %}{% endwith %}",
    "{% with (a, b) = (1, 2) %}{{ a }}{{ b }}{% endwith %}", "{% with a = 1: %}{{ a }}{% endwith %}",
    # for: recursive, cycle, changed, depth, targets
    "{% for t in tree recursive %}{{ t.name }}{{ loop.depth }}{{ loop.depth0 }}({{ loop(t.sub) }}){% endfor %}",
    "{% for t in tree recursive %}{{ t.name }}{% if t.sub %}[{{ loop(t.sub) }}]{% endif %}{% if not loop.last %},"
    "{% endif %}{% endfor %}", "{% for t in tree if t.name != 'b' recursive %}{{ t.name }}{{ loop(t.sub) }}"
    "{% else %}-{% endfor %}", "{% for i in list %}{{ loop(list) }}{% endfor %}",
    "{% for t in tree recursive %}{% for u in t.sub %}{{ u.name }}{{ loop.index }}{% endfor %}{% endfor %}",
    "{% for t in tree recursive %}{% set l = loop %}{% for u in t.sub %}{{ u.name }}{{ l(u.sub) }}{% endfor %}"
    "{% endfor %}",
    "{% for i in range(5) %}{{ loop.cycle('a', 'b') }}{{ loop.cycle(*list) }}{% endfor %}",
    "{% for i in list %}{{ loop.cycle() }}{% endfor %}",
    "{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }} {% endfor %}",
    "{% for i in [1, 1] %}{{ loop.changed() }}{{ loop.changed(i, 2) }}{% endfor %}",
    "{% for i in list %}{{ loop | length }}{{ loop.depth }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, in [[1], [2]] %}{{ a }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for (a) in list %}{{ a }}{% endfor %}",
    "{% for loop in list %}{% endfor %}", "{% for none in list %}{% endfor %}",
    "{% for i in list: %}{{ i }}{% endfor %}",
    "{% for i in list %}{% for j in [] %}{% else %}{% break %}{% endfor %}{{ i }}{% endfor %}",
    "{% for i in list %}{% set x %}{{ i }}{% break %}{% endset %}{{ i }}{% endfor %}{{ x }}",
    "{% for i in list %}a{% filter upper %}b{% if i == 1 %}{% continue %}{% endif %}c{% endfilter %}{% endfor %}",
    "{% for i in list %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}",
    "{% set u = list | map('string') %}{{ u | first }}{{ u | first }}{{ u | list }}{{ u | first is defined }}",
    "{% set u = list | map('string') %}{% for i in u %}{{ i }}{% break %}{% endfor %}{{ u | list }}",
    "{% for i in list %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "{% for g in people | groupby('name') %}{{ g.grouper }}:{% for p in g.list %}{{ p.age }},{% endfor %}"
    "{% endfor %}",
    "{% for name, them in people | groupby('name') %}{{ name }}{{ them | length }}{% endfor %}",
    "{% for row in list | batch(2, 0) %}{{ row }}{% endfor %}", "{% for i in 5 %}{% endfor %}",
    "{% for i in none %}{% endfor %}",
    # cycler, joiner, namespace
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}"
    "{{ c.current }}",
    "{% set j = joiner('|') %}{% for i in list %}{{ j() }}{{ i }}{% endfor %}",
    "{% set j = joiner() %}{{ j() }}{{ j() }}{{ j(1) }}",
    "{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}",
    "{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }}",
    "{% set ns = namespace(a=1) %}{% with %}{% set ns.a = 2 %}{% endwith %}{{ ns.a }}{{ ns['a'] }}"
    "{{ ns | attr('a') }}{{ ns.z }}",
    "{% set ns = namespace() %}{% set ns.text %}x{{ n }}{% endset %}{{ ns.text }}", "{% set none = 1 %}",
    "{% set n.a = 1 %}",
    "{% set ns = namespace(sep=joiner('|')) %}{% for i in list %}{{ ns.sep() }}{{ i }}{% endfor %}{{ ns.none() }}",
    "{% set ns = namespace(sep=joiner('|')) %}{% set ns.turn = cycler(1, 2) %}{{ ns.sep() }}{{ ns.turn.next() }}"
    "{{ ns.sep() }}",
    # block, print, colons, filter
    "{% block a %}x{{ n }}{% endblock %}{% block b %}y{% endblock b %}",
    "{% block a %}{% endblock %}{% block a %}{% endblock %}",
    "{% for i in list %}{% block a scoped %}{{ i }}{% endblock %}{% endfor %}",
    "{% for i in list %}{% block a %}{{ i }}{% endblock %}{% endfor %}",
    "{% set v = 1 %}{% block a %}{{ v }}{% set v = 2 %}{{ v }}{% endblock %}{{ v }}", "{% block a %}{% endblock b %}",
    "{% print n %}{% print 1, 2 %}", "{% if n: %}a{% elif x: %}b{% else: %}c{% endif %}", "{{ n: }}",
    "{% set a = 1: %}",
    "{% if n %}{% endif n %}", "{% else %}", "{% filter replace('a', 'b') | upper %}aXa{% endfilter %}",
    "{% filter indent(2, true) %}a\nb{% endfilter %}", "{% set a | indent(2) %}x\ny{% endset %}{{ a }}",
    "{% do n %}", "{% autoescape true %}{% endautoescape %}{% foo %}", "{% extends 'a' %}", "{% include 'a' %}",
    "{% import 'a' as b %}", "{% from 'a' import b %}", "{% trans %}{% endtrans %}", "{% debug %}",
    # order of arguments
    "{{ dict(a=1, 2) }}", "{{ range(*[1], *[2]) }}", "{{ dict(**{}, **{}) }}", "{{ dict(a=1, a=2) }}",
    "{{ dict(**{}, a=1) }}",
    "{{ 'a' | default('x', default_value='y') }}", "{{ missing | default(boolean=true) }}|",
    "{{ missing | default(default_value=3) }}",
    # what templates of models have
    "{%- for m in [{'role': 'user', 'content': 'Hi'}] -%}{{ '<|%s|>' | format(m.role) }}"
    "{{ m.content | truncate(1, true, '') }}{%- endfor %}",
    "{%- macro render(schema, depth=0) -%}{% for key, value in schema | dictsort %}{{ '  ' * depth }}{{ key }}:"
    "{% if value is mapping %}\n{{ render(value, depth + 1) }}{% else %} {{ value | tojson }}\n{% endif %}"
    "{% endfor %}"
    "{%- endmacro -%}{{ render({'b': {'c': 1, 'd': none}, 'a': 'x'}) }}",
    "{% set sep = joiner('\n') %}{% for p in people %}{{ sep() }}{{ '%-5s %3d' | format(p.name, p.age) }}"
    "{% endfor %}",
]

# For generated(): values of every kind, and what is done with them.
VALUES = ["n", "neg", "x", "big", "0", "1.0", "none", "true", "false", "missing", "''", "'abc'", "'A b-C'", "'12'",
          "' 3.5 '",
          "word", "line", "text", "list", "[]", "words", "nested", "{}", "people", "(1, 'a')", "range(3)", "pairs",
          "mixed",
          "words | map('upper')", "nested.items()", "namespace(a=1)", "'<b>' | safe"]
FILTERS = """abs attr('a') batch(2)|list batch(2,0)|list capitalize center center(9) count default('d')
default('d',true) dictsort dictsort(by='value') e escape filesizeformat first float float(1) forceescape format
format(1) groupby('name') groupby(0) indent indent(2,true) int int(7) int(0,16) items|list join join(',')
join(',','name') last length list lower map('upper')|list map('string')|list map(attribute='name')|list
map(attribute='name',default=0)|list map(attribute=0)|list max min max(attribute='age') reject|list
reject('odd')|list rejectattr('age')|list replace('a','b') reverse|list reverse round round(1) round(-1)
round(1,'ceil') round(1,'floor') safe select|list select('string')|list select('defined')|list
selectattr('age','gt',3)|list slice(2)|list slice(2,0)|list sort sort(reverse=true) sort(attribute='name')
sort(attribute='age,name') sort(case_sensitive=true) string striptags sum sum(attribute='age') sum(start=2) title
tojson tojson(indent=1) tojson(sort_keys=true) trim trim('a') truncate truncate(5) truncate(5,true) unique|list upper
urlencode wordcount wordwrap(5) xmlattr string|length tojson|length first|string last|string length|string""".split()
TESTS = """defined undefined none string mapping boolean true false integer float number callable sequence iterable
odd even divisibleby(2) lower upper escaped sameas(none) sameas(true) eq(7) ne('abc') lt(3) le('b') gt(0) ge([1])
in(list) in('abc') in(nested) filter test""".split()
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]
METHODS = """upper() lower() title() capitalize() strip() lstrip() rstrip('c') split() split(',') split('b',1)
rsplit(none,1) splitlines() startswith('a') endswith(('c','x')) replace('a','b') find('b') count('b') isdigit()
isalpha() isalnum() isspace() islower() isupper() istitle() join(words) zfill(5) center(7) ljust(5) rjust(5)
partition('b') rpartition('b') swapcase() format(1) removeprefix('a') removesuffix('c') get('a') get('zz',1)
items()|list keys()|list values()|list index(1) copy() real name a 0 items append(1) isascii() expandtabs()
isidentifier()""".split()
PERCENTS = ["%" + flags + width + kind for flags in ("", "-", "+", "0", " ", "#", "-0", "+0")
            for width in ("", "6", ".2", "8.3") for kind in "sdixofegcrEGX"]
SPECS = [fill + sign + zero + width + rest for fill in ("", "<", "*^", ">", "=") for sign in ("", "+")
         for zero in ("", "0") for width in ("", "7")
         for rest in ("", "d", "s", ".2f", "x", ",", "e", "%", ".1", "g", "_d")]
SUBSCRIPTS = ["[0]", "[-1]", "[9]", "['a']", "[1:]", "[::-1]", "[:2]", "[-2:]", "[::2]", "[none]", "[true]", ".0",
          "[1:1]"]


def generated(seed, count):
    """Templates of every filter, test, method, operator and format with every kind of value, `count` of all; and chains
    of filters drawn at random."""
    rng = random.Random(seed)
    whole = [f"{{{{ {value if '|' not in value else '(' + value + ')'}{text} }}}}" for value, text in itertools.chain(
        itertools.product(VALUES, (" | " + one for one in FILTERS)),
        itertools.product(VALUES, (" is " + one for one in TESTS)),
        itertools.product(VALUES, ("." + one for one in METHODS)), itertools.product(VALUES, SUBSCRIPTS))]
    whole += [f"{{{{ ({a}) {sign} ({b}) }}}}" for a, sign, b in itertools.product(VALUES, OPERATORS, VALUES)]
    numbers = ["n", "neg", "x", "big", "0", "true", "'a'", "none", "255", "1e20", "-0.0", "list", "(1,)"]
    whole += [f"{{{{ '{form}' % {value} }}}}|" for form, value in itertools.product(PERCENTS, numbers)]
    whole += [f"{{{{ '{{:{form}}}'.format({value}) }}}}|" for form, value in itertools.product(SPECS, numbers)]
    picked = rng.sample(whole, min(count, len(whole)))
    for _ in range(count // 4):
        chain = " | ".join(one.split("|")[0] for one in rng.choices(FILTERS, k=rng.randint(2, 3)))
        picked.append(f"{{{{ {rng.choice(VALUES)} | {chain} }}}}")
    return picked


def names_an_address(result):
    """Whether it prints what Python names by its address, as generators, or functions."""
    return " at 0x" in result.get("text", "")


def snippets():
    expressions = [one.strip() for one in EXPRESSIONS.strip().replace("\n", "  ").split("  ") if one.strip()]
    return ["{{ " + one + " }}" for one in expressions] + TEMPLATES


def results(templates):
    rendered = [[one, chat_golden.rendered(one, copy.deepcopy(VARIABLES))] for one in templates]
    return {"variables": VARIABLES, "snippets": [[one, {"refused": ""} if "refused" in result else result]
                                                 for one, result in rendered if not names_an_address(result)]}


if __name__ == "__main__":
    PATH.write_text(chat_golden.text_of(results(snippets()), 2) + "\n")
