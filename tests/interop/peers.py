"""The libraries that the program is compared with, offline and quiet."""
import importlib
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["HF_HUB_OFFLINE"] = "1"


def peers(*names):
    """The modules of these names, and why a test that needs them skips itself: "" where all are there."""
    try:
        return *(importlib.import_module(name) for name in names), ""
    except ImportError as error:
        packages = " ".join(name.split(".")[0] for name in names)
        return *(None for _ in names), f"{error}: pip install {packages}"
