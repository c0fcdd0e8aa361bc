#!/usr/bin/env python3
"""Takes the place of Megatron-LM's preprocess_data.py in a launch script: the same arguments,
run by `megatron preprocess_data`."""
import run_megatron

run_megatron.run("preprocess_data")
