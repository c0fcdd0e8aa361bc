#!/usr/bin/env python3
"""Takes the place of Megatron-LM's preprocess_data.py in a launch script: the same arguments for this program."""
import run_megatron

run_megatron.run("preprocess_data")
