"""The libraries that the program is compared with, offline, quiet and on one thread."""
import importlib
import os
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["HF_HUB_OFFLINE"] = "1"


def peers(*names):
    """The modules of these names, and why a test that needs them skips itself: "" where all are there."""
    if "lm_eval" not in names:  # transformers would load it, for seconds, to generate with an assistant
        sys.modules.setdefault("sklearn", None)
    try:
        modules = [importlib.import_module(name) for name in names]
        if "torch" in names:  # tests run beside one another: a second thread would mostly wait
            sys.modules["torch"].set_num_threads(1)
        return *modules, ""
    except ImportError as error:
        packages = " ".join(name.split(".")[0] for name in names)
        return *(None for _ in names), f"{error}: pip install {packages}"
