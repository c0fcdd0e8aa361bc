"""Adapters beside the weights of one model: what `serve --adapters` and `--adapter` of other jobs compute, beside the
same adapters merged."""
import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "testing"))
from program import MEGATRON, RunFolder, run, text_of_sentences  # noqa: E402
from server import TEMPLATE, Server  # noqa: E402

PROMPTS = ["the cat", "my friend never", "a dog likes the old man on friday.", "old"]
ADAPTERS = {"lora": ["--lora.rank", 4, "--lora.alpha", 16],
            "dora": ["--lora.rank", 2, "--lora.dora", "--lora.targets", "q_proj", "v_proj", "down_proj", "--seed", 3]}


class Adapters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = RunFolder()
        cls.addClassCleanup(cls.place.close)
        cls.place.train("base", "--train-iters", 6, "--seq-length", 128)
        cls.base = cls.place.path / "base"
        (cls.base / "chat_template.jinja").write_text(TEMPLATE)
        for name, options in ADAPTERS.items():  # steps so large that other tokens are the likeliest
            cls.place.train(name, "--train-iters", 6, "--seq-length", 128, "--lr", 0.05, "--lora.base", cls.base,
                            *options)
        cls.words = [f"{name}={cls.place.path / name}" for name in ADAPTERS]

    def serve(self, model, *options):
        server = Server(model, *options)
        self.addCleanup(server.close)
        return server

    def generate(self, prompt, *words):
        return json.loads(run("generate", *words, "--prompt", prompt, "--max-new-tokens", 20, "--temperature", 0,
                              "--ignore-eos", "--json"))["text"]

    def answer(self, server, asked):
        name, prompt = asked
        request = {"model": name, "prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        answer = server.post("/v1/completions", request)
        self.assertEqual(answer["model"], name)
        return answer["choices"][0]["text"]

    def test_of_one_server_answer_as_servers_of_merged_weights(self):
        asked = [(name, prompt) for prompt in PROMPTS for name in ("base", *ADAPTERS)]
        merged = []
        for name in ("base", *ADAPTERS):
            server = self.serve(self.place.path / name, "--model-name", name)
            merged += [(one, self.answer(server, one)) for one in asked if one[0] == name]
            server.close()
        expected = [dict(merged)[one] for one in asked]
        self.assertEqual(len(set(expected[:3])), 3, expected[:3])
        for layout in [(), ("--tp", 2), ("--pp", 2)]:
            server = self.serve(self.base, "--adapters", *self.words, *layout)
            with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
                self.assertEqual(list(pool.map(lambda one: self.answer(server, one), asked)), expected, layout)
            server.close()

    def test_of_one_prompt_share_no_keys_and_values(self):
        prompt = " ".join(text_of_sentences(8))
        one, other = (self.serve(self.base, "--adapters", *self.words, "--prefill-tokens", 16, "--prefix-cache", on)
                      for on in ("true", "false"))
        for name in ("base", "lora", "dora", "lora", "base"):
            self.assertEqual(self.answer(one, (name, prompt)), self.answer(other, (name, prompt)), name)
        self.assertGreater(one.metric("megatron_cached_tokens_total"), 0)

    def test_are_models_of_their_own_to_clients(self):
        server = self.serve(self.base, "--adapters", *self.words)
        listed = json.loads(server.raw("GET", "/v1/models").text)["data"]
        self.assertEqual([(one["id"], one.get("parent")) for one in listed],
                         [("base", None), ("lora", "base"), ("dora", "base")])
        self.assertEqual(json.loads(server.raw("GET", "/v1/models/dora").text), listed[2])
        self.assertEqual(server.raw("GET", "/v1/models/nora").status, 404)
        error = server.post("/v1/completions", {"model": "nora", "prompt": "a"}, code=404)["error"]
        self.assertEqual((error["code"], error["param"]), ("model_not_found", "model"))
        self.assertIn("'base', 'lora', 'dora'", error["message"])
        chat = {"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 12, "temperature": 0,
                "ignore_eos": True}
        texts = {}
        for name in ("base", "lora"):
            answer = server.post("/v1/chat/completions", {"model": name, **chat})
            self.assertEqual(answer["model"], name)
            texts[name] = answer["choices"][0]["message"]["content"]
        self.assertNotEqual(texts["base"], texts["lora"])
        self.assertEqual(server.post("/v1/chat/completions", chat)["model"], "base")

    def test_beside_weights_in_blocks_leave_the_base_as_it_is(self):
        plain = self.serve(self.base, "--weights", "q8_0")
        beside = self.serve(self.base, "--weights", "q8_0", "--lora-modules", *self.words)
        for prompt in PROMPTS:
            base = self.answer(plain, ("base", prompt))
            self.assertEqual(self.answer(beside, ("base", prompt)), base)
            self.assertNotEqual(self.answer(beside, ("lora", prompt)), base)

    def test_of_a_single_one_text_and_scores_are_those_of_merged_weights(self):
        text = self.place.path / "text.txt"
        text.write_text("\n".join(text_of_sentences(40, seed=5)))
        for name in ADAPTERS:
            kept = ["--load", self.base, "--adapter", self.place.path / name]
            merged = ["--load", self.place.path / name]
            self.assertEqual(self.generate(PROMPTS[0], *kept), self.generate(PROMPTS[0], *merged))
            self.assertEqual(self.generate(PROMPTS[1], *kept, "--tp", 2), self.generate(PROMPTS[1], *merged))
            got, want, base = (json.loads(run("eval", "loss", *words, "--data", text, "--window", 32, "--json"))["loss"]
                               for words in (kept, merged, kept[:2]))
            self.assertAlmostEqual(got, want, delta=1e-5)
            self.assertGreater(abs(got - base), 1e-3)
        (self.place.path / "lora" / "chat_template.jinja").write_text(TEMPLATE)
        talk = ["--temperature", "0", "--max-new-tokens", "12"]
        said = [subprocess.run([MEGATRON, "chat", *map(str, words), *talk], input=b"the cat\n", capture_output=True,
                               check=True).stdout
                for words in ((self.base, "--adapter", self.place.path / "lora"), (self.place.path / "lora",))]
        self.assertEqual(*said)

    def test_of_experts_write_what_merged_weights_write(self):
        train = ["--train-iters", 6, "--seq-length", 128, "--num-experts", 4]
        self.place.train("experts", *train)
        base, adapted = self.place.path / "experts", ["--lora.base", self.place.path / "experts", "--lora.rank", 4]
        for name, targets in (("all", "all-linear"), ("down", "down_proj"), ("attention", "q_proj")):
            self.place.train(name, *train, *adapted, "--lr", 0.05, "--lora.targets", targets)
        asked = [(name, prompt) for prompt in PROMPTS for name in ("all", "down", "attention")]
        expected = [self.generate(prompt, "--load", self.place.path / name) for name, prompt in asked]
        self.assertEqual(len(set(expected[:3])), 3, expected[:3])
        self.assertNotIn(self.generate(PROMPTS[0], "--load", base), expected[:3])
        words = [f"{name}={self.place.path / name}" for name in ("all", "down", "attention")]
        for layout in [(), ("--tp", 2, "--etp", 1, "--ep", 2), ("--pp", 2)]:
            server = self.serve(base, "--adapters", *words, *layout)
            with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
                self.assertEqual(list(pool.map(lambda one: self.answer(server, one), asked)), expected, layout)
            server.close()

    def test_of_latent_attention_write_what_merged_weights_write(self):
        train = ["--train-iters", 6, "--seq-length", 128, "--multi-latent-attention", "--qk-layernorm",
                 "--kv-lora-rank", 16, "--qk-head-dim", 8, "--qk-pos-emb-head-dim", 4, "--v-head-dim", 8,
                 "--position-embedding-type", "rope", "--disable-bias-linear"]
        self.place.train("latents", *train)
        base = self.place.path / "latents"
        adapted = ["--lora.base", base, "--lora.rank", 4, "--lora.alpha", 16, "--lr", 0.05]
        names = {"of_latents": [], "dora_of_latents": ["--lora.dora"]}
        for name, options in names.items():
            self.place.train(name, *train, *adapted, *options)
        asked = [(name, prompt) for prompt in PROMPTS for name in names]
        expected = [self.generate(prompt, "--load", self.place.path / name) for name, prompt in asked]
        self.assertNotIn(self.generate(PROMPTS[0], "--load", base), expected[:2])
        words = [f"{name}={self.place.path / name}" for name in names]
        for layout in [(), ("--tp", 2)]:
            server = self.serve(base, "--adapters", *words, *layout)
            with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
                self.assertEqual(list(pool.map(lambda one: self.answer(server, one), asked)), expected, layout)
            server.close()

    def test_of_something_else_are_refused_before_anything_is_served(self):
        other = self.place.path / "other"
        self.place.train("other", "--train-iters", 2, "--seed", 9)
        self.assertIn("which holds others", run("serve", other, "--adapters", self.words[0], code=2))
        self.assertIn("none in", run("serve", self.base, "--adapters", f"a={other}", code=2))
        self.assertIn("which holds adapters",
                      run("serve", self.place.path / "lora", "--adapters", self.words[1], code=2))
        for words in ("lora", "=x", "x="):
            self.assertIn("NAME=FOLDER", run("serve", self.base, "--adapters", words, code=2))
        self.assertIn("twice", run("serve", self.base, "--adapters", self.words[0], self.words[0], code=2))
        self.assertIn("twice", run("serve", self.base, "--adapters", f"base={self.place.path / 'lora'}", code=2))
        self.assertIn("none in", run("generate", "--load", self.base, "--adapter", self.place.path / "nowhere",
                                     "--prompt", "a", code=2))
        self.assertIn("none in", run("bench", "generate", "--load", self.base, "--adapter",
                                     self.place.path / "nowhere", code=2))
        moved = self.place.path / "moved"
        shutil.copytree(self.base, moved)  # what counts are the weights, not where they lie
        self.assertEqual(self.generate("the", "--load", moved, "--adapter", self.place.path / "lora"),
                         self.generate("the", "--load", self.place.path / "lora"))


if __name__ == "__main__":
    unittest.main()
