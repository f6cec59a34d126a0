"""Shared fixtures. One intra-op thread, so that results do not depend on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of tensors made by the reference implementations."""
    return GOLDEN
