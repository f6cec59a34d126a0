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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the sums of what tests gave to `record_property`, such as kills and frames kept."""
    sums: dict[str, int] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    sums[name] = sums.get(name, 0) + value
    if sums:
        terminalreporter.section("figures")
        for name, value in sums.items():
            terminalreporter.write_line(f"{name}: {value}")
