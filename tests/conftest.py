"""Shared fixtures. One intra-op thread, so that results do not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the user's caches and settings out, and the network off; encode a prompt once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANAWM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        for name in ("SANAWM_LOG_FORMAT", "SANAWM_LOG_FILE", "RAY_ADDRESS"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of tensors made by the reference implementations."""
    return GOLDEN


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests gave to `record_property`: sums of numbers, such as kills, and texts."""
    sums: dict[str, int] = {}
    texts: list[str] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    if isinstance(value, str):
                        texts.append(f"{name}: {value}")
                    else:
                        sums[name] = sums.get(name, 0) + value
    if sums or texts:
        terminalreporter.section("figures")
        for line in (*(f"{name}: {value}" for name, value in sums.items()), *texts):
            terminalreporter.write_line(line)
