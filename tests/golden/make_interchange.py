#!/usr/bin/env python3
"""Writes tiny checkpoints of format "torch" with the real megatron-core 0.16.1 and torch.save, and what they hold.

    pip install torch numpy safetensors megatron-core==0.16.1 && python make_interchange.py OUT

OUT/llama: tensor parallel 2, pipeline parallel 2, two parts a rank; OUT/gpt2: 2 x 2 under the names of Megatron-LM
before Megatron-Core, `release`. The package expects a GPU; here device="cuda" means "cpu". Every weight is set from the
global tensors of expected.safetensors by the places that the package's own sharded_state_dict gives.
"""
import argparse
import contextlib
import logging
import os
import pathlib
import random
import signal
import sys
import warnings
import zlib

os.environ["TORCHDYNAMO_DISABLE"] = "1"
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy  # noqa: E402
import torch  # noqa: E402
import torch.multiprocessing  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

torch.cuda.current_device = lambda: "cpu"
torch.Tensor.cuda = lambda self, *positional, **named: self
torch.set_num_threads(1)

TP, PP = 2, 2
COMMON = dict(hidden_size=8, num_attention_heads=4, ffn_hidden_size=12, add_bias_linear=True, normalization="LayerNorm")
MODELS = {
    "gpt2": dict(layers=2, parts=1, position="learned_absolute", untied=False, config=COMMON, vocab=20, padded=24),
    "llama": dict(layers=4, parts=2, position="rope", untied=True, vocab=24, padded=24,
                  config=dict(COMMON, num_query_groups=2, kv_channels=4, gated_linear_unit=True, add_bias_linear=False,
                              normalization="RMSNorm", activation_func=torch.nn.functional.silu)),
}
SEQUENCE = 16


class OnCpu(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, positional=(), named=None):
        named = dict(named or {})
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        return func(*positional, **named)


class NoTracker:
    def fork(self, *positional, **named):
        return contextlib.nullcontext()

    def is_initialized(self):
        return True


def full_tensor(key, shape):
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return torch.randn(shape, generator=generator)


def fill(model):
    """Sets the model's weights to their parts of the full tensors; returns those."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
    state = model.sharded_state_dict(metadata={"non_homogeneous_layers": True})
    apply_factories(state)
    expected, waiting = {}, list(state.values())
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, (list, tuple)):
            waiting.extend(part)
        elif isinstance(part, ShardedTensor):
            whole = full_tensor(part.key, part.global_shape)
            place = tuple(slice(o, o + n) for o, n in zip(part.global_offset, part.local_shape))
            with torch.no_grad():
                part.data.copy_(whole[place])
            expected[part.key] = whole
    return expected


def arguments(spec):
    from megatron.core.enums import ModelType
    from megatron.core.transformer.enums import AttnBackend
    c = spec["config"]
    rope = spec["position"] == "rope"
    return argparse.Namespace(
        num_layers=spec["layers"], hidden_size=c["hidden_size"], num_attention_heads=c["num_attention_heads"],
        ffn_hidden_size=c["ffn_hidden_size"], max_position_embeddings=SEQUENCE, seq_length=SEQUENCE,
        padded_vocab_size=spec["padded"], vocab_size=spec["vocab"], make_vocab_size_divisible_by=4,
        group_query_attention=rope, num_query_groups=c.get("num_query_groups", 1), kv_channels=c.get("kv_channels", 2),
        swiglu=rope, squared_relu=False, openai_gelu=False, bias_gelu_fusion=True, normalization=c["normalization"],
        norm_epsilon=1e-6 if rope else 1e-5, add_bias_linear=c["add_bias_linear"], add_qkv_bias=False,
        untie_embeddings_and_output_weights=spec["untied"], position_embedding_type=spec["position"],
        rotary_base=50000 if rope else 10000, rotary_percent=1.0, rotary_interleaved=False, use_rope_scaling=False,
        num_experts=None, spec=None, params_dtype=torch.float32, hidden_dropout=0.0, attention_dropout=0.0,
        init_method_std=0.02, tensor_model_parallel_size=TP, pipeline_model_parallel_size=PP,
        exit_signal=signal.SIGTERM, model_type=ModelType.encoder_or_decoder, attention_backend=AttnBackend.auto,
        data_path=["a_text_document"], tensorboard_dir=None, adam_beta2=0.95, rank=0)


def random_states():
    random.seed(1)
    numpy.random.seed(1)
    return [{"random_rng_state": random.getstate(), "np_rng_state": numpy.random.get_state(),
             "torch_rng_state": torch.arange(8, dtype=torch.uint8), "cuda_rng_state": torch.arange(4, dtype=torch.uint8),
             "rng_tracker_states": {}}]


def old_names(state):
    """The nested dictionaries of Megatron-LM before Megatron-Core."""
    model = {"language_model": {"embedding": {}, "encoder": {}}}
    in_layer = {"self_attention.linear_qkv": "self_attention.query_key_value", "mlp.linear_fc1": "mlp.dense_h_to_4h",
                "self_attention.linear_proj": "self_attention.dense", "mlp.linear_fc2": "mlp.dense_4h_to_h",
                "pre_mlp_layernorm": "post_attention_layernorm"}
    for name, tensor in state.items():
        if tensor is None or not torch.is_tensor(tensor):
            continue
        if name.startswith("embedding."):
            _, table, part = name.split(".")
            model["language_model"]["embedding"][table] = {part: tensor}
        elif name.startswith("decoder."):
            for ours, theirs in in_layer.items():
                name = name.replace(ours, theirs)
            model["language_model"]["encoder"][name[len("decoder."):]] = tensor
        else:
            model["word_embeddings_for_head"] = {"weight": tensor}
    return model


def run(rank, name, port, out):
    OnCpu().__enter__()
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=TP * PP)
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    import megatron.core.tensor_parallel.layers
    import megatron.core.tensor_parallel.random
    for module in (tensor_parallel, tensor_parallel.layers, tensor_parallel.random):
        module.get_cuda_rng_tracker = lambda *positional, **named: NoTracker()
    spec = MODELS[name]
    parallel_state.initialize_model_parallel(TP, PP, spec["parts"] if spec["parts"] > 1 else None)
    config = TransformerConfig(
        num_layers=spec["layers"], use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0,
        params_dtype=torch.float32, pipeline_dtype=torch.float32, tensor_model_parallel_size=TP,
        pipeline_model_parallel_size=PP, gradient_accumulation_fusion=False, bias_dropout_fusion=False,
        virtual_pipeline_model_parallel_size=spec["parts"] if spec["parts"] > 1 else None, persist_layer_norm=False,
        apply_rope_fusion=False, masked_softmax_fusion=False, **spec["config"])
    tp, pp = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank()
    content = {"args": arguments(spec), "checkpoint_version": 3.0, "iteration": 7, "rng_state": random_states()}
    expected = {}
    for part in range(spec["parts"]):
        model = GPTModel(
            config, get_gpt_layer_local_spec(normalization=config.normalization), vocab_size=spec["padded"],
            max_sequence_length=SEQUENCE, position_embedding_type=spec["position"], rotary_base=50000,
            share_embeddings_and_output_weights=not spec["untied"], pre_process=pp == 0 and part == 0,
            post_process=pp == PP - 1 and part == spec["parts"] - 1, vp_stage=part if spec["parts"] > 1 else None)
        expected.update(fill(model))
        state = model.state_dict_for_save_checkpoint()
        if not spec["untied"] and "output_layer.weight" in state:  # a copy of the embedding, elsewhere
            whole = full_tensor("embedding.word_embeddings.weight", (spec["padded"], 8))
            state["output_layer.weight"] = whole.chunk(TP)[tp].clone()
        key = f"model{part}" if spec["parts"] > 1 else "model"
        content[key] = old_names(state) if name == "gpt2" else state
    iteration = "release" if name == "gpt2" else "iter_0000007"
    folder = out / name / iteration / f"mp_rank_{tp:02d}_{pp:03d}"
    folder.mkdir(parents=True)
    torch.save(content, folder / "model_optim_rng.pt")
    torch.save(expected, out / f"{name}-{rank}.pt")
    torch.distributed.barrier()
    if rank == 0:
        whole = {}
        for i in range(TP * PP):
            whole.update(torch.load(out / f"{name}-{i}.pt", weights_only=True))
            (out / f"{name}-{i}.pt").unlink()
        for key in [k for k in whole if "word_embeddings" in k or k.startswith("output_layer")]:
            whole[key] = whole[key][:spec["vocab"]].contiguous()
        modules = {"self_attention.linear_qkv.layer_norm_": "input_layernorm.",
                   "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm."}  # its names are those of the fused layers
        for fused, own in modules.items():
            whole = {key.replace(fused, own): tensor for key, tensor in whole.items()}
        save_file(whole, out / name / "expected.safetensors")
        (out / name / "latest_checkpointed_iteration.txt").write_text("release" if name == "gpt2" else "7")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    for number, model_name in enumerate(MODELS):
        torch.multiprocessing.spawn(run, (model_name, 29611 + number, target), nprocs=TP * PP)
