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
    return clean_prompt(read_text_file(path, what="prompt"), where=str(path))


def read_text_file(path: Path, *, what: str) -> str:
    """Return the text of a file as it is, byte-order mark included; `what` it is, for messages.

    Raises `MissingFile` when it cannot be read and `InputError` when it is too large or no text.
    """
    try:
        with path.open("rb") as f:
            raw = f.read(MAX_PROMPT_BYTES + 1)
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such {what} file") from None
    except OSError as e:
        raise MissingFile(f"{path}: the {what} file cannot be read ({e.strerror})") from None
    if len(raw) > MAX_PROMPT_BYTES:
        raise InputError(
            f"{path}: more than {MAX_PROMPT_BYTES} bytes, too long for the {what}",
            fix=f"name the text file that holds the {what}",
        )
    encoding = "utf-8"
    if raw.startswith(codecs.BOM_UTF16_LE):
        encoding = "utf-16-le"
    elif raw.startswith(codecs.BOM_UTF16_BE):
        encoding = "utf-16-be"
    fix = f"save the {what} as UTF-8"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as e:
        message = f"not {encoding.upper()} text (byte 0x{raw[e.start]:02x} at {e.start})"
        raise InputError(f"{path}: {message}", fix=fix) from None
    if "\0" in text:
        raise InputError(
            f"{path}: holds NUL characters, so it is binary or UTF-16 without a byte-order mark",
            fix=fix,
        )
    return text


def plain_line_ends(text: str) -> str:
    """Return `text` without one leading byte-order mark and with LF line ends."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


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
    text = plain_line_ends(text).strip()
    check_prompt(text, where=where)
    return text


def check_prompt(text: str, *, where: str = "prompt") -> None:
    """Raise `InputError` when `text` has no visible character or is no Unicode text."""
    check_text(text, where=where, what="prompt", fix="describe the scene in words")


def check_text(text: str, *, where: str, what: str, fix: str) -> None:
    """Raise `InputError` when `text` shows nothing or is no Unicode text; messages say `what`."""
    if not any(_has_ink(c) for c in text):
        how = "is empty" if not text.strip() else "has no visible character"
        raise InputError(f"{where}: the {what} {how}", fix=fix)
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise InputError(f"{where}: the {what} holds lone surrogates, which no text has")


def _has_ink(char: str) -> bool:
    return unicodedata.category(char) not in _INKLESS_CATEGORIES and ord(char) not in _INKLESS


def prompt_sha256(text: str) -> str:
    """Return the hex SHA-256 of the exact prompt in UTF-8 (for reports and stores)."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
