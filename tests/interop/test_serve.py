"""`megatron serve` as the openai client of OpenAI uses it. Needs openai; for embeddings also numpy, torch and
transformers."""
import base64
import concurrent.futures
import datetime
import json
import pathlib
import sys
import tempfile
import typing
import unittest
import uuid

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import MODELS, RunFolder, run, text_of_sentences  # noqa: E402
from server import TOOL_TEMPLATE, Server  # noqa: E402

openai, pydantic, MISSING = peers("openai", "pydantic")
np, torch, transformers, tokenizers, NO_TRUTH = peers("numpy", "torch", "transformers", "tokenizers")
MINILM = MODELS / "minilm-l6"
USER = [{"role": "user", "content": "the cat"}]
TOOLS = [{"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "required": ["city", "days"], "properties": {
        "city": {"enum": ["Paris", "Rom"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}}}},
         {"type": "function", "function": {"name": "now"}}]


@unittest.skipIf(MISSING, MISSING)
class OpenAi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = RunFolder()
        cls.addClassCleanup(place.close)
        place.train("run", "--train-iters", 6, "--seq-length", 512)
        (place.path / "run/chat_template.jinja").write_text(TOOL_TEMPLATE)
        place.train("lora", "--train-iters", 1, "--seq-length", 512, "--lora.rank", 2, "--lora.base",
                    place.path / "run")
        server = Server(place.path / "run", "--max-texts", 4, "--adapters", f"lora={place.path / 'lora'}",
                        env={"MEGATRON_SERVE_TOKEN": "key"})
        cls.addClassCleanup(server.close)
        cls.url = f"http://{server.host}:{server.port}/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="key", max_retries=0)

    def test_lists_models_completes_and_refuses(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["run", "lora"])
        self.assertEqual(self.client.models.retrieve("lora").parent, "run")
        chosen = self.client.completions.create(model="lora", prompt="the cat", max_tokens=4)
        self.assertEqual(chosen.model, "lora")
        self.assertEqual(self.client.models.retrieve("run").id, "run")
        asked = {"model": "run", "prompt": "the cat", "max_tokens": 20, "temperature": 0, "logprobs": 3}
        whole = self.client.completions.create(**asked)
        pieces = list(self.client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(piece.choices[0].text for piece in pieces[:-1]), whole.choices[0].text)
        self.assertEqual(pieces[-1].usage, whole.usage)
        self.assertEqual(len(whole.choices[0].logprobs.token_logprobs), whole.usage.completion_tokens)
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

        class Visit(pydantic.BaseModel):
            day: datetime.date
            key: uuid.UUID
            ward: str = pydantic.Field(pattern=r"^[A-C]-\d{2}$")
            share: float = pydantic.Field(gt=0, le=1)
            hour: int = pydantic.Field(ge=8, lt=18, multiple_of=2)
            place: tuple[typing.Literal["a", "b"], bool]
        schema = {"name": "v", "schema": Visit.model_json_schema()}
        answers = self.client.chat.completions.create(model="run", messages=USER, n=8, max_tokens=450, seed=1,
                                                      response_format={"type": "json_schema", "json_schema": schema})
        whole = [choice.message.content for choice in answers.choices if choice.finish_reason == "stop"]
        self.assertGreater(len(whole), 3)
        for text in whole:
            Visit.model_validate_json(text)
        either = {"type": "json_schema", "json_schema": {"name": "e", "schema": {"enum": ["yes", "no"]}}}
        answers = self.client.chat.completions.create(model="run", messages=USER, response_format=either, n=8)
        self.assertLessEqual({json.loads(choice.message.content) for choice in answers.choices}, {"yes", "no"})
        self.assertEqual({choice.finish_reason for choice in answers.choices}, {"stop"})

    def asked(self, **more):
        return {"model": "run", "messages": USER, "tools": TOOLS, "max_tokens": 200, "seed": 3, **more}

    def check_calls(self, calls):
        for call in calls:
            arguments = json.loads(call.function.arguments)
            if call.function.name == "now":
                self.assertEqual(arguments, {})
            else:
                self.assertEqual((call.function.name, sorted(arguments)), ("weather", ["city", "days"]))
                self.assertIn(arguments["city"], ["Paris", "Rom"])
                self.assertIn(arguments["days"], range(1, 10))

    def test_calls_the_tools_that_it_must(self):
        create = self.client.chat.completions.create
        names, ids = set(), []
        for choice in create(**self.asked(tool_choice="required", n=16)).choices:
            if choice.finish_reason == "length":  # of a model that knows nothing, which calls on and on
                continue
            self.assertEqual(choice.finish_reason, "tool_calls")
            self.assertIsNone(choice.message.content)
            self.check_calls(choice.message.tool_calls)
            names |= {call.function.name for call in choice.message.tool_calls}
            ids += [call.id for call in choice.message.tool_calls]
        self.assertEqual(names, {"weather", "now"})
        self.assertEqual(len(set(ids)), len(ids))
        named = {"type": "function", "function": {"name": "weather"}}
        for fields in ({"tool_choice": named}, {"tool_choice": "required", "parallel_tool_calls": False}):
            ended = [choice for choice in create(**self.asked(n=8, **fields)).choices
                     if choice.finish_reason == "tool_calls"]
            self.assertTrue(ended, fields)
            for choice in ended:
                self.assertEqual(len(choice.message.tool_calls), 1)
                self.check_calls(choice.message.tool_calls)

        class Weather(pydantic.BaseModel):
            days: int = pydantic.Field(ge=1, le=3)
        parsed = self.client.chat.completions.parse(
            **self.asked(tools=[openai.pydantic_function_tool(Weather)], tool_choice="required",
                         parallel_tool_calls=False))
        self.assertIsInstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)

    def test_streams_calls_as_the_client_puts_them_together(self):
        asked = self.asked(tool_choice="required", parallel_tool_calls=False)
        whole = self.client.chat.completions.create(**asked)
        with self.client.chat.completions.stream(**asked) as stream:
            events = [event.type for event in stream]
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].finish_reason, "tool_calls")
        self.assertIn("tool_calls.function.arguments.delta", events)
        self.assertGreater(events.count("tool_calls.function.arguments.delta"),
                           events.count("tool_calls.function.arguments.done"))

        def calls(completion):
            return [(call.type, call.function.name, call.function.arguments)
                    for call in completion.choices[0].message.tool_calls]
        self.assertEqual(calls(final), calls(whole))
        self.assertIsNone(final.choices[0].message.content)

    def test_takes_calls_and_their_answers_back(self):
        create = self.client.chat.completions.create
        named = {"type": "function", "function": {"name": "weather"}}
        message = create(**self.asked(tool_choice=named)).choices[0].message
        talk = [*USER, message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21 C"}]
        for choice in ("auto", "none"):
            answer = create(**self.asked(messages=talk, tool_choice=choice, max_tokens=20, n=2))
            self.assertEqual([one.message.role for one in answer.choices], ["assistant"] * 2)
        with self.assertRaises(openai.BadRequestError) as refused:
            create(**self.asked(messages=[*talk[:2], {**talk[2], "tool_call_id": "other"}]))
        self.assertEqual(refused.exception.param, "messages[2].tool_call_id")
        # A model that knows nothing calls nothing, unless it must: the tools are a part of its prompt.
        free, bare = create(**self.asked(max_tokens=20)), create(**self.asked(max_tokens=20, tool_choice="none"))
        self.assertIsNone(free.choices[0].message.tool_calls)
        self.assertGreater(free.usage.prompt_tokens, bare.usage.prompt_tokens)
        strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
        text = create(**self.asked(max_tokens=20, tools=strict)).choices[0].message.content
        self.assertTrue(text)

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


@unittest.skipIf(MISSING or NO_TRUTH, MISSING or NO_TRUTH)
class Openings(unittest.TestCase):
    """Texts of a model whose tokenizer sets <s> before them."""

    def test_are_those_of_transformers(self):
        place = tempfile.TemporaryDirectory(prefix="megatron-interop-")
        self.addCleanup(place.cleanup)
        model, level = tokenizers.Tokenizer(tokenizers.models.BPE()), tokenizers.pre_tokenizers.ByteLevel
        model.pre_tokenizer, model.decoder = level(add_prefix_space=False), tokenizers.decoders.ByteLevel()
        model.train_from_iterator(text_of_sentences(200), tokenizers.trainers.BpeTrainer(
            vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=level.alphabet()))
        model.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                                        special_tokens=[("<s>", 0)])
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model, bos_token="<s>", eos_token="</s>")
        tokenizer.save_pretrained(place.name)
        torch.manual_seed(2)
        config = transformers.LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48,
                                          num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
                                          bos_token_id=0, eos_token_id=1, initializer_range=0.3)
        theirs = transformers.LlamaForCausalLM(config)
        theirs.save_pretrained(place.name)
        server = Server(place.name)
        self.addCleanup(server.close)
        texts = set()
        for prompt in ("the old man", "<s>the old man", ""):
            for special in (True, False):
                if not prompt and not special:
                    continue
                ids = tokenizer(prompt.removeprefix("<s>") if special else prompt, return_tensors="pt",
                                add_special_tokens=special)
                want = theirs.generate(**ids, max_new_tokens=8, do_sample=False)[0].tolist()
                words = [] if special else ["--add-special-tokens", "false"]
                ours = json.loads(run("generate", "--load", place.name, "--prompt", prompt, "--json", "--temperature",
                                      0, "--max-new-tokens", 8, *words))
                self.assertEqual(ours["prompt_ids"] + ours["new_ids"], want, (prompt, special))
                request = {"prompt": prompt, "temperature": 0, "max_tokens": 8, "echo": True, "logprobs": 0}
                served = server.post("/v1/completions",
                                     request if special else {**request, "add_special_tokens": False})
                choice = served["choices"][0]
                self.assertEqual(choice["text"], prompt + ours["text"])
                self.assertEqual(served["usage"]["prompt_tokens"], len(ids["input_ids"][0]))
                texts.add(ours["text"])
        self.assertGreater(len(texts), 2)
        for penalty in (1.2, 5):
            with self.subTest(penalty=penalty):
                ids = tokenizer("the old man", return_tensors="pt")
                want = theirs.generate(**ids, max_new_tokens=12, do_sample=False, repetition_penalty=float(penalty))
                served = server.post("/v1/completions", {"prompt": "the old man", "temperature": 0, "max_tokens": 12,
                                                         "repetition_penalty": penalty})
                new = want[0, ids["input_ids"].shape[1]:]
                self.assertEqual(served["choices"][0]["text"], tokenizer.decode(new, skip_special_tokens=True))
                texts.add(served["choices"][0]["text"])
        self.assertGreater(len(texts), 4)


TEXTS = ["A cat sits on the mat.", "a", "The stock market fell sharply, by 3.5 %, in Zürich!", "A cat sits on the mat."]


@unittest.skipIf(MISSING or NO_TRUTH, MISSING or NO_TRUTH)
@unittest.skipUnless(MINILM.exists(), f"{MINILM} is not there")
class Embeddings(unittest.TestCase):
    """all-MiniLM-L6-v2 with what sentence-transformers' folder of it has beside the weights."""

    def folder(self, mode="pooling_mode_mean_tokens", normalized=True):
        place = tempfile.TemporaryDirectory(prefix="megatron-interop-")
        self.addCleanup(place.cleanup)
        folder = pathlib.Path(place.name) / "minilm"
        (folder / "1_Pooling").mkdir(parents=True)
        for file in MINILM.iterdir():
            (folder / file.name).symlink_to(file)
        kinds = ["Transformer", "Pooling"] + ["Normalize"] * normalized
        (folder / "modules.json").write_text(json.dumps([
            {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "",
             "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]))
        (folder / "1_Pooling/config.json").write_text(json.dumps({
            "word_embedding_dimension": 384, **{key: key == mode for key in (
                "pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens")}}))
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256, "do_lower_case": False}))
        return folder

    def served(self, folder, *options):
        server = Server(folder, *options)
        self.addCleanup(server.close)
        return openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="none", max_retries=0), server

    @classmethod
    def setUpClass(cls):
        cls.tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
        cls.model = transformers.AutoModel.from_pretrained(MINILM, dtype=torch.float32).eval()
        cls.ids = [cls.tokenizer(text)["input_ids"] for text in TEXTS]
        cls.states = cls.states_of(TEXTS)

    @classmethod
    def states_of(cls, texts):
        with torch.no_grad():
            return [cls.model(torch.tensor([cls.tokenizer(text)["input_ids"]])).last_hidden_state[0] for text in texts]

    def expect(self, vectors, wanted):
        self.assertEqual(len(vectors), len(wanted))
        for got, want in zip(vectors, wanted):
            self.assertLess(np.abs(np.array(got) - want.numpy()).max(), 1e-5)

    def test_are_transformers_pooled_as_the_folder_says(self):
        client, server = self.served(self.folder())
        wanted = [torch.nn.functional.normalize(states.mean(0), dim=0) for states in self.states]
        answer = client.embeddings.create(model="minilm", input=TEXTS, encoding_format="float")
        self.expect([one.embedding for one in answer.data], wanted)
        self.assertEqual([one.index for one in answer.data], [0, 1, 2, 3])
        self.assertEqual(answer.usage.prompt_tokens, sum(map(len, self.ids)))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens)
        self.assertEqual(answer.data[0].embedding, answer.data[3].embedding)  # to the bit, whoever comes with it
        # What the client asks for where nothing is said is base64, which it decodes itself.
        alone = client.embeddings.create(model="minilm", input=TEXTS[2])
        self.expect([one.embedding for one in alone.data], wanted[2:3])
        raw = server.post("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})["data"][0]["embedding"]
        self.assertEqual(np.frombuffer(base64.b64decode(raw), "<f4").tolist(),
                         np.array(answer.data[0].embedding, "f4").tolist())
        # Token ids, of one text and of several, are taken as they are.
        self.expect([one.embedding for one in client.embeddings.create(model="minilm", input=self.ids[1]).data],
                    wanted[1:2])
        self.expect([one.embedding for one in client.embeddings.create(model="minilm", input=self.ids).data], wanted)

    def test_of_the_first_token_and_the_largest_and_in_another_layout(self):
        client, _ = self.served(self.folder("pooling_mode_cls_token", normalized=False), "--tp", 2)
        self.expect([one.embedding for one in client.embeddings.create(model="minilm", input=TEXTS).data],
                    [states[0] for states in self.states])
        client, _ = self.served(self.folder("pooling_mode_max_tokens", normalized=False))
        self.expect([one.embedding for one in client.embeddings.create(model="minilm", input=TEXTS).data],
                    [states.amax(0) for states in self.states])

    def test_are_of_the_text_behind_the_prompt_that_is_named_by_default(self):
        """As sentence-transformers' encode() puts prompt and text together where it is given no prompt."""
        folder = self.folder(normalized=False)
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": True}))
        (folder / "config_sentence_transformers.json").write_text(json.dumps(
            {"prompts": {"passage": "", "query": "A question of cats: "}, "default_prompt_name": "query"}))
        client, _ = self.served(folder)
        self.expect([one.embedding for one in client.embeddings.create(model="minilm", input=TEXTS).data],
                    [states.mean(0) for states in self.states_of(["A question of cats: " + text for text in TEXTS])])
        (folder / "1_Pooling/config.json").write_text(json.dumps(
            {"pooling_mode_mean_tokens": True, "include_prompt": False}))
        self.assertIn("include_prompt", run("serve", folder, code=2))

    def test_what_cannot_be_is_refused(self):
        client, server = self.served(self.folder())
        for asked in ({"input": "word " * 300}, {"input": []}, {"input": [30522]}, {"input": "a", "dimensions": 8},
                      {"input": "a", "encoding_format": "hex"}, {"input": "a", "unknown": 1}):
            with self.assertRaises(openai.BadRequestError, msg=str(asked)[:60]):
                client.embeddings.create(model="minilm", extra_body={"unknown": 1} if "unknown" in asked else None,
                                         **{key: value for key, value in asked.items() if key != "unknown"})
        with self.assertRaises(openai.NotFoundError):
            client.embeddings.create(model="other", input="a")
        with self.assertRaises(openai.BadRequestError):
            client.completions.create(model="minilm", prompt="a")
        self.assertEqual([model.id for model in client.models.list()], ["minilm"])
        self.assertIn("mean, cls or max", run("serve", self.folder("pooling_mode_weightedmean_tokens"), code=2))

    def test_many_ask_at_once(self):
        client, _ = self.served(self.folder())
        wanted = torch.nn.functional.normalize(self.states[2].mean(0), dim=0)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for answer in pool.map(lambda _: client.embeddings.create(model="minilm", input=TEXTS[2]), range(24)):
                self.expect([answer.data[0].embedding], [wanted])


if __name__ == "__main__":
    unittest.main()
