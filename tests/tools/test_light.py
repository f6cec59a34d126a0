"""The help of the tools comes without any heavy library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "numpy", "av", "transformers", "matplotlib", "PIL", "diffusers"}


@pytest.mark.parametrize("command", ["inspect", "compare", "doctor"])
def test_help_is_light(command: str, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from sanawm.cli.app import main\n"
        "try:\n"
        f"    main([{command!r}, '--help'])\n"
        "except SystemExit as e:\n"
        f"    print('code', e.code, 'heavy', sorted({HEAVY} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert "code 0 heavy []" in done.stdout, done.stdout + done.stderr
