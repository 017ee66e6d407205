"""Python calls of a question, which are most of the time of a small model."""

import os
import sys
from pathlib import Path

import torch

import rdpgraph as rg

PACKAGE, TORCH = (f"{Path(module.__file__).parent}{os.sep}" for module in (rg, torch))
WRAPPERS = f"{TORCH}_dynamo", f"{TORCH}compiler"


def calls_of(ask):
    """The Python calls of a question that was asked before, by file of the package, and of torch.

    Those of torch are together under the name "torch", without what `torch.compile` wraps around
    calls in a process that has used it.
    """
    for _ in range(2):
        ask()
    files = {}

    def count(frame, event, _):
        if event == "call":
            name = frame.f_code.co_filename
            if name.startswith((PACKAGE, TORCH)) and not name.startswith(WRAPPERS):
                name = name.removeprefix(PACKAGE) if name.startswith(PACKAGE) else "torch"
                files[name] = files.get(name, 0) + 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        ask()
    finally:
        sys.setprofile(before)
    return files
