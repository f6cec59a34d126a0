"""Whether `torch.compile` can work here."""

from __future__ import annotations

import os
import shutil

import torch

from sanawm.notes import Notes


def can_compile(device: torch.device, notes: Notes) -> bool:
    """Return whether functions can be compiled for `device`; a line says so when they cannot.

    On a CPU torch needs a C++ compiler at run time (`CXX`, else g++ or clang++).
    """
    if device.type != "cpu":
        return True
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    if any(name and shutil.which(name) for name in names):
        return True
    notes.change("--compile: no C++ compiler was found (CXX, g++, clang++); nothing is compiled")
    return False
