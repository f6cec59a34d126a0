"""Folders of tiny text encoders and of the connectors, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.tiny.make.tiny_gemma2 import make_tiny_gemma2
from tests.text.tiny_connectors import make_tiny_connectors
from tests.text.tiny_gemma import make_tiny_gemma


@pytest.fixture(scope="session")
def gemma_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny Gemma-3: hidden size 32, 3 layers, window of 16 tokens, every second layer global."""
    folder = tmp_path_factory.mktemp("text") / "gemma3_12b"
    return make_tiny_gemma(folder, seed=3, sliding_window=16, sliding_window_pattern=2)


@pytest.fixture(scope="session")
def connectors_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Connectors that fit `gemma_folder`: width 32, 4 states, 8 registers."""
    return make_tiny_connectors(tmp_path_factory.mktemp("text") / "connectors", seed=4)


@pytest.fixture(scope="session")
def gemma2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny Gemma-2: hidden size 32, 2 layers, the first with a window of 16 tokens."""
    folder = tmp_path_factory.mktemp("text") / "gemma-2-2b-it"
    return make_tiny_gemma2(folder, seed=6, sliding_window=16)
