#!/usr/bin/env python3
"""Takes the place of Megatron-LM's pretrain_t5.py in a launch script: the same arguments,
run by `megatron pretrain_t5`."""
import run_megatron

run_megatron.run("pretrain_t5")
