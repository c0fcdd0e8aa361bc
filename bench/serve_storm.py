#!/usr/bin/env python3
"""`megatron serve` among clients of which most misbehave, 100,000 requests in all:

    bench/serve_storm.py [--requests 100000] [--minutes M] [--clients 48]

Of ten requests four want a text, and one a stream, which must be those of an idle server; one and a half each go after
the first bytes of a stream, send garbage, or stop within a request; half a one never reads its stream. Those that stall
keep their connections, up to --clients at a time. --minutes spreads the requests evenly over so long; without it they
come as fast as they are answered. The model is a small one, trained here for a moment.

Fails where a good client gets another answer than alone, a bad one another than the status that it earned, or the
server ends otherwise than with 0 and silence. Resident memory is looked at a few times a second; a quarter of the
requests has the median of its time, and the last may have at most 2 % more than the second."""
import argparse
import asyncio
import collections
import json
import pathlib
import random
import re
import statistics
import sys
import time

import report

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/testing"))
from program import RunFolder  # noqa: E402
from server import TEMPLATE, Server  # noqa: E402

PROMPTS = ["the cat", "my friend never", "a dog likes the old man on friday.", "on monday. the", "old", "the"]
KINDS = {"text": 40, "stream": 10, "gone": 15, "garbage": 15, "stalled": 15, "unread": 5}
LIMIT_S = 120  # that one request may take


def post(fields, path=b"/v1/completions"):
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return (b"POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (path, len(body), body))


def wanted(number, **more):
    return {"prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": 4, "temperature": 0, **more}


LONG = {"max_tokens": 60, "ignore_eos": True, "stream": True}
GARBAGE = [(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
           (b"GET / HTTP/1.1\r\nA: " + b"a" * 20000 + b"\r\n\r\n", 431),
           (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
           (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
           (b"GET  / HTTP/9.9\r\n\r\n", 400),
           (b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404),
           (post(b"{\"prompt\": "), 400), (post(b"\xff\xfe\x00"), 400), (post(b"[" * 5000), 400),
           (post({"prompt": "the", "max_tokens": -1}), 400), (post({"prompt": [10 ** 9]}), 400),
           (post({"prompt": "the", "temperature": "hot"}), 400),
           (post({"messages": []}, b"/v1/chat/completions"), 400), (post({"input": "no"}, b"/v1/embeddings"), 400)]
BEGUN = [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
         b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"]


def status_of(answer):
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) == 3 and words[1].isdigit() else None


def text_of(answer):
    return json.loads(answer.split(b"\r\n\r\n", 1)[1])["choices"][0]["text"]


def streamed_text(answer):
    """What a whole stream says; None where it has no end."""
    body = answer.split(b"\r\n\r\n", 1)[1]
    events = [json.loads(line) for line in re.findall(rb"^data: (\{.*\})\r?$", body, re.MULTILINE)]
    return "".join(event["choices"][0]["text"] for event in events) if b"data: [DONE]" in body else None


class Storm:
    def __init__(self, server, options):
        self.server, self.options = server, options
        self.texts = [server.post("/v1/completions", wanted(i))["choices"][0]["text"] for i in range(len(PROMPTS))]
        self.errors, self.counts, self.held = [], collections.Counter(), collections.deque()
        self.memory, self.begun, self.ended = [], 0, 0

    def resident_mb(self):
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s*(\d+)", status)[1]) * 1024 / 1e6

    async def open(self, data):
        reader, writer = await asyncio.open_connection(self.server.host, self.server.port, limit=1 << 12)
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def asked(self, data):
        """The whole answer. A server may cut off what it refuses before all of it was sent."""
        answer = bytearray()
        reader = writer = None
        try:
            reader, writer = await self.open(data)
            while piece := await reader.read(1 << 16):
                answer += piece
        except ConnectionError:
            pass
        finally:
            if writer:
                writer.close()
        return bytes(answer)

    async def one(self, number, kind):
        if kind == "text":
            answer = await self.asked(post(wanted(number)))
            return status_of(answer) == 200 and text_of(answer) == self.texts[number % len(PROMPTS)], answer
        if kind == "stream":
            answer = await self.asked(post(wanted(number, stream=True)))
            return status_of(answer) == 200 and streamed_text(answer) == self.texts[number % len(PROMPTS)], answer
        if kind == "garbage":
            data, status = GARBAGE[number % len(GARBAGE)]
            answer = await self.asked(data)
            return status_of(answer) == status, answer
        if kind == "gone":
            reader, writer = await self.open(post(wanted(number, **LONG)))
            answer = await reader.read(12)
            writer.close()
            return answer == b"HTTP/1.1 200", answer
        _, writer = await self.open(post(wanted(number, **LONG)) if kind == "unread" else BEGUN[number % len(BEGUN)])
        self.held.append(writer)
        if len(self.held) > self.options.clients:
            self.held.popleft().close()
        return True, b""

    async def client(self, kinds, begin):
        while self.begun < self.options.requests:
            number, self.begun = self.begun, self.begun + 1
            await asyncio.sleep(max(0, begin + 60 * self.options.minutes * number / self.options.requests
                                    - time.monotonic()))
            kind = kinds[number]
            try:
                good, answer = await asyncio.wait_for(self.one(number, kind), LIMIT_S)
            except (TimeoutError, OSError, ValueError, LookupError) as error:
                good, answer = False, repr(error).encode()
            self.counts[kind] += 1
            self.ended += 1
            if not good:
                self.errors.append(f"{kind} {number}: {answer[:300]!r}")

    async def watch(self):
        while True:
            self.memory.append((self.ended, self.resident_mb()))
            await asyncio.sleep(0.2)

    async def run(self):
        draw = random.Random(1)
        kinds = draw.choices(list(KINDS), KINDS.values(), k=self.options.requests)
        watching = asyncio.create_task(self.watch())
        await asyncio.gather(*(self.client(kinds, time.monotonic()) for _ in range(self.options.clients)))
        watching.cancel()
        for writer in self.held:
            writer.close()

    def quarters(self):
        """Megabytes of each."""
        share = self.options.requests / 4
        parts = [[mb for ended, mb in self.memory if i * share <= ended <= (i + 1) * share] for i in range(4)]
        return [statistics.median(part or [self.memory[-1][1]]) for part in parts]


def check_end(server, storm):
    """What a quiet server says when all have left."""
    server.wait_for(lambda: server.metric("megatron_active_texts") + server.metric("megatron_queued_texts") == 0)
    lines = server.raw("GET", "/metrics").text.splitlines()
    storm.errors += [line for line in lines if re.match(r'megatron_requests_total\{.*status="5', line)]
    said = server.close()
    if said:
        storm.errors.append(said)


def main():
    parser = report.options(__doc__, rounds=1)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--tolerated", type=float, default=1.02, help=argparse.SUPPRESS)
    options = report.parse(parser)
    report.need_program()
    options.requests = options.requests or (1000 if options.quick else 100_000)
    place = RunFolder()
    try:
        place.train("run", "--train-iters", 6, "--seq-length", 128)
        (place.path / "run/chat_template.jinja").write_text(TEMPLATE)
        server = Server(place.path / "run")
        result = report.Report("serve-storm", f"{options.requests:,} requests, most of clients that misbehave", options)
        begin = time.perf_counter()
        storm = Storm(server, options)
        try:
            asyncio.run(storm.run())
            seconds = time.perf_counter() - begin
            check_end(server, storm)
        finally:
            server.process.kill()
            server.process.wait()
    finally:
        place.close()
    quarters = storm.quarters()
    result.add("requests", options.requests / seconds, "requests/s", **storm.counts)
    result.add("errors but the clients' own", len(storm.errors), at_most=0, timed=False, first=storm.errors[:5])
    for i, mb in enumerate(quarters):
        result.add(f"resident memory, quarter {i + 1}", mb, "MB")
    result.add("resident memory: the last quarter", quarters[3], "MB", quarters[1], "the second",
               at_most=options.tolerated, timed=False)
    result.write()
    print(*storm.errors[:20], sep="\n", file=sys.stderr)
    return int(bool(storm.errors) or quarters[3] > options.tolerated * quarters[1])


if __name__ == "__main__":
    sys.exit(main())
