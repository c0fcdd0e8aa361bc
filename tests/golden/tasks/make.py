#!/usr/bin/env python3
"""Writes answers.json beside this file: python3 make.py.

Answers that are easy to score wrongly, and what the official definitions of SQuAD 1.1 and 2.0 give: each is written
here once more from its description, with Python's own strings, expressions and counters. A gold answer list and an
answer a case. Then a small SQuAD 2.0 with null odds and its whole official report.
"""
import collections
import json
import pathlib
import random
import re
import string

CASES = [
    # Articles.
    (["the cat"], "cat"), (["cat"], "a cat"), (["an apple"], "apple"), (["apple"], "the apple"),
    (["The"], "the"), (["a"], "an"), (["the"], ""), ([""], "the"), (["theory"], "ory"), (["theater"], "ater"),
    (["an"], "ann"), (["a b"], "b"), (["vitamin A"], "vitamin"), (["A-team"], "team"), (["A-team"], "ateam"),
    (["a.b"], "ab"), (["the the the"], "the"), (["a a b"], "b"), (["The The band"], "band"),
    (["an the a"], "an"), (["Athe"], "the"), (["thea"], "a"), (["a_b"], "ab"), (["the_cat"], "thecat"),
    (["the1"], "1"), (["1the"], "1"), (["a1"], "1"), (["x a y"], "x y"), (["x  a  y"], "x y"), (["xay"], "x y"),
    (["THE CAT"], "cat"), (["ThE cAt"], "CAT"),
    # Punctuation.
    (["U.S."], "US"), (["U.S.A."], "USA"), (["U. S."], "US"), (["$5"], "5"), (["5%"], "5"), (["1,000"], "1000"),
    (["1 000"], "1000"), (["3.14"], "314"), (["don't"], "dont"), (["don\u2019t"], "dont"),
    (["rock 'n' roll"], "rock n roll"), (["well-known"], "wellknown"), (["well-known"], "well known"),
    (["well\u2013known"], "wellknown"), (["(1999)"], "1999"), (["\"quoted\""], "quoted"),
    (["\u201cquoted\u201d"], "quoted"), (["\u00abquoted\u00bb"], "quoted"), (["!!!"], "..."), (["!!!"], ""),
    (["..."], "the"), (["a!"], "!"), (["@#$%^&*()"], "[]{}\\|;:"), (["C++"], "C"), (["C#"], "C"),
    (["~x~"], "x"), (["`x`"], "x"), (["x/y"], "xy"), (["x / y"], "x y"), (["x = y"], "x y"),
    (["<b>x</b>"], "bxb"), (["\u20ac5"], "5"), (["\u00a35"], "5"), (["5\u00b0"], "5"), (["AT&T"], "ATT"),
    (["AT & T"], "at t"), (["_"], ""), (["__init__"], "init"), (["e.g."], "eg"), (["\u2026"], "..."),
    (["24\u201310"], "24-10"), (["24\u201310"], "24\u201310"), (["24-10"], "2410"), (["\u00bfque?"], "que"),
    (["\u3002"], "."),
    # White space.
    (["x  y"], "x y"), (["x\ty"], "x y"), (["x\ny"], "x y"), (["x\r\ny"], "x y"), ([" x "], "x"),
    (["x\u00a0y"], "x y"), (["x\u3000y"], "x y"), (["x\u2003y"], "x y"), (["x\u200by"], "x y"),
    (["x\u200by"], "xy"), (["x\u2028y"], "x y"), (["x\u0085y"], "x y"), (["x\u001cy"], "x y"),
    (["x\u001fy"], "x y"), (["x\u180ey"], "x y"), (["x\u202fy"], "x y"), (["x\ufeffy"], "x y"),
    (["\u00a0"], ""), (["x\u000by"], "x y"), (["x\u000cy"], "x y"), (["x\u0000y"], "x y"), (["\u2007x"], "x"),
    (["x . y"], "x y"), (["x, y"], "x y"), (["x ,y"], "x y"), (["x,y"], "x y"), (["x - y"], "x y"),
    (["x\u00a0the\u00a0y"], "x y"),
    # Case beyond ASCII.
    (["\u00c9cole"], "\u00e9cole"), (["\u00c9cole"], "ecole"), (["e\u0301cole"], "\u00e9cole"),
    (["STRASSE"], "stra\u00dfe"), (["STRA\u1e9eE"], "stra\u00dfe"), (["\u0130stanbul"], "istanbul"),
    (["\u0130stanbul"], "i\u0307stanbul"), (["I"], "\u0131"), (["\u039f\u03a3"], "\u03bf\u03c2"),
    (["\u039f\u03a3"], "\u03bf\u03c3"), (["\u03a3"], "\u03c3"), (["\u03a3"], "\u03c2"),
    (["\u039f\u03a3."], "\u03bf\u03c2"), (["\u039f\u03a3 \u0391"], "\u03bf\u03c2 \u03b1"),
    (["\u039f\u03a3\u0391"], "\u03bf\u03c3\u03b1"), (["\u039f'\u03a3"], "\u03bf\u03c2"),
    (["\u039f\u03a3'\u0391"], "\u03bf\u03c3\u03b1"), (["\u039f\u0301\u03a3"], "\u03bf\u0301\u03c2"),
    (["1\u03a3"], "1\u03c3"), (["1\u03a3"], "1\u03c2"), (["\u039f\u03a3\u03a3"], "\u03bf\u03c3\u03c2"),
    (["A\u00ad\u03a3"], "a\u00ad\u03c2"),
    (["\u041c\u041e\u0421\u041a\u0412\u0410"], "\u043c\u043e\u0441\u043a\u0432\u0430"), (["\u01c5"], "\u01c6"),
    (["\u01c4"], "\u01c6"), (["\u2126"], "\u03c9"), (["\u212a"], "k"), (["\u212b"], "\u00e5"),
    (["\uff21\uff22"], "\uff41\uff42"), (["\uff21"], "a"), (["\U00010400"], "\U00010428"),
    (["\u13a0"], "\uab70"), (["\u1c90"], "\u10d0"), (["\u00de\u00d0"], "\u00fe\u00f0"), (["\u24b6"], "\u24d0"),
    (["\u2160"], "\u2170"),
    # What a word is: letters and numbers of any script, no marks.
    (["a\u0301"], "\u0301"), (["a\u0301"], "\u00e1"), (["a\u0301 x"], "\u0301 x"),
    (["the\u0308 x"], "\u0308 x"), (["\u00e1"], ""), (["\u00aa"], "a"), (["a\u00b2"], "\u00b2"),
    (["a\u2160"], "\u2170"), (["a\u00bd"], "\u00bd"), (["a\u0661"], "\u0661"), (["a\u65e5"], "\u65e5"),
    (["a\u2014b"], "\u2014b"), (["a\u2014b"], "b"), (["a \u2014 b"], "\u2014 b"), (["the\u2019s"], "\u2019s"),
    (["a\u20e0"], "\u20e0"), (["a\u200db"], "\u200db"), (["a\ufe0f"], "\ufe0f"),
    (["\u0905\u093e a"], "\u0905\u093e"), (["a\U0001f600"], "\U0001f600"),
    (["\U0001f600a\U0001f600"], "\U0001f600 \U0001f600"), (["an\u0327"], "\u0327"), (["\u0430"], "a"),
    (["\u0430"], ""), (["\uff41"], ""), (["\u00a9a"], "\u00a9"), (["a\u00b7b"], "b"), (["the\u3000"], ""),
    # Scripts without blanks, and others.
    (["\u65e5\u672c"], "\u65e5\u672c"), (["\u65e5\u672c"], "\u65e5"), (["\u65e5 \u672c"], "\u65e5\u672c"),
    (["\u5317\u4eac\u3001\u4e0a\u6d77"], "\u5317\u4eac \u4e0a\u6d77"),
    (["\ud55c\uad6d"], "\u1112\u1161\u11ab\uad6d"), (["\u05e9\u05dc\u05d5\u05dd"], "\u05e9\u05dc\u05d5\u05dd."),
    (["\u0663"], "3"), (["\u0661\u0662"], "\u0661\u0662"),
    # Words that both have: as often as the one that has them less often.
    (["x y"], "y x"), (["x x y"], "x y"), (["x y"], "x x y y"), (["x x"], "x x x"), (["x y z"], "x"),
    (["x"], "x y z w v u t"), (["x y z"], "z w"), (["x y"], "z w"), (["1 2 3 4 5 6 7"], "7 6 5 4 3 2 1"),
    (["x x y y z"], "y x z w x"), (["to be or not to be"], "be to"), (["two words"], "words"), (["X"], "x x"),
    (["x, x and x"], "x and"), (["one two three"], "One, Two; Three!"),
    # Several right answers.
    (["x", "y"], "y"), (["x y", "y z"], "y"), (["x y", "x"], "x y z"), (["", "x"], "x"), (["", "x"], ""),
    (["the", "x"], ""), (["...", "x"], "..."), (["the", "a"], ""), (["the", "a"], "x"), ([], ""), ([], "the"),
    ([], "x"), (["x", "x"], "x"), (["Denver Broncos", "The Denver Broncos", "Broncos"], "the Broncos!"),
    (["$1.2 million", "1.2 million"], "$1.2 Million"), (["1066", "in 1066"], "In 1066"),
    (["x y z", "x y", "x"], "y"), (["Levi's Stadium", "Santa Clara"], "Levi\u2019s Stadium"),
    # Answers of no word.
    ([""], ""), ([" "], ""), ([""], "x"), (["x"], ""), (["x"], " "), (["the"], "a"), (["!"], "x"),
    (["an"], "..."), (["x"], "empty"),
]


def normalized(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", text).split())


def words_f1(gold, answer, empty):
    """`empty`: what two answers give of which one has no word, if they are equal."""
    gold, answer = normalized(gold).split(), normalized(answer).split()
    if empty is not None and not (gold and answer):
        return float(gold == answer) * empty
    common = sum((collections.Counter(gold) & collections.Counter(answer)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(answer), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def scores(golds, answer, version):
    if version == 2:
        golds = [gold for gold in golds if normalized(gold)] or [""]
    if not golds:
        return [0.0, 0.0]
    exact = max(float(normalized(gold) == normalized(answer)) for gold in golds)
    return [exact, max(words_f1(gold, answer, 1.0 if version == 2 else None) for gold in golds)]


def best_threshold(questions, score):
    order = sorted(questions, key=lambda q: q["null_odds"])
    now = best = sum(not q["golds"] for q in questions)
    threshold = 0.0
    for q in order:
        now += score(q) if q["golds"] else (-1 if q["answer"] else 0)
        if now > best:
            best, threshold = now, q["null_odds"]
    return 100.0 * best / len(questions), threshold


def report(questions, threshold):
    def after(q, i):
        return float(not q["golds"]) if q["null_odds"] > threshold else scores(q["golds"], q["answer"], 2)[i]

    result = {}
    for prefix, part in (("", questions), ("HasAns_", [q for q in questions if q["golds"]]),
                         ("NoAns_", [q for q in questions if not q["golds"]])):
        result[prefix + "exact"] = 100.0 * sum(after(q, 0) for q in part) / len(part)
        result[prefix + "f1"] = 100.0 * sum(after(q, 1) for q in part) / len(part)
        result[prefix + "total"] = len(part)
    for i, name in enumerate(("exact", "f1")):
        result["best_" + name], result["best_" + name + "_thresh"] = best_threshold(
            questions, lambda q: scores(q["golds"], q["answer"], 2)[i])
    return result


def main():
    assert len(CASES) >= 200, len(CASES)
    cases = [{"golds": golds, "answer": answer, "normalized": normalized(answer), "v1": scores(golds, answer, 1),
              "v2": scores(golds, answer, 2)} for golds, answer in CASES]
    draw = random.Random(11)
    words = ["red", "green", "blue", "the", "sea", "Sky", "1,000"]
    questions = []
    for i in range(60):
        golds = [] if draw.random() < 0.4 else [" ".join(draw.choices(words, k=draw.randint(1, 3))) for _ in range(3)]
        answer = draw.choice(golds) if golds and draw.random() < 0.5 else " ".join(draw.choices(words, k=2))
        odds = draw.gauss(-1 if golds else 1, 2)
        questions.append({"id": f"q{i}", "golds": golds, "answer": "" if draw.random() < 0.1 else answer,
                          "null_odds": round(odds, 1) if i % 3 == 0 else odds})
    small = {"questions": questions, "threshold": 0.25, "report": report(questions, 0.25)}
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = '{"cases": [\n' + lines + '\n],\n"squad2": ' + json.dumps(small) + "}\n"
    pathlib.Path(__file__).with_name("answers.json").write_text(text)


main()
