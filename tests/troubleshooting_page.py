"""The troubleshooting page as data: what it quotes, and whether it covers a message."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
GAP = "…"


@cache
def wordings() -> str:
    """Return every text in the sources; what is filled in at run time is a gap."""
    found = []
    for file in [*(ROOT / "sanawm").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else GAP for p in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


@cache
def quoted() -> list[str]:
    """Return the quotations in the first column of the page's tables."""
    rows = [r for r in PAGE.read_text(encoding="utf-8").splitlines() if r.startswith("| ")]
    cells = [row.split(" | ")[0] for row in rows if not row.startswith(("| message", "| warning"))]
    return [quote for cell in cells for quote in re.findall(r"`([^`]+)`", cell)]


def pieces(quote: str) -> list[str]:
    """Return the words of a quotation between its gaps."""
    return [p.strip() for p in quote.split(GAP) if re.search(r"\w", p)]


def covered(message: str) -> bool:
    """Tell whether a row of the page quotes words of a message."""
    for quote in quoted():
        words = pieces(quote)
        if words and max(map(len, words)) > 4 and all(w in message for w in words):
            return True
    return False
