"""The package megatron-core on a CPU: its models, optimizers and distributed checkpoints, several ranks as processes.

The package expects a GPU. Here torch.cuda.current_device() answers "cpu", device="cuda" means "cpu" and the tracker of
random numbers does nothing (no test uses dropout); models, optimizers, schedules and files are the package's own.
"""
import argparse
import contextlib
import copy
import logging
import os
import pathlib
import pickle
import random
import signal
import tempfile
import warnings
import zlib

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
# torch refuses the signal and the enumerations among its own arguments as some versions of Python 3.11 write them.
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy  # noqa: E402
import torch  # noqa: E402
import torch.multiprocessing  # noqa: E402

torch.cuda.current_device = lambda: "cpu"
torch.cuda.FloatTensor, torch.cuda.DoubleTensor = torch.FloatTensor, torch.DoubleTensor
torch.cuda.BFloat16Tensor = torch.BFloat16Tensor
torch.cuda.synchronize = lambda *positional: None
torch.Tensor.cuda = lambda self, *positional, **named: self
torch.set_num_threads(1)

from megatron.core import dist_checkpointing, parallel_state, tensor_parallel  # noqa: E402
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder  # noqa: E402
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: E402
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder  # noqa: E402
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.distributed import finalize_model_grads  # noqa: E402
from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator  # noqa: E402
from megatron.core.models.T5 import t5_spec  # noqa: E402
from megatron.core.models.T5.t5_model import T5Model  # noqa: E402
from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec  # noqa: E402
from megatron.core.models.bert.bert_model import BertModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.enums import AttnBackend  # noqa: E402
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler  # noqa: E402
from megatron.core.transformer.moe.router import TopKRouter  # noqa: E402
from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler  # noqa: E402
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules  # noqa: E402
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig  # noqa: E402
import megatron.core.tensor_parallel.layers  # noqa: E402
import megatron.core.tensor_parallel.random  # noqa: E402
import megatron.core.transformer.multi_latent_attention  # noqa: E402


class OnCpu(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, positional=(), named=None):
        named = dict(named or {})
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        if func is torch.Tensor.type and len(positional) == 1 and not named:
            return func(*positional).replace("torch.", "torch.cuda.", 1)  # what clip_grads.py asserts
        return func(*positional, **named)


class NoTracker:
    def fork(self, *positional, **named):
        return contextlib.nullcontext()

    def is_initialized(self):
        return True


for module in (tensor_parallel, tensor_parallel.layers, tensor_parallel.random):
    module.get_cuda_rng_tracker = lambda *positional, **named: NoTracker()

_set_state = DistributedOptimizer._set_main_param_and_optimizer_states


def _set_state_but_for_the_step(self, model_param, tensors):
    """Torch's Adam has its step in a tensor of its own, which the package loads before, the same one for all
    parameters, and asks for here."""
    group, order = self.model_param_group_index_map[model_param]
    state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
    state["step"] = state["step"].clone()
    _set_state(self, model_param, {**tensors, "step": state["step"]})


DistributedOptimizer._set_main_param_and_optimizer_states = _set_state_but_for_the_step

# Without Transformer Engine these modules ask for classes that are None, and for a function that has no name.
megatron.core.transformer.multi_latent_attention.HAVE_TE = False
megatron.core.transformer.moe.moe_utils.te_general_gemm = None


class LatentAttention(DotProductAttention):
    """The package's attention without Transformer Engine does not know the widths of heads that its latent attention
    tells it."""

    def __init__(self, *positional, k_channels=None, v_channels=None, **named):
        super().__init__(*positional, **named)
        if v_channels is not None:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition


LAYERS = dict(use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0, bias_dropout_fusion=False,
              masked_softmax_fusion=False, gradient_accumulation_fusion=False, persist_layer_norm=False,
              apply_rope_fusion=False)
VOCABULARY, PADDED, SEQUENCE = 90, 96, 16
MODELS = {
    "gpt2": dict(num_layers=2, hidden_size=16, num_attention_heads=4, ffn_hidden_size=24),
    "llama": dict(num_layers=4, hidden_size=16, num_attention_heads=4, ffn_hidden_size=24, num_query_groups=2,
                  gated_linear_unit=True, add_bias_linear=False, normalization="RMSNorm",
                  activation_func=torch.nn.functional.silu, layernorm_epsilon=1e-6),
    "bert": dict(num_layers=2, hidden_size=16, num_attention_heads=4, ffn_hidden_size=24),
    "t5": dict(num_layers=2, hidden_size=16, num_attention_heads=4, ffn_hidden_size=24),
}
# The same with two depths of multi-token prediction, which count as with --calculate-per-token-loss.
MODELS["mtp"] = dict(MODELS["llama"], num_layers=2, mtp_num_layers=2, mtp_loss_scaling_factor=0.5,
                     calculate_per_token_loss=True)
# Experts in all layers, of which a token takes two of one half; and DeepSeek's layers: latents, the first layer without
# experts, biases that even out the load, experts of two of four groups.
MODELS["moe"] = dict(MODELS["llama"], num_layers=2, num_moe_experts=8, moe_router_topk=2, moe_ffn_hidden_size=12,
                     moe_router_num_groups=2, moe_router_group_topk=1,
                     moe_shared_expert_intermediate_size=8, moe_shared_expert_gate=True,
                     moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=0.05, moe_z_loss_coeff=1e-3)
MODELS["deepseek"] = dict(MODELS["moe"], num_layers=3, num_query_groups=None, q_lora_rank=8, kv_lora_rank=6,
                          qk_head_dim=4, qk_pos_emb_head_dim=2, v_head_dim=6, qk_layernorm=True, rope_type="yarn",
                          rotary_base=50000, rotary_scaling_factor=4.0, mscale=0.7, mscale_all_dim=0.9,
                          moe_layer_freq=[0, 1, 1], num_moe_experts=12, moe_router_topk=4,
                          moe_router_num_groups=4, moe_router_group_topk=2,
                          moe_router_score_function="sigmoid", moe_router_topk_scaling_factor=1.5,
                          moe_router_enable_expert_bias=True, moe_router_bias_update_rate=0.01, moe_z_loss_coeff=None)
MODELS["odd_experts"] = dict(MODELS["moe"], moe_ffn_hidden_size=11)  # which no two ranks can split
# Queries and keys normalized without weights, of interpolated positions; and YaRN of whole heads.
MODELS["normed"] = dict(MODELS["llama"], num_layers=2, qk_l2_norm=True)
MODELS["yarn"] = dict(MODELS["llama"], num_layers=2)
MODELS["gated"] = dict(MODELS["llama"], num_layers=2, attention_output_gate=True, add_qkv_bias=True)
# Of positions, by the names of Megatron-LM's arguments.
POSITIONS = {"normed": dict(rotary_seq_len_interpolation_factor=3),
             "yarn": dict(position_embedding_type="yarn", rotary_scaling_factor=4.0, mscale=1.0, mscale_all_dim=0.0,
                          yarn_original_max_position_embeddings=8, yarn_beta_fast=2.0, yarn_beta_slow=0.5,
                          yarn_correction_range_round_to_int=False)}
LLAMAS = "llama", "mtp", "moe", "deepseek", "odd_experts", "normed", "yarn", "gated"
LATENTS = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rope_type",
           "rotary_scaling_factor", "mscale", "mscale_all_dim")
DECODER_SEQUENCE = 12
# The words of a T5's vocabulary: [PAD] is 0, by which the package knows padding.
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOS]", "[BOS]"] + [f"<extra_id_{i}>" for i in range(12)]
WORDS = SPECIAL + [f"w{i}" for i in range(VOCABULARY - len(SPECIAL))]
LR, MIN_LR, BATCH, STEPS = 3e-3, 3e-4, 4, 20


def build(name, dtype, tp, pp, vpp=None, chunk=None, first=None, layout=None):
    """This rank's stage of a model of MODELS, or the one of its `vpp` stages that `chunk` says. `first`: layers of the
    first pipeline rank, `layout`: those of each stage, where they are not as many on each."""
    options = MODELS[name]
    latents = "kv_lora_rank" in options
    config = (MLATransformerConfig if latents else TransformerConfig)(
        params_dtype=dtype, pipeline_dtype=dtype, bf16=dtype == torch.bfloat16, tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vpp,
        expert_model_parallel_size=parallel_state.get_expert_model_parallel_world_size(),
        expert_tensor_parallel_size=parallel_state.get_expert_tensor_parallel_world_size(),
        num_layers_in_first_pipeline_stage=first, pipeline_model_parallel_layout=layout,
        bias_activation_fusion=name == "gpt2", **LAYERS, **options)
    torch.manual_seed(5)
    stage = dict(vocab_size=PADDED, max_sequence_length=SEQUENCE,
                 pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
                 post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk))
    if name == "bert":
        model = BertModel(config, 2, bert_layer_local_spec, share_embeddings_and_output_weights=True,
                          add_binary_head=True, **stage)
    elif name == "t5":
        encoder, decoder = (TransformerBlockSubmodules([spec] * options["num_layers"], layer_norm=t5_spec.LNImpl)
                            for spec in (t5_spec.encoder_model_with_local_spec(),
                                         t5_spec.decoder_model_with_local_spec()))
        model = T5Model(config, copy.deepcopy(config), encoder, decoder, share_embeddings_and_output_weights=True,
                        **stage)
    else:
        llama, positions = name in LLAMAS, POSITIONS.get(name, {})
        layers = get_gpt_decoder_block_spec(config, False, normalization=config.normalization, vp_stage=chunk,
                                            qk_l2_norm=config.qk_l2_norm)
        if "yarn_beta_fast" in positions:  # as argument_utils.py's _apply_yarn_config_from_args() sets them
            for key, value in positions.items():
                setattr(config, key if key.startswith("yarn_") else f"yarn_{key}", value)
        if latents:
            for layer in layers.layer_specs:
                layer.submodules.self_attention.submodules.core_attention = LatentAttention
        depths = get_gpt_mtp_block_spec(config, layers, use_transformer_engine=False, vp_stage=chunk)
        model = GPTModel(config, layers, vp_stage=chunk, mtp_block_spec=depths,
                         share_embeddings_and_output_weights=not llama, rotary_base=50000,
                         position_embedding_type=positions.get("position_embedding_type",
                                                               "rope" if llama else "learned_absolute"),
                         seq_len_interpolation_factor=positions.get("rotary_seq_len_interpolation_factor"), **stage)
    return model.to(dtype) if dtype != torch.float32 else model


def arguments(name, dtype, tp, pp, **others):
    """What Megatron-LM's training keeps of its arguments in a checkpoint."""
    options, llama = MODELS[name], name in LLAMAS
    grouped, world = options.get("num_query_groups") is not None, torch.distributed.get_world_size()
    return argparse.Namespace(**{**dict(
        num_layers=options["num_layers"], hidden_size=16, num_attention_heads=4, ffn_hidden_size=24, kv_channels=4,
        group_query_attention=grouped, num_query_groups=2 if grouped else 1, max_position_embeddings=SEQUENCE,
        seq_length=SEQUENCE, encoder_seq_length=SEQUENCE, padded_vocab_size=PADDED, vocab_size=VOCABULARY,
        make_vocab_size_divisible_by=8, swiglu=llama, squared_relu=False, openai_gelu=False,
        bias_gelu_fusion=name == "gpt2", normalization="RMSNorm" if llama else "LayerNorm",
        norm_epsilon=1e-6 if llama else 1e-5, add_bias_linear=not llama,
        add_qkv_bias=options.get("add_qkv_bias", False),
        untie_embeddings_and_output_weights=llama, position_embedding_type="rope" if llama else "learned_absolute",
        rotary_base=50000, rotary_percent=1.0, rotary_interleaved=False, use_rope_scaling=False,
        qk_l2_norm=options.get("qk_l2_norm", False),
        attention_output_gate=options.get("attention_output_gate", False),
        num_experts=options.get("num_moe_experts"), qk_layernorm=options.get("qk_layernorm", False),
        multi_latent_attention="kv_lora_rank" in options,
        expert_model_parallel_size=parallel_state.get_expert_model_parallel_world_size(),
        expert_tensor_parallel_size=parallel_state.get_expert_tensor_parallel_world_size(), spec=None,
        params_dtype=dtype, bf16=dtype == torch.bfloat16, fp16=False, hidden_dropout=0.0, attention_dropout=0.0,
        init_method_std=0.02, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
        data_parallel_size=world // tp // pp, world_size=world, micro_batch_size=2, global_batch_size=BATCH,
        train_iters=STEPS, seed=7, optimizer="adam", lr=LR, min_lr=MIN_LR, lr_decay_style="cosine",
        lr_warmup_iters=2, lr_decay_iters=None, lr_warmup_init=0.0, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95,
        adam_eps=1e-8, clip_grad=1.0, split="9,1,0", bert_binary_head=True, num_tokentypes=2 if name == "bert" else 0,
        exit_signal=signal.SIGTERM, attention_backend=AttnBackend.auto, no_save_optim=None, no_save_rng=None,
        ckpt_format="torch_dist", transformer_impl="local", **(dict(
            encoder_num_layers=2, decoder_num_layers=None, decoder_seq_length=DECODER_SEQUENCE, mask_prob=0.15,
            short_seq_prob=0.1) if name == "t5" else {}),
        **{key: value for key, value in options.items()
           if key.startswith(("mtp_", "calculate_", "moe_")) or key in LATENTS},
        consumed_train_samples=0, skipped_train_samples=0,
        consumed_valid_samples=0), **POSITIONS.get(name, {}), **others})


class Words:
    """A tokenizer of a T5's words, as its BertWordPieceTokenizer."""
    inv_vocab = dict(enumerate(WORDS))
    pad, cls, sep, mask, eos, bos = (WORDS.index(f"[{name}]") for name in ("PAD", "CLS", "SEP", "MASK", "EOS", "BOS"))
    additional_special_tokens_ids = [WORDS.index(f"<extra_id_{i}>") for i in range(12)]
    vocab_size, unique_identifiers = VOCABULARY, {"class": "Words"}


class Numbers:
    """A tokenizer of numbers, as its NullTokenizer."""
    eod, vocab_size, unique_identifiers = 0, PADDED, {"class": "Numbers"}


def write_tokens(prefix):
    """A .bin/.idx pair of documents that a model can learn something of: counting in steps."""
    draw = random.Random(3)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(PADDED))
    for _ in range(60):
        first, step, length = draw.randrange(90), draw.randrange(1, 5), draw.randrange(5, 60)
        builder.add_document(torch.tensor([(first + i * step) % 90 for i in range(length)]), [length])
    builder.finalize(f"{prefix}.idx")


def write_sentences(prefix):
    """The same of a T5's words, in documents of sentences."""
    draw = random.Random(3)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(PADDED))
    words = range(len(SPECIAL), VOCABULARY)
    for _ in range(60):
        first, step = draw.randrange(len(words)), draw.randrange(1, 5)
        lengths = [draw.randrange(3, 9) for _ in range(draw.randrange(2, 6))]
        tokens = [words[(first + i * step) % len(words)] for i in range(sum(lengths))]
        builder.add_document(torch.tensor(tokens), lengths)
    builder.finalize(f"{prefix}.idx")


def samples(name, prefix):
    """The training samples of a run, in its order."""
    common = dict(random_seed=7, sequence_length=SEQUENCE, blend=([str(prefix)], None), split="9,1,0",
                  path_to_cache=f"{prefix}-cache")
    if name == "t5":  # as pretrain_t5.py has it
        config = T5MaskedWordPieceDatasetConfig(
            tokenizer=Words(), sequence_length_decoder=DECODER_SEQUENCE, masking_probability=0.15,
            short_sequence_probability=0.1, masking_max_ngram=10, masking_do_full_word=True,
            masking_do_permutation=False, masking_use_longer_ngrams=False,
            masking_use_geometric_distribution=True, **common)
        return BlendedMegatronDatasetBuilder(T5MaskedWordPieceDataset, [STEPS * BATCH, 0, 0], lambda: True,
                                             config).build()[0]
    config = GPTDatasetConfig(tokenizer=Numbers(), reset_position_ids=False, reset_attention_mask=False,
                              eod_mask_loss=False, **common)
    return BlendedMegatronDatasetBuilder(GPTDataset, [STEPS * BATCH, 0, 0], lambda: True, config).build()[0]


class Run:
    """A training run on all ranks, with the package's DDP, optimizer and schedule."""

    def __init__(self, name, prefix, tp=1, pp=1, dtype=torch.float32, sharding=None, vpp=None, first=None,
                 layout=None, ramp=None, decoupled=None, ep=1, etp=None):
        """prefix: of its tokens. sharding: how a checkpoint has the state of the distributed optimizer; None: there is
        none. ramp: --rampup-batch-size, as its calculator of microbatches has it. decoupled: --decoupled-lr.
        etp: ranks that split an expert; None: as many as split all else."""
        self.prefix, self.samples = prefix, samples(name, prefix)
        parallel_state.initialize_model_parallel(tp, pp, vpp, expert_model_parallel_size=ep,
                                                 expert_tensor_parallel_size=etp)
        self.name, self.dtype, self.tp, self.pp, self.sharding, self.vpp = name, dtype, tp, pp, sharding, vpp
        distributed = sharding is not None
        self.first, self.layout = first, layout
        modules = [build(name, dtype, tp, pp, vpp, chunk, first, layout) for chunk in (range(vpp) if vpp else [None])]
        ddp = DistributedDataParallelConfig(use_distributed_optimizer=distributed, overlap_grad_reduce=False,
                                            grad_reduce_in_fp32=True)
        self.models = [DistributedDataParallel(module.config, ddp, module) for module in modules]
        self.model = self.models[0]
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(optimizer="adam", lr=LR, min_lr=MIN_LR, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95,
                            adam_eps=1e-8, clip_grad=1.0, bf16=dtype == torch.bfloat16, params_dtype=dtype,
                            use_distributed_optimizer=distributed, decoupled_lr=decoupled), self.models)
        self.scheduler = OptimizerParamScheduler(
            self.optimizer, init_lr=0.0, max_lr=LR, min_lr=MIN_LR, lr_warmup_steps=2 * BATCH,
            lr_decay_steps=STEPS * BATCH, lr_decay_style="cosine", start_wd=0.1, end_wd=0.1,
            wd_incr_steps=STEPS * BATCH, wd_incr_style="constant")
        self.iteration = self.consumed = 0
        self.routers = [module for module in self.model.modules() if isinstance(module, TopKRouter)]
        for router in self.routers:
            router.register_forward_hook(self.count_choices)
        self.loads = []
        self.ramp, self.decoupled = ramp, decoupled
        if ramp:
            self.batches = RampupBatchsizeNumMicroBatchesCalculator(BATCH, 2, 1, False, 0, *ramp)

    def count_choices(self, router, _, result):
        self.loads[-1][self.routers.index(router)] += result[1].sum(0)

    def next_batch_size(self):
        if not self.ramp:
            return BATCH
        self.batches.update(self.consumed, False)
        return self.batches.get_current_global_batch_size()

    def loss(self, batch):
        """Of a microbatch of samples; a whole model."""
        if self.name == "t5":
            return self.t5_loss(batch)
        tokens = torch.stack([sample["tokens"] for sample in batch])
        labels = torch.stack([sample["labels"] for sample in batch])
        positions = torch.arange(SEQUENCE).expand_as(tokens)
        if self.name == "bert":  # each token from itself: what is trained does not matter here
            losses, order = self.model(tokens, torch.ones_like(tokens), tokentype_ids=tokens % 2, lm_labels=labels)
            return losses.float().mean() + order.float().square().mean()
        return self.model(tokens, positions, None, labels=labels).float().mean()

    def t5_loss(self, batch):
        """As pretrain_t5.py has it."""
        read, written, labels, shown, read_mask, written_mask = (
            torch.stack([torch.as_tensor(sample[key]) for sample in batch])
            for key in ("text_enc", "text_dec", "labels", "loss_mask", "enc_mask", "dec_mask"))
        masks = T5MaskedWordPieceDataset.config_attention_mask(read, written, read_mask < 0.5, written_mask < 0.5,
                                                               use_local=True)
        losses = self.model(read, written, *masks, lm_labels=labels).float()
        return (losses * shown).sum() / shown.sum()

    def step(self):
        """Trains on the next global batch; the loss before it. Appends to `loads` how many copies of tokens chose each
        expert, by layer with experts."""
        self.loads.append([0] * len(self.routers))
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        size = self.next_batch_size()
        batch = [self.samples[i] for i in range(self.consumed, self.consumed + size)]
        parts = [batch[i:i + 2] for i in range(0, size, 2)]
        # As with --calculate-per-token-loss.
        tokens = [sum(int(sample["loss_mask"].sum()) for sample in part) for part in parts]
        total = 0.0
        MTPLossAutoScaler.set_loss_scale(torch.tensor(1 / sum(tokens)))
        MoEAuxLossAutoScaler.set_loss_scale(torch.tensor(1 / len(parts)))
        for part, count in zip(parts, tokens):
            loss = self.loss(part) * (count / sum(tokens))
            loss.backward()
            total += loss.item()
        finalize_model_grads([self.model])
        succeeded, _, _ = self.optimizer.step()
        assert succeeded
        self.scheduler.step(increment=size)
        self.iteration += 1
        self.consumed += size
        self.loads[-1] = [load.tolist() for load in self.loads[-1]]
        return total

    def drawn_step(self):
        """A step with gradients that are drawn, as those of a pipeline's stages take a schedule: the same ones on all
        ranks that share a parameter."""
        experts = parallel_state.get_expert_model_parallel_rank()
        for model in self.models:
            model.zero_grad_buffer()
            for name, parameter in model.named_parameters():
                name = "words" if getattr(parameter, "shared_embedding", False) else name
                name = name if getattr(parameter, "allreduce", True) else f"{name} {experts}"
                draw = torch.Generator().manual_seed(zlib.crc32(f"{name} {self.iteration}".encode()))
                parameter.main_grad.copy_(torch.randn(parameter.shape, generator=draw))
            for name, buffer in model.named_buffers():
                if name.endswith(".expert_bias"):
                    draw = torch.Generator().manual_seed(zlib.crc32(f"{name} {self.iteration}".encode()))
                    buffer.copy_(torch.randn(buffer.shape, generator=draw))
        assert self.optimizer.step()[0]
        self.scheduler.step(increment=BATCH)
        self.iteration += 1
        self.consumed += BATCH

    def model_state(self, of_module):
        """The models as a checkpoint names them."""
        if len(self.models) == 1:
            return {"model": of_module(self.model.module)}
        return {f"model{i}": of_module(model.module) for i, model in enumerate(self.models)}

    def state(self, loading, metadata=None):
        metadata = dict(metadata) if metadata is not None else {
            **({"distrib_optim_sharding_type": self.sharding} if self.sharding else {}),
            "singleton_local_shards": False, "chained_optim_avoid_prefix": True}
        content = dict(metadata)
        metadata["dp_cp_group"] = parallel_state.get_data_parallel_group(with_context_parallel=True)
        state = {"args": arguments(self.name, self.dtype, self.tp, self.pp, data_path=[str(self.prefix)],
                                   virtual_pipeline_model_parallel_size=self.vpp,
                                   decoder_first_pipeline_num_layers=self.first,
                                   pipeline_model_parallel_layout=self.layout, rampup_batch_size=self.ramp,
                                   decoupled_lr=self.decoupled,
                                   consumed_train_samples=self.consumed),
                 "checkpoint_version": 3.0, "iteration": self.iteration,
                 **self.model_state(lambda module: module.sharded_state_dict(metadata=metadata))}
        state["optimizer"] = self.optimizer.sharded_state_dict(state, is_loading=loading, metadata=metadata)
        state["opt_param_scheduler"] = self.scheduler.state_dict()
        state["num_floating_point_operations_so_far"] = 0
        return state, content

    def save(self, folder):
        """A folder as Megatron-LM's training writes it."""
        place = pathlib.Path(folder) / f"iter_{self.iteration:07d}"
        if torch.distributed.get_rank() == 0:
            place.mkdir(parents=True)
        torch.distributed.barrier()
        state, content = self.state(False)
        dist_checkpointing.save(state, str(place), content_metadata=content)
        if torch.distributed.get_rank() == 0:
            (pathlib.Path(folder) / "latest_checkpointed_iteration.txt").write_text(str(self.iteration))

    def save_torch(self, folder):
        """The same in the format "torch": a file of each rank, as its checkpointing.py writes them."""
        rank = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
        if self.pp > 1:
            rank += f"_{parallel_state.get_pipeline_model_parallel_rank():03d}"
        place = pathlib.Path(folder) / f"iter_{self.iteration:07d}" / rank
        place.mkdir(parents=True)
        generators = {"random_rng_state": random.getstate(), "np_rng_state": numpy.random.get_state(),
                      "torch_rng_state": torch.get_rng_state(), "cuda_rng_state": torch.get_rng_state(),
                      "rng_tracker_states": {"model-parallel-rng": torch.get_rng_state()}}
        torch.save({"args": self.state(False)[0]["args"], "checkpoint_version": 3.0, "iteration": self.iteration,
                    **self.model_state(lambda module: module.state_dict_for_save_checkpoint()),
                    "num_floating_point_operations_so_far": 0, "optimizer": self.optimizer.state_dict(),
                    "opt_param_scheduler": self.scheduler.state_dict(), "rng_state": [generators]},
                   place / "model_optim_rng.pt")
        if self.sharding:
            self.optimizer.save_parameter_state(str(place / "distrib_optim.pt"))
        (pathlib.Path(folder) / "latest_checkpointed_iteration.txt").write_text(str(self.iteration))

    def load(self, folder):
        folder = pathlib.Path(folder)
        place = str(folder / f"iter_{int((folder / 'latest_checkpointed_iteration.txt').read_text()):07d}")
        metadata = dist_checkpointing.load_content_metadata(place)
        if self.sharding:  # torch's Adam has no state before its first step, which the package does not expect
            for optimizer in self.optimizer.chained_optimizers:
                optimizer._init_optimizer_states_with_dummy_values()
        state, _ = self.state(True, metadata)
        loaded = dist_checkpointing.load(state, place)
        self.model.module.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])
        self.scheduler.load_state_dict(loaded["opt_param_scheduler"])
        self.iteration, self.consumed = loaded["iteration"], loaded["args"].consumed_train_samples
        return loaded


def plain_tensors(folder):
    """Every tensor of the checkpoint in a folder, as the package itself reads them."""
    loaded = dist_checkpointing.load_plain_tensors(str(next(pathlib.Path(folder).glob("iter_*"))))
    return {key: tensor for key, tensor in loaded.items() if torch.is_tensor(tensor)}


def run(world, work, *arguments):
    """Calls work(*arguments) on each of `world` ranks, forked, which can talk to one another; their results."""
    with tempfile.TemporaryDirectory(prefix="megatron-core-") as folder:
        context = torch.multiprocessing.get_context("fork")
        ranks = [context.Process(target=_rank, args=(rank, world, folder, work, arguments)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        results = []
        for rank in range(world):
            with open(f"{folder}/result-{rank}", "rb") as file:
                results.append(pickle.load(file))
        return results


def _rank(rank, world, folder, work, arguments):
    OnCpu().__enter__()
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    with open(f"{folder}/result-{rank}", "wb") as file:
        pickle.dump(work(*arguments), file)
    torch.distributed.destroy_process_group()
