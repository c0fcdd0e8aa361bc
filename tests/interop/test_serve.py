"""`megatron serve` as the openai client of OpenAI uses it. Needs openai."""
import concurrent.futures
import json
import pathlib
import sys
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import RunFolder  # noqa: E402
from server import TEMPLATE, Server  # noqa: E402

openai, pydantic, MISSING = peers("openai", "pydantic")
USER = [{"role": "user", "content": "the cat"}]


@unittest.skipIf(MISSING, MISSING)
class OpenAi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = RunFolder()
        cls.addClassCleanup(place.close)
        place.train("run", "--train-iters", 6, "--seq-length", 512)
        (place.path / "run/chat_template.jinja").write_text(TEMPLATE)
        server = Server(place.path / "run", "--max-texts", 4, env={"MEGATRON_SERVE_TOKEN": "key"})
        cls.addClassCleanup(server.close)
        cls.url = f"http://{server.host}:{server.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="key", max_retries=0)

    def test_lists_models_completes_and_refuses(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["run"])
        self.assertEqual(self.client.models.retrieve("run").id, "run")
        asked = {"model": "run", "prompt": "the cat", "max_tokens": 20, "temperature": 0, "logprobs": 3}
        whole = self.client.completions.create(**asked)
        pieces = list(self.client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(piece.choices[0].text for piece in pieces[:-1]), whole.choices[0].text)
        self.assertEqual(pieces[-1].usage, whole.usage)
        ends = whole.choices[0].finish_reason == "stop"  # by a token without text
        self.assertEqual(len(whole.choices[0].logprobs.token_logprobs), whole.usage.completion_tokens - ends)
        self.assertTrue(all(len(top) == 3 for top in whole.choices[0].logprobs.top_logprobs))
        # What is refused has a class of its own.
        for error, asked in [(openai.NotFoundError, {"model": "other"}), (openai.BadRequestError, {"temperature": 9}),
                             (openai.BadRequestError, {"logit_bias": {"123456": 1}})]:
            with self.assertRaises(error):
                self.client.completions.create(**{"model": "run", "prompt": "a", **asked})
        with self.assertRaises(openai.AuthenticationError) as refused:
            openai.OpenAI(base_url=self.url, api_key="wrong", max_retries=0).models.list()
        self.assertEqual(refused.exception.code, "invalid_api_key")

    def test_chats(self):
        asked = {"model": "run", "messages": USER, "max_completion_tokens": 20, "seed": 4}
        whole = self.client.chat.completions.create(**asked, n=2, logprobs=True, top_logprobs=2)
        self.assertEqual([choice.message.role for choice in whole.choices], ["assistant"] * 2)
        for token in whole.choices[0].logprobs.content:
            if not token.token.startswith("bytes:"):
                self.assertEqual(bytes(token.bytes).decode(), token.token)
            self.assertEqual(len(token.top_logprobs), 2)
            self.assertGreaterEqual(token.top_logprobs[0].logprob, token.logprob)
        pieces = list(self.client.chat.completions.create(**asked, stream=True))
        self.assertEqual(pieces[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(piece.choices[0].delta.content or "" for piece in pieces),
                         whole.choices[0].message.content)

    def test_keeps_answers_within_a_schema(self):
        class Pet(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=12)
            legs: int
            friends: list[str] = pydantic.Field(max_length=1)
        parsed = 0
        for seed in range(6):
            try:
                answer = self.client.chat.completions.parse(model="run", messages=USER, response_format=Pet, seed=seed,
                                                            max_tokens=450)
                self.assertIsInstance(answer.choices[0].message.parsed, Pet)
                parsed += 1
            except openai.LengthFinishReasonError:  # a model that knows nothing may write spaces and digits for long
                pass
        self.assertGreater(parsed, 2)
        either = {"type": "json_schema", "json_schema": {"name": "e", "schema": {"enum": ["yes", "no"]}}}
        answers = self.client.chat.completions.create(model="run", messages=USER, response_format=either, n=8)
        self.assertLessEqual({json.loads(choice.message.content) for choice in answers.choices}, {"yes", "no"})
        self.assertEqual({choice.finish_reason for choice in answers.choices}, {"stop"})

    def test_serves_many_at_once_and_those_that_go(self):
        def ask(i):
            asked = {"model": "run", "prompt": f"the cat {i % 3}", "max_tokens": 30, "seed": 1}
            if i % 4 < 3:
                return i % 3, self.client.completions.create(**asked).choices[0].text
            with self.client.completions.create(**asked, stream=True) as stream:
                next(iter(stream))
            return None
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = set(filter(None, pool.map(ask, range(24))))
        self.assertEqual(len(answers), 3)


if __name__ == "__main__":
    unittest.main()
