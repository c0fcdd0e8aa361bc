"""`megatron serve`: the API by plain HTTP, beside `megatron generate`, and clients that misbehave."""
import concurrent.futures
import json
import pathlib
import socket
import subprocess
import sys
import unittest
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, run  # noqa: E402
from server import TEMPLATE, Server  # noqa: E402

PROMPTS = ["the cat", "my friend never", "a dog likes the old man on friday.", "", "on monday. the", "old"]


# What the page shows of a dense run, and lines of metrics.jsonl that no run writes.
CURVES = ["curves", "learning_rate", "grad_norm", "tokens_per_s", "memory"]
FIGURES = ["loss", "learning_rate", "grad_norm", "tokens_per_s", "memory_bytes"]
NO_STEPS = [json.dumps({"iteration": iteration, **dict.fromkeys(FIGURES, value)})
            for iteration in (2 ** 63 - 1, -2 ** 63, 0) for value in (1e308, -1e308, 5e-324, 1, None, "<b>", [], {})]
NO_STEPS += ["[" * 100, "\0", "\xff", "{", '{"loss": 1e400}', '{"iteration": "<script>", "loss": 1}', "x" * 2 ** 21]
NO_STEPS += [f'{{"iteration": 3, "loss": 2, "expert_imbalance": 1, "expert_loads": {loads}}}'
             for loads in ("[[1], [1, 2]]", '"<svg>"', "[[-1]]", "[[1e308, 1e308, 0, 5e-324]]")]


def pictures_of(server):
    """The run's pictures by name, as the page finds them; each must be one."""
    found = {}
    for name in json.loads(server.raw("GET", "/run").text)["pictures"]:
        answer = server.raw("GET", f"/run/{name}.svg")
        assert answer.status == 200, f"{name}: {answer.status} {answer.text}"
        xml.etree.ElementTree.fromstring(answer.text)
        assert "nan" not in answer.text and "inf" not in answer.text, answer.text
        found[name] = answer.text
    return found


def together(work, arguments):
    """work(argument) of all at once."""
    with concurrent.futures.ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(work, arguments))


class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.place.train("run", "--train-iters", 6, "--seq-length", 128)
        cls.model = cls.place.path / "run"
        (cls.model / "chat_template.jinja").write_text(TEMPLATE)

    def serve(self, *options, **more):
        server = Server(self.model, *options, **more)
        self.addCleanup(server.close)
        return server


class Texts(Serving):
    def generate(self, prompt, *options):
        return json.loads(run("generate", "--load", self.model, "--prompt", prompt, "--max-new-tokens", 40, "--json",
                              *options))["text"]

    def test_are_those_of_generate_in_any_company(self):
        for layout in [(), ("--tp", 2), ("--pp", 2), ("--cache-tokens", 128)]:
            server = self.serve("--max-texts", 4, *layout)
            for options, fields in [(("--temperature", 0), {"temperature": 0}),
                                    (("--seed", 5, "--top-p", 0.9), {"seed": 5, "top_p": 0.9})]:
                def answer(prompt):
                    request = {"prompt": prompt, "max_tokens": 40, **fields}
                    return server.post("/v1/completions", request)["choices"][0]["text"]
                got = together(answer, 2 * PROMPTS)
                expected = [self.generate(prompt, *options) for prompt in (PROMPTS if layout == () else PROMPTS[:2])]
                self.assertEqual(got[:len(expected)], expected, (layout, fields))
                self.assertEqual(got[:len(PROMPTS)], got[len(PROMPTS):], (layout, fields))
            server.close()

    def test_of_a_mixture_of_experts_have_the_same_bits_in_any_company(self):
        self.place.train("experts", "--train-iters", 4, "--model.add_bias_linear", "false", "--num-experts", 4,
                         "--moe-ffn-hidden-size", 32, "--model.moe_shared_expert_intermediate_size", 32,
                         "--model.moe_shared_expert_gate", "true", "--moe-per-layer-logging")
        with open(self.place.path / "experts/metrics.jsonl", "a") as metrics:
            metrics.write("".join(line + "\n" for line in NO_STEPS))
        server = Server(self.place.path / "experts", "--max-texts", 8)
        self.addCleanup(server.close)

        def scores(prompt):
            request = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "logprobs": 1}
            return server.post("/v1/completions", request)["choices"][0]["logprobs"]["token_logprobs"]
        alone = [scores(prompt) for prompt in PROMPTS]
        for _ in range(3):
            self.assertEqual(together(scores, PROMPTS), alone)
        self.assertEqual(list(pictures_of(server)), [*CURVES, "experts"])

    def test_come_with_the_curves_of_the_run_that_a_checkpoint_is_of(self):
        server = Server(self.model / "checkpoints")
        self.addCleanup(server.close)
        drawn = pictures_of(server)
        self.assertEqual(list(drawn), CURVES)
        metrics = self.model / "metrics.jsonl"
        whole = metrics.read_text()
        self.addCleanup(metrics.write_text, whole)
        with open(metrics, "a") as more:  # what the run writes meanwhile is read on
            more.write(json.dumps({"iteration": 900, "loss": 5, "learning_rate": 7000, "grad_norm": 1}) + "\n")
        again = pictures_of(server)
        self.assertEqual(list(again), CURVES)
        self.assertIn("7000", again["learning_rate"])
        self.assertNotIn("7000", drawn["learning_rate"])

    def test_come_with_pictures_of_what_a_hostile_file_says_of_steps(self):
        metrics = self.model / "metrics.jsonl"
        whole = metrics.read_text()
        self.addCleanup(metrics.write_text, whole)
        metrics.write_text("".join(line + "\n" for line in NO_STEPS))
        server = self.serve()
        self.assertEqual(list(pictures_of(server)), [*CURVES, "experts"])
        metrics.write_text('{"iteration": 1, "loss": 2, "memory_bytes": 1e400, "grad_norm": "1", "tokens_per_s": [1]}\n'
                           '{"iteration": 1, "loss": 2}\n')
        self.assertEqual(list(pictures_of(server)), ["curves"])

    def test_come_whole_or_in_pieces_or_with_what_goes_before(self):
        server = self.serve()
        request = {"prompt": ["the cat", "a dog"], "n": 2, "max_tokens": 30, "seed": 3, "logprobs": 2}
        whole = server.post("/v1/completions", request)
        self.assertEqual([choice["index"] for choice in whole["choices"]], [0, 1, 2, 3])
        self.assertNotEqual(whole["choices"][0]["text"], whole["choices"][1]["text"])  # copies
        texts, scores, ends = [""] * 4, [[], [], [], []], [None] * 4
        events = server.events("/v1/completions", {**request, "stream_options": {"include_usage": True}})
        self.assertEqual(events[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
        for choice in (event["choices"][0] for event in events[:-1]):
            texts[choice["index"]] += choice["text"]
            scores[choice["index"]] += (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
            ends[choice["index"]] = choice["finish_reason"]
        self.assertEqual(texts, [choice["text"] for choice in whole["choices"]])
        self.assertEqual(ends, [choice["finish_reason"] for choice in whole["choices"]])
        self.assertEqual(scores, [choice["logprobs"]["token_logprobs"] for choice in whole["choices"]])
        echoed = server.post("/v1/completions", {**request, "echo": True})
        for i, choice in enumerate(echoed["choices"]):
            self.assertEqual(choice["text"], request["prompt"][i // 2] + texts[i])
            self.assertIsNone(choice["logprobs"]["token_logprobs"][0])
            self.assertEqual(choice["logprobs"]["token_logprobs"][-len(scores[i]):], scores[i])
            tokens = choice["logprobs"]["tokens"]
            if choice["finish_reason"] == "stop":
                tokens = tokens[:-1]  # the token that ends a text has none
            if not any(token.startswith("bytes:") for token in tokens):
                self.assertEqual("".join(tokens), choice["text"])

    def test_stop_where_they_are_asked_to(self):
        server = self.serve()
        request = {"prompt": "the cat", "max_tokens": 60, "temperature": 0}
        whole = server.post("/v1/completions", request)["choices"][0]["text"]
        stop = whole[5:8]
        for pieces in (False, True):
            asked = {**request, "stop": ["never there", stop]}
            if pieces:
                events = server.events("/v1/completions", asked)
                text = "".join(event["choices"][0]["text"] for event in events)
                reason = events[-1]["choices"][0]["finish_reason"]
            else:
                choice = server.post("/v1/completions", asked)["choices"][0]
                text, reason = choice["text"], choice["finish_reason"]
            self.assertEqual((text, reason), (whole[:whole.index(stop)], "stop"))
        first = server.post("/v1/completions", {**request, "max_tokens": 1, "logprobs": 1})["choices"][0]
        self.assertEqual(first["finish_reason"], "length")
        ids = json.loads(run("tokenizer", "encode", "--tokenizer", self.place.tokenizer, "--json",
                             stdin=first["logprobs"]["tokens"][0]))["ids"]
        other = server.post("/v1/completions", {**request, "max_tokens": 1, "logit_bias": {str(ids[0]): -100}})
        self.assertNotEqual(other["choices"][0]["text"], first["text"])

    def test_of_chats_follow_the_template_and_share_prompts(self):
        server = self.serve()
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the cat"}]
        chat = server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 20})
        plain = server.post("/v1/completions", {"prompt": "system: be brief\nuser: the cat\nassistant:",
                                                "temperature": 0, "max_tokens": 20})
        self.assertEqual(chat["choices"][0]["message"]["content"], plain["choices"][0]["text"])
        self.assertEqual(chat["usage"], plain["usage"])
        server.close()
        # What was read of a prompt serves the next that begins alike.
        server = self.serve("--prefill-tokens", 16)
        prompt = "the old man follows a dog on friday. my friend sees the cat on monday. " * 5
        asked = {"prompt": prompt, "max_tokens": 20, "temperature": 0}
        first = server.post("/v1/completions", asked)
        self.assertEqual(server.metric("megatron_cached_tokens_total"), 0)
        again = server.post("/v1/completions", asked)
        self.assertEqual(again["choices"], first["choices"])
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, again)]
        self.assertEqual(cached, [0, server.metric("megatron_cached_tokens_total")])
        self.assertGreaterEqual(server.metric("megatron_cached_tokens_total"), 64)  # a block, of four pieces


class Terminal(Serving):
    def test_talks_with_what_was_said_before_and_scores(self):
        options = ["--temperature", 0, "--max-new-tokens", 12]
        said = "the cat\n/undo\nthe cat\na dog\n/clear\n\nthe cat\n/nothing\n/quit\nnever\n"
        for layout in [(), ("--tp", 2)]:
            answers = run("chat", self.model, *options, *layout, stdin=said)
            first = json.loads(run("generate", "--load", self.model, "--chat", "--prompt", "the cat", "--json",
                                   *options))["text"]
            talk = f"user: the cat\nassistant: {first}\nuser: a dog\nassistant:"
            second = json.loads(run("generate", "--load", self.model, "--prompt", talk, "--json", *options))["text"]
            self.assertEqual(answers, f"{first}\n{first}\n{second}\n{first}\n")
        self.assertIn("--max-new-tokens", run("chat", self.model, "--max-new-tokens", 0, code=2))
        # generate's scores are the server's.
        words = ["generate", "--load", self.model, "--prompt", "the cat", "--max-new-tokens", 8, "--seed", 2, "--json"]
        scored = json.loads(run(*words, "--logprobs", 3))
        self.assertEqual(scored["new_ids"], json.loads(run(*words))["new_ids"])
        server = self.serve()
        choice = server.post("/v1/completions", {"prompt": "the cat", "max_tokens": 8, "seed": 2, "logprobs": 3})
        logprobs = choice["choices"][0]["logprobs"]
        self.assertEqual(scored["logprobs"][:len(logprobs["tokens"])], logprobs["token_logprobs"])
        self.assertEqual([[one["logprob"] for one in top] for top in scored["top_logprobs"]][:len(logprobs["tokens"])],
                         [list(top.values()) for top in logprobs["top_logprobs"]])
        self.assertIn("--json", run(*words[:-1], "--logprobs", 3, code=2))

    def folder(self, name):
        """The model as a Hugging Face folder."""
        folder = self.place.path / name
        run("checkpoint", "export", "--load", self.model, "--output", folder)
        return folder

    def test_goes_on_after_what_the_template_refuses(self):
        folder = self.folder("refusing")
        (folder / "chat_template.jinja").write_text(
            "{% for m in messages %}{% if m['role'] == 'system' or 'boom' in m['content'] %}"
            "{{ raise_exception('not this') }}{% endif %}{% endfor %}" + TEMPLATE)
        options = ["--temperature", 0, "--max-new-tokens", 6]
        plain = run("chat", folder, *options, stdin="the cat\na dog\n")
        self.assertEqual(plain.count("\n"), 2)
        for said in ("the cat\nboom\na dog\n", "the cat\n/system be brief\nold\na dog\n"):
            talk = subprocess.run([MEGATRON, "chat", folder, *map(str, options)], input=said, capture_output=True,
                                  text=True)
            self.assertEqual((talk.stdout, talk.returncode), (plain, 1), talk.stderr)
            self.assertIn("left out", talk.stderr)

    def test_ignoring_ends_writes_the_servers_text(self):
        folder = self.folder("ending")
        words = ["generate", "--load", folder, "--prompt", "the cat", "--temperature", 0, "--max-new-tokens", 12,
                 "--ignore-eos", "--json"]
        end = json.loads(run(*words))["new_ids"][3]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
        written = json.loads(run(*words))
        self.assertIn(end, written["new_ids"][:-1])
        server = Server(folder)
        self.addCleanup(server.close)
        answer = server.post("/v1/completions", {"prompt": "the cat", "max_tokens": 12, "temperature": 0,
                                                 "ignore_eos": True})
        self.assertEqual(written["text"], answer["choices"][0]["text"])

    def test_special_tokens_may_lie_behind_the_rows(self):
        folder = self.folder("pictures")
        words = ["generate", "--load", folder, "--temperature", 0, "--max-new-tokens", 6, "--json"]
        before = run(*words, "--prompt", "the cat")
        file = json.loads((folder / "tokenizer.json").read_text())
        rows = json.loads((folder / "config.json").read_text())["vocab_size"]
        extra = {"id": rows, "content": "<image_soft_token>", "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False, "special": True}
        (folder / "tokenizer.json").write_text(json.dumps({**file, "added_tokens": [*file["added_tokens"], extra]}))
        self.assertEqual(run(*words, "--prompt", "the cat"), before)
        self.assertIn("<image_soft_token>", run(*words, "--prompt", "a <image_soft_token> of the cat", code=2))
        ordinary = {**file["model"]["vocab"], "more": rows}
        (folder / "tokenizer.json").write_text(json.dumps({**file, "model": {**file["model"], "vocab": ordinary}}))
        self.assertIn("must hold the tokenizer's tokens", run(*words, "--prompt", "the cat", code=2))


class Refusals(Serving):
    def test_have_the_form_of_openai(self):
        server = self.serve("--max-body-bytes", 4096)
        good = {"prompt": "the"}
        typed = {"Content-Type": "application/json"}
        for method, path, body, headers, status, part in [
                ("GET", "/nowhere", None, {}, 404, "/nowhere"),
                ("GET", "/v1/completions", None, {}, 405, "POST"),
                ("POST", "/v1/models", "{}", typed, 405, "GET"),
                ("GET", "/v1/models/other", None, {}, 404, "other"),
                ("POST", "/v1/completions", json.dumps(good), {}, 415, "application/json"),
                ("POST", "/v1/completions", "{", typed, 400, "JSON"),
                ("POST", "/v1/completions", "{}", typed, 400, "prompt"),
                ("POST", "/v1/completions", json.dumps({**good, "model": "gpt-9"}), typed, 404, "gpt-9"),
                ("POST", "/v1/completions", json.dumps({"prompt": "the " * 900}), typed, 400, "context"),
                ("POST", "/v1/completions", json.dumps({"prompt": [99999]}), typed, 400, "99999"),
                ("POST", "/v1/completions", json.dumps({"prompt": "a" * 5000}), typed, 413, "4096")]:
            response = server.raw(method, path, body, headers)
            self.assertEqual(response.status, status, (path, body, response.text))
            error = json.loads(response.text)["error"]
            self.assertIn(part, error["message"])
            self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(json.loads(server.raw("GET", "/health").text), {"status": "ok"})
        self.assertEqual(json.loads(server.raw("GET", "/v1/models").text)["data"][0]["id"], "run")
        self.assertIn("<html", server.raw("GET", "/").text)
        self.assertEqual(server.raw("HEAD", "/health").text, "")

    def test_need_a_token_where_there_is_one(self):
        file = self.place.path / "tokens.txt"
        file.write_text("first\nsecond\n")
        server = self.serve("--token-file", file)
        for token, status in [(None, 401), ("third", 401), ("first", 200), ("second", 200)]:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            self.assertEqual(server.raw("GET", "/v1/models", None, headers).status, status, token)
        self.assertEqual(server.raw("GET", "/health").status, 200)
        by_variable = self.serve(env={"MEGATRON_SERVE_TOKEN": "secret"})
        self.assertEqual(by_variable.raw("GET", "/metrics").status, 401)
        self.assertEqual(by_variable.raw("GET", "/metrics", None, {"Authorization": "bearer secret"}).status, 200)
        self.assertIn("--token-file", run("serve", self.model, "--host", "0.0.0.0", code=2))

    def test_of_a_device_whose_memory_is_not_known_name_what_to_give(self):
        self.assertIn("--cache-memory", run("serve", self.model, "--device", "cuda", code=2))

    def test_of_memory_for_keys_and_values_say_what_would_do(self):
        for options, part in [(("--cache-memory", "1MB", "--cache-tokens", 64), "say the same"),
                              (("--cache-memory", "much"), "--cache-memory 80GB"),
                              (("--cache-memory", "100"), "a block of 64 tokens"),
                              (("--cache-memory", "80000GB"), "--cache-tokens"),
                              (("--max-context", 100, "--cache-tokens", 60), "--max-context 64")]:
            self.assertIn(part, run("serve", self.model, *options, code=2))

    def test_ask_to_come_again_where_too_many_wait(self):
        server = self.serve("--max-texts", 1, "--max-queue", 4)
        asked = {"prompt": "the", "max_tokens": 100, "ignore_eos": True}

        def status(_):
            response = server.raw("POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"})
            if response.status == 429:
                self.assertGreaterEqual(int(response.headers["Retry-After"]), 1)
            return response.status
        self.assertLessEqual(set(together(status, range(16))), {200, 429})
        # More than may wait at once could never be taken.
        self.assertEqual(server.post("/v1/completions", {**asked, "n": 3}, 400)["error"]["param"], "n")


class Clients(Serving):
    def open(self, server, data):
        connection = socket.create_connection((server.host, server.port), timeout=60)
        self.addCleanup(connection.close)
        connection.sendall(data)
        return connection

    def streaming(self, server, **fields):
        body = json.dumps({"prompt": "the", "max_tokens": 100, "stream": True, "ignore_eos": True, **fields}).encode()
        return self.open(server, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                                 b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def test_that_stall_go_or_send_garbage_harm_nobody(self):
        server = self.serve("--max-texts", 2)
        request = {"prompt": "the cat", "max_tokens": 20, "temperature": 0}
        expected = server.post("/v1/completions", request)["choices"]
        for data in [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
                     b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"] * 10:
            self.open(server, data)  # and stays open
        for data, status in [(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
                             (b"GET / HTTP/1.1\r\nA: " + b"a" * 20000 + b"\r\n\r\n", b"431"),
                             (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
                             (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"400"),
                             (b"GET  / HTTP/9.9\r\n\r\n", b"400")]:
            self.assertEqual(self.open(server, data).recv(12).split(b" ")[1:2], [status], data[:40])
        for _ in range(4):  # each begins to stream, and goes
            connection = self.streaming(server, n=4)
            self.assertTrue(connection.recv(12))
            connection.close()
        self.assertEqual(together(lambda _: server.post("/v1/completions", request)["choices"], range(4)),
                         [expected] * 4)
        server.wait_for(lambda: server.metric("megatron_active_texts") == 0)
        self.assertIn('end="cancelled"', server.raw("GET", "/metrics").text)

    def test_may_ask_again_on_one_connection_and_before_they_are_answered(self):
        server = self.serve()
        connection = server.connection()
        self.addCleanup(connection.close)
        for _ in range(3):
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "the", "max_tokens": 3}),
                               {"Content-Type": "application/json"})
            self.assertEqual(json.loads(connection.getresponse().read())["object"], "text_completion")
        get = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
        both = self.open(server, get + get.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        data = b""
        while piece := both.recv(4096):
            data += piece
        self.assertEqual(data.count(b'{"status":"ok"}'), 2)
        old = self.open(server, b"GET /health HTTP/1.0\r\n\r\n")
        self.assertIn(b"Connection: close", old.recv(4096))

    def test_get_what_is_under_way_when_the_server_stops(self):
        server = self.serve()
        connection = self.streaming(server)
        begin = connection.recv(12)
        self.assertEqual(begin, b"HTTP/1.1 200")
        self.assertEqual(server.close(), "")
        data = begin
        while piece := connection.recv(65536):
            data += piece
        self.assertIn(b"data: [DONE]", data)


if __name__ == "__main__":
    unittest.main()
