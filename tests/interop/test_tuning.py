"""Adapters and preferences against peft and transformers, step by step, and PEFT's folders both ways. Needs torch,
transformers, peft, trl."""
import copy
import json
import pathlib
import sys
import unittest

from peers import peers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import RunFolder, run  # noqa: E402

torch, transformers, peft, trl, datasets, MISSING = peers("torch", "transformers", "peft", "trl", "datasets")
if not MISSING:
    transformers.logging.set_verbosity_error()

SIZES = dict(vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False)
WORDS = ["--num-layers", 2, "--hidden-size", 32, "--num-query-groups", 2, "--ffn-hidden-size", 48,
         "--max-position-embeddings", 64, "--normalization", "RMSNorm", "--norm-epsilon", 1e-5,
         "--position-embedding-type", "rope", "--swiglu", "--disable-bias-linear",
         "--untie-embeddings-and-output-weights", "--vocab-size", 320, "--hidden-dropout", 0, "--attention-dropout", 0]
ADAM = dict(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
STEPS = 5
PLAIN = ["--optimizer", "adam", "--adam-beta2", 0.95, "--weight-decay", 0, "--lr-warmup-samples", 0, "--clip-grad", 0,
         "--train-iters", STEPS, "--eval-interval", 0, "--data.split", "1,0,0", "--log.interval", 1]
LAYOUTS = {"one": [], "tp2_sp": ["--world-size", 2, "--tp", 2, "--sp"],
           "tp2_pp2": ["--world-size", 4, "--tp", 2, "--pp", 2, "--schedule", "zb-h1"],
           "dp2_zero2": ["--world-size", 2, "--use-distributed-optimizer", "--data-parallel-sharding-strategy",
                         "optim_grads"]}
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Tuned(unittest.TestCase):
    """A small random Llama in a folder, `base`, none of whose numbers are 0 or 1."""
    rate = 1e-2

    def plain(self):
        return [*PLAIN, "--lr", self.rate, "--min-lr", self.rate]

    def setUp(self):
        self.place = RunFolder()
        self.addCleanup(self.place.close)
        torch.manual_seed(5)
        self.base = self.place.path / "base"
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        model.save_pretrained(self.base)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.place.tokenizer)

    def model(self):
        return transformers.AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32)

    def train(self, name, *options):
        run("train", self.place.recipe, "--tokenizer", self.place.tokenizer, "--train.out", self.place.path / name,
            *WORDS, *self.plain(), *options)
        return [self.place.losses(name)[i + 1] for i in range(STEPS)]

    def logits(self, model):
        with torch.no_grad():
            return model(torch.arange(40).reshape(2, 20) % 311).logits

    def check_close(self, a, b, limit=1e-5):
        self.assertLess((a - b).abs().max().item(), limit)

    def alike_ids(self):
        """The tokens of every sample of `alike_text_document`, and the next one."""
        ids = self.tokenizer(self.place.write_alike(), return_tensors="pt")["input_ids"]
        return torch.cat([ids, ids[:, :1]], dim=1)

    def steps(self, model, loss_of):
        """Losses of STEPS steps of AdamW on what of the model is trained."""
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=self.rate, **ADAM)
        losses = []
        for _ in range(STEPS):
            loss = loss_of()
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return losses

    def check_losses(self, got, want):
        for step, (ours, theirs) in enumerate(zip(got, want, strict=True), 1):
            self.assertAlmostEqual(ours, theirs, delta=1e-5, msg=f"step {step}")


@unittest.skipIf(MISSING, MISSING)
class Adapters(Tuned):
    def setUp(self):
        super().setUp()
        self.ids = self.alike_ids()

    def adapted(self, **options):
        """A model of peft with random adapters, saved in `adapter`."""
        config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=MODULES, init_lora_weights=False, **options)
        model = peft.get_peft_model(self.model(), config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_magnitude_vector" in name:
                    parameter.mul_(1 + torch.randn_like(parameter) * 0.2)
                elif "lora_" in name:
                    parameter.copy_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(self.place.path / "adapter")
        return model

    def their_losses(self, model):
        return self.steps(model, lambda: torch.nn.functional.cross_entropy(model(self.ids[:, :-1]).logits[0],
                                                                           self.ids[0, 1:]))

    def train_adapters(self, name, *options):
        return self.train(name, "--data-path", self.place.path / "alike_text_document", "--seq-length",
                          self.ids.shape[1] - 1, "--micro-batch-size", 1, "--global-batch-size", 2, "--lora.base",
                          self.base, "--lora.rank", 4, "--lora.alpha", 12, *options)

    def test_losses_and_matrices_are_pefts_at_every_step_in_every_layout(self):
        self.check_against_peft(LAYOUTS)

    def test_losses_and_magnitudes_are_pefts_at_every_step(self):
        layouts = {name: LAYOUTS[name] for name in ("one", "tp2_pp2")}
        self.check_against_peft(layouts, "--lora.dora", use_dora=True)
        with open(self.place.path / "one-adapter" / "adapter_config.json") as file:
            self.assertIs(json.load(file)["use_dora"], True)
        message = self.refuse("--load", self.place.path / "adapter")
        self.assertIn("--lora.dora true", message)

    def check_against_peft(self, layouts, *words, **options):
        model = self.adapted(**options)
        before = self.logits(model)
        want = self.their_losses(model)
        self.assertGreater(abs(want[0] - want[-1]), 0.1)
        after = peft.get_peft_model_state_dict(model)
        for name, layout in layouts.items():
            with self.subTest(name):
                got = self.train_adapters(name, "--load", self.place.path / "adapter", *words, *layout)
                self.check_losses(got, want)
                back = self.place.path / f"{name}-adapter"
                run("checkpoint", "export", "--load", self.place.path / name, "--output", back, "--format", "peft")
                read = peft.PeftModel.from_pretrained(self.model(), back)
                ours = peft.get_peft_model_state_dict(read)
                self.assertEqual(ours.keys(), after.keys())
                for key, value in after.items():
                    self.check_close(ours[key], value, 1e-4)
                self.check_close(self.logits(read), self.logits(model), 1e-3)
        merged = self.place.path / "merged"
        run("checkpoint", "export", "--load", self.place.path / "one", "--output", merged)
        self.check_close(self.logits(transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)),
                         self.logits(peft.PeftModel.from_pretrained(self.model(), self.place.path / "one-adapter")))
        # PEFT's own folder, merged by the program.
        run("checkpoint", "export", "--load", self.place.path / "adapter", "--output", self.place.path / "first")
        first = transformers.AutoModelForCausalLM.from_pretrained(self.place.path / "first", dtype=torch.float32)
        self.check_close(self.logits(first), before)

    def test_rslora_and_layers_that_are_chosen(self):
        config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=["k_proj", "down_proj"], init_lora_weights=False,
                                 use_rslora=True)
        model = peft.get_peft_model(self.model(), config)
        model.save_pretrained(self.place.path / "adapter")
        want = self.their_losses(model)
        got = self.train_adapters("chosen", "--load", self.place.path / "adapter", "--lora.rslora", "--lora.targets",
                                  "k_proj", "down_proj")
        self.check_losses(got, want)

    def test_kept_beside_their_base_have_pefts_loss(self):
        size = self.ids.shape[1]
        words = ["eval", "loss", "--tokenizer", self.place.tokenizer, "--data",
                 self.place.path / "alike_text_document", "--window", size, "--limit-tokens", size, "--json"]
        for options in ({}, {"use_dora": True}, {"use_rslora": True}):
            model = self.adapted(**options)
            with torch.no_grad():
                want = torch.nn.functional.cross_entropy(model(self.ids[:, :-1]).logits[0], self.ids[0, 1:]).item()
            for layout in ([], ["--tp", 2], ["--pp", 2]):
                with self.subTest(options=options, layout=layout):
                    got = json.loads(run(*words, "--load", self.base, "--adapter", self.place.path / "adapter",
                                         *layout))
                    self.assertAlmostEqual(got["loss"], want, delta=1e-5)
                    self.assertEqual(got["scored_tokens"], size - 1)
        self.assertNotAlmostEqual(json.loads(run(*words, "--load", self.base))["loss"], want, delta=1e-2)
        other = self.place.path / "other"
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | {"intermediate_size": 96})).save_pretrained(
            other)
        message = run(*words, "--load", other, "--adapter", self.place.path / "adapter", code=2)
        self.assertIn("must be of the model in", message)

    def test_dora_begins_as_the_model_that_it_adapts(self):
        with torch.no_grad():
            want = torch.nn.functional.cross_entropy(self.model()(self.ids[:, :-1]).logits[0], self.ids[0, 1:]).item()
        got = self.train_adapters("fresh", "--lora.dora", *LAYOUTS["tp2_sp"])
        self.assertAlmostEqual(got[0], want, delta=1e-5)
        self.assertLess(got[-1], got[0])

    def test_one_matrix_of_queries_keys_and_values_is_merged(self):
        for dora in (False, True):
            with self.subTest(dora=dora):
                self.check_one_matrix(f"dora-{dora}", use_dora=dora)

    def check_one_matrix(self, name, **options):
        torch.manual_seed(3)
        base = self.place.path / "gpt2"
        transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=320, n_embd=32, n_layer=2, n_head=4, n_positions=64)).save_pretrained(base)
        model = peft.get_peft_model(
            transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
            peft.LoraConfig(r=4, lora_alpha=12, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True,
                            init_lora_weights=False, **options))
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "lora_magnitude_vector" in key:
                    parameter.mul_(1 + torch.randn_like(parameter) * 0.2)
        model.save_pretrained(self.place.path / f"{name}-adapter")
        model.eval()
        merged = self.place.path / f"{name}-merged"
        run("checkpoint", "export", "--load", self.place.path / f"{name}-adapter", "--output", merged)
        read = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
        read.eval()
        self.check_close(self.logits(read), self.logits(model))

    def refuse(self, *options):
        """What is said of adapters that are trained with other options than theirs."""
        return run("train", self.place.recipe, "--tokenizer", self.place.tokenizer, "--train.out",
                   self.place.path / "refused", *WORDS, *self.plain(), "--data-path",
                   self.place.path / "alike_text_document", "--seq-length", self.ids.shape[1] - 1,
                   "--micro-batch-size", 1, "--global-batch-size", 2, "--lora.base", self.base, "--lora.rank", 4,
                   "--lora.alpha", 12, *options, code=2)

    def test_what_is_not_known_is_refused(self):
        self.adapted(lora_bias=True)
        message = run("checkpoint", "export", "--load", self.place.path / "adapter", "--output",
                      self.place.path / "biased", code=2)
        self.assertIn("lora_bias", message)
        config = self.place.path / "adapter" / "adapter_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "lora_bias": False, "use_dora": True}))
        message = run("checkpoint", "export", "--load", self.place.path / "adapter", "--output",
                      self.place.path / "empty", code=2)
        self.assertIn("lora_magnitude_vector", message)


@unittest.skipIf(MISSING, MISSING)
class Teacher(Tuned):
    def test_losses_are_those_of_transformers_logits(self):
        ids = self.alike_ids()
        torch.manual_seed(8)
        teacher = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, "hidden_size": 64}))
        with torch.no_grad():
            for parameter in teacher.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        teacher.save_pretrained(self.place.path / "teacher")
        alpha, temperature = 0.3, 2.0
        model = self.model()

        def loss_of():
            logits = model(ids[:, :-1]).logits[0]
            with torch.no_grad():
                log_q = (teacher(ids[:, :-1]).logits[0] / temperature).log_softmax(-1)
            log_p = (logits / temperature).log_softmax(-1)
            divergence = torch.nn.functional.kl_div(log_p, log_q, reduction="batchmean", log_target=True)
            return ((1 - alpha) * torch.nn.functional.cross_entropy(logits, ids[0, 1:]) +
                    alpha * temperature ** 2 * divergence)

        want = self.steps(model, loss_of)
        for name, layout in LAYOUTS.items():
            with self.subTest(name):
                got = self.train(name, "--data-path", self.place.path / "alike_text_document", "--seq-length",
                                 ids.shape[1] - 1, "--micro-batch-size", 1, "--global-batch-size", 2, "--load",
                                 self.base, "--finetune", "--distill.teacher", self.place.path / "teacher",
                                 "--distill.alpha", alpha, "--distill.temperature", temperature, *layout)
                self.check_losses(got, want)


    def test_how_a_teacher_is_cut_into_stages_changes_no_loss(self):
        self.place.write_alike()
        torch.manual_seed(9)
        transformers.LlamaForCausalLM(transformers.LlamaConfig(
            **{**SIZES, "hidden_size": 64, "num_hidden_layers": 5})).save_pretrained(self.place.path / "teacher")
        common = ["--data-path", self.place.path / "alike_text_document", "--seq-length", 24, "--micro-batch-size", 1,
                  "--global-batch-size", 4, "--num-layers", 4, "--train.dtype", "fp64",
                  "--distill.teacher", self.place.path / "teacher"]
        one = self.train("whole", *common)
        checked = ["--world-size", 4, "--guard.rerun_interval", 2]
        for options in (["--vpp", 2], ["--vpp", 2, "--schedule", "dualpipev"], ["--vpp", 2, "--schedule", "zb-v"],
                        ["--schedule", "gpipe"], ["--world-size", 4, "--cp", 2], checked):
            with self.subTest(options):
                got = self.train("_".join(map(str, options)), *common, "--world-size", 2, "--pp", 2, *options)
                for ours, theirs in zip(got, one, strict=True):
                    self.assertAlmostEqual(ours, theirs, delta=1e-12)
        message = run("train", self.place.recipe, "--tokenizer", self.place.tokenizer, *WORDS, *self.plain(), *common,
                      "--num-layers", 6, "--world-size", 6, "--pp", 6, "--train.out", self.place.path / "no", code=2)
        self.assertIn("distill.teacher must have a layer for each stage", message)


    def test_a_student_with_experts_learns_as_without_a_teacher_where_that_has_no_share(self):
        self.place.write_alike()
        common = ["--data-path", self.place.path / "alike_text_document", "--seq-length", 24, "--micro-batch-size", 1,
                  "--global-batch-size", 4, "--train.dtype", "fp64", "--num-experts", 4, "--moe-router-topk", 2,
                  "--moe-aux-loss-coeff", 0.02, "--moe-z-loss-coeff", 0.01]
        alone = self.train("alone", *common)
        taught = ["--distill.teacher", self.base, "--distill.alpha"]
        for ours, theirs in zip(self.train("no_share", *common, *taught, 0), alone, strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-12)
        one = self.train("share", *common, *taught, 0.5)
        self.assertGreater(abs(one[-1] - alone[-1]), 1e-3)
        for ours, theirs in zip(self.train("ep2_pp2", *common, *taught, 0.5, "--world-size", 4, "--ep", 2, "--pp", 2),
                                one, strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-12)


@unittest.skipIf(MISSING, MISSING)
class Preferences(Tuned):
    PAIRS = [("the cat", " sees a dog on monday.", " never answers."), ("my friend likes", " the old man.", " a dog."),
             ("the old man follows", " my friend on friday.", " the cat on monday."), ("a dog", " likes it.", " sees.")]
    BETA, SMOOTHING = 0.3, 0.1

    def setUp(self):
        super().setUp()
        self.path = self.place.path / "preferences.jsonl"
        self.path.write_text("".join(json.dumps(dict(prompt=p, chosen=c, rejected=r)) + "\n" for p, c, r in self.PAIRS))

    def log_probability(self, model, prompt, answer):
        begin = len(self.tokenizer(prompt)["input_ids"])
        end = self.tokenizer.convert_tokens_to_ids("<|endoftext|>")
        ids = torch.tensor([self.tokenizer(prompt + answer)["input_ids"] + [end]])
        log_p = model(ids[:, :-1]).logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
        return log_p[0, begin - 1:].sum()

    def their_losses(self, smoothing):
        """The sigmoid loss, written out; with it what trl's DPOTrainer logs, in `figures`. It smooths no labels."""
        self.figures = []
        model = self.model()
        reference = copy.deepcopy(model)

        def loss_of():
            log_p = torch.stack([torch.stack([self.log_probability(model, prompt, answer) for answer in answers])
                                 for prompt, *answers in self.PAIRS])
            with torch.no_grad():
                log_q = torch.stack([torch.stack([self.log_probability(reference, prompt, answer)
                                                  for answer in answers]) for prompt, *answers in self.PAIRS])
            rewards = self.BETA * (log_p - log_q)
            chosen, rejected = rewards.unbind(1)
            self.figures.append({"rewards/chosen": chosen.mean(), "rewards/rejected": rejected.mean(),
                                 "rewards/accuracies": (chosen > rejected).float().mean(),
                                 "rewards/margins": (chosen - rejected).mean(),
                                 "logps/chosen": log_p[:, 0].mean(), "logps/rejected": log_p[:, 1].mean()})
            return (-torch.nn.functional.logsigmoid(chosen - rejected) * (1 - smoothing) -
                    torch.nn.functional.logsigmoid(rejected - chosen) * smoothing).mean()

        return self.steps(model, loss_of)

    def losses_of_trl(self):
        """What trl's own DPOTrainer logs: each step takes all pairs, so their order is nothing."""
        end = "<|endoftext|>"
        tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer.eos_token = tokenizer.pad_token = end
        data = datasets.Dataset.from_list([dict(prompt=p, chosen=c, rejected=r) for p, c, r in self.PAIRS])
        arguments = trl.DPOConfig(
            output_dir=str(self.place.path / "trl"), beta=self.BETA, max_steps=STEPS,
            per_device_train_batch_size=len(self.PAIRS), learning_rate=self.rate, weight_decay=0.0, max_grad_norm=0.0,
            adam_beta1=ADAM["betas"][0], adam_beta2=ADAM["betas"][1], adam_epsilon=ADAM["eps"], bf16=False,
            lr_scheduler_type="constant", logging_steps=1, logging_first_step=True, save_strategy="no", report_to=[],
            gradient_checkpointing=False, use_cpu=True, disable_tqdm=True)
        trainer = trl.DPOTrainer(model=self.model(), args=arguments, train_dataset=data, processing_class=tokenizer)
        trainer.train()
        return [line["loss"] for line in trainer.state.log_history if "loss" in line]

    def test_losses_are_those_of_trls_trainer(self):
        self.check_losses(self.prefer("trainer"), self.losses_of_trl())

    def check_figures(self, name):
        """What the run has logged is what trl's DPOTrainer.get_batch_loss_metrics logs."""
        steps = [line for line in self.place.metrics(name) if "loss" in line]
        for step, (ours, theirs) in enumerate(zip(steps, self.figures, strict=True), 1):
            for figure, value in theirs.items():
                if step == 1 and figure == "rewards/accuracies":  # rewards are zero but for rounding
                    continue
                self.assertAlmostEqual(ours[figure], value.item(), delta=2e-4, msg=f"step {step}, {figure}")

    def prefer(self, name, *options):
        return self.train(name, "--data-path", self.path, "--seq-length", 32, "--micro-batch-size", 2,
                          "--global-batch-size", 8, "--dpo.beta", self.BETA, "--load", self.base, "--finetune",
                          *options)

    def test_losses_are_trls_at_every_step_in_every_layout(self):
        want = self.their_losses(0)
        self.assertAlmostEqual(want[0], 0.693147, delta=1e-6)
        self.assertLess(want[-1], 0.6)
        shared = ["--world-size", 2, "--cp", 2]
        for name, layout in (LAYOUTS | {"cp2": shared, "cp2_pp2": [*shared, "--world-size", 4, "--pp", 2]}).items():
            with self.subTest(name):
                self.check_losses(self.prefer(name, *layout), want)
                self.check_figures(name)
        self.assertGreater(self.figures[-1]["rewards/margins"], 0.1)

    def test_experts_and_what_their_routers_add(self):
        torch.manual_seed(6)
        transformers.MixtralForCausalLM(transformers.MixtralConfig(
            **{**SIZES, "intermediate_size": 16}, num_local_experts=4, num_experts_per_tok=2, sliding_window=None,
            router_aux_loss_coef=0.0)).save_pretrained(self.base)
        want = self.their_losses(0)
        network = ["--use-checkpoint-args", "--ffn-hidden-size", 16, "--num-experts", 4]
        for name, layout in (("alone", []), ("ep2_tp2", ["--world-size", 4, "--tp", 2, "--sp", "--ep", 2])):
            self.check_losses(self.prefer(name, *network, *layout), want)
        even = self.prefer("even", *network, "--moe-aux-loss-coeff", 0.1)
        self.assertAlmostEqual(even[0], want[0], delta=1e-6)
        self.assertGreater(abs(even[-1] - want[-1]), 1e-5)

    def test_label_smoothing(self):
        got = self.prefer("smoothed", "--dpo.label_smoothing", self.SMOOTHING)
        self.check_losses(got, self.their_losses(self.SMOOTHING))

    def test_a_run_that_resumes_keeps_its_reference(self):
        whole = self.prefer("whole")
        cut = self.place.path / "cut"
        words = ["--data-path", self.path, "--seq-length", 32, "--micro-batch-size", 2, "--global-batch-size", 8,
                 "--dpo.beta", self.BETA, "--load", self.base, "--finetune"]
        command = ["train", self.place.recipe, "--tokenizer", self.place.tokenizer, "--train.out", cut, *WORDS,
                   *self.plain(), *words]
        run(*command, "--train.exit_interval", 2, code=0)
        run(*command)
        losses = self.place.losses("cut")
        for step in range(STEPS):
            self.assertEqual(losses[step + 1], whole[step])
        self.path.write_text(self.path.read_text().replace("my friend on friday", "the dog on friday"))
        refused = run(*command, "--train-iters", STEPS + 1, code=1)
        self.assertIn("must be of the run's preferences", refused)
        self.assertIn("answer 5 of 8", refused)  # the third pair's chosen one
        (cut / "reference" / "train.safetensors").unlink()
        self.assertIn("log-probabilities", run(*command, "--train-iters", STEPS + 1, code=1))


if __name__ == "__main__":
    unittest.main()
