"""Trains and runs GPTs, BERTs and T5s: the program megatron, called from Python.

    import megatron_cpp
    run = megatron_cpp.train("gpt_tiny", "runs/mine", data_path="data/corpus_text_document", tokenizer="tok",
                             train_iters=20)
    print(megatron_cpp.generate(run, "The ", max_new_tokens=12))
    weights = megatron_cpp.load_weights(run)
"""
from ._jobs import detokenize, generate, metrics, tokenize, train
from ._program import MegatronError, program, recipes, run, shims
from ._weights import load_weights

__all__ = ["MegatronError", "detokenize", "generate", "load_weights", "metrics", "program", "recipes", "run", "shims",
           "tokenize", "train"]
