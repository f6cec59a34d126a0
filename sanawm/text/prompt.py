"""The prompt text: read from a file or taken from the command line, and left as it is.

Only what an editor adds by itself is removed: one byte-order mark, carriage returns before line
feeds, outer white space. Letter case, accents (composed or not) and inner spaces stay, because the
smallest change of the text changes the video. This module imports nothing heavy.
"""

from __future__ import annotations

import codecs
import hashlib
import unicodedata
from pathlib import Path

from sanawm.errors import InputError, MissingFile

#: Largest prompt file, bytes. A longer one is another file named by mistake.
MAX_PROMPT_BYTES = 1 << 20
#: Unicode categories without ink: control, format, surrogate, and the three kinds of separators.
_INKLESS_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"})
#: Code points that Unicode files under letters, marks or symbols though they draw nothing.
_INKLESS = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0}
).union(range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))


def read_prompt_file(path: Path) -> str:
    """Return the prompt in a text file: UTF-8, or UTF-16 with a byte-order mark.

    The machine's locale plays no part. Raises `MissingFile` when the file cannot be read and
    `InputError` when it is no text, too large, or holds nothing visible.
    """
    try:
        with path.open("rb") as f:
            raw = f.read(MAX_PROMPT_BYTES + 1)
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such prompt file") from None
    except OSError as e:
        raise MissingFile(f"{path}: the prompt file cannot be read ({e.strerror})") from None
    if len(raw) > MAX_PROMPT_BYTES:
        raise InputError(
            f"{path}: more than {MAX_PROMPT_BYTES} bytes, too long for a prompt",
            fix="name the text file that holds the prompt",
        )
    return clean_prompt(_decode(raw, path), where=str(path))


def _decode(raw: bytes, path: Path) -> str:
    encoding = "utf-8"
    if raw.startswith(codecs.BOM_UTF16_LE):
        encoding = "utf-16-le"
    elif raw.startswith(codecs.BOM_UTF16_BE):
        encoding = "utf-16-be"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as e:
        raise InputError(
            f"{path}: not {encoding.upper()} text (byte 0x{raw[e.start]:02x} at {e.start})",
            fix="save the prompt as UTF-8",
        ) from None
    if "\0" in text:
        raise InputError(
            f"{path}: holds NUL characters, so it is binary or UTF-16 without a byte-order mark",
            fix="save the prompt as UTF-8",
        )
    return text


def clean_prompt(text: str, *, where: str = "--prompt") -> str:
    """Return `text` without one leading byte-order mark, with LF line ends and outer space off.

    Bytes of the command line that the locale could not decode are read as UTF-8. `where` names the
    source in messages. Raises `InputError` when nothing visible remains.
    """
    if any("\udc80" <= c <= "\udcff" for c in text):
        try:
            text = text.encode("utf-8", "surrogateescape").decode("utf-8")
        except UnicodeError:
            raise InputError(f"{where}: the prompt is not UTF-8 text") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").strip()
    check_prompt(text, where=where)
    return text


def check_prompt(text: str, *, where: str = "prompt") -> None:
    """Raise `InputError` when `text` has no visible character or is no Unicode text."""
    if not any(_has_ink(c) for c in text):
        what = "is empty" if not text.strip() else "has no visible character"
        raise InputError(f"{where}: the prompt {what}", fix="describe the scene in words")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise InputError(f"{where}: the prompt holds lone surrogates, which no text has")


def _has_ink(char: str) -> bool:
    return unicodedata.category(char) not in _INKLESS_CATEGORIES and ord(char) not in _INKLESS


def prompt_sha256(text: str) -> str:
    """Return the hex SHA-256 of the exact prompt in UTF-8 (for reports and stores)."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
