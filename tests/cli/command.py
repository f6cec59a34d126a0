"""Run the command in this process, or in one of its own, and keep what it said."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from sanawm.cli import app

ROOT = Path(__file__).parents[2]
TINY = ROOT / "configs" / "tiny"


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON object on stdout."""
        return json.loads(self.out)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON lines on stderr."""
        return [json.loads(line) for line in self.err.splitlines()]


def sanawm(*arguments: object) -> Done:
    """Run `sanawm` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app.main([str(a) for a in arguments])
        except SystemExit as e:
            code = e.code
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


def start(*arguments: object, **more: Any) -> subprocess.Popen[str]:
    """Start `sanawm` as a process of its own, with one thread."""
    return subprocess.Popen(
        [sys.executable, "-m", "sanawm", *map(str, arguments)],
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more),
    )


def report_of(path: Path) -> dict[str, Any]:
    """Return the report beside an MP4 or latents file."""
    return json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
