"""Rank files as tiktoken reads them, of any number of ranks, which nobody has to fetch."""
import base64
import json
import pathlib
import random


def gpt2_ranks(folder):
    """GPT-2's tokens and their ranks, from encoder.json."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    vocabulary = json.loads(pathlib.Path(folder, "encoder.json").read_text(encoding="utf-8"))
    del vocabulary["<|endoftext|>"]
    return {bytes(byte_of[c] for c in token): rank for token, rank in vocabulary.items()}


def joined(ranks, count):
    """These ranks, then joins of two of the first tokens, `count` in all."""
    draw, ranks = random.Random(count), dict(ranks)
    first = list(ranks)[:3000]
    followers = [token for token in first if token[:1].isalnum()]
    while len(ranks) < count:
        ranks.setdefault(draw.choice(first) + draw.choice(followers), len(ranks))
    return ranks


def write(path, ranks):
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))
