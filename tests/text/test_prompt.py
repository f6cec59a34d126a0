"""Reading the prompt: encodings, line ends, what is kept, what is refused."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanawm.errors import InputError, MissingFile
from sanawm.text.prompt import (
    MAX_PROMPT_BYTES,
    check_prompt,
    clean_prompt,
    prompt_sha256,
    read_prompt_file,
)

TEXT = "A red tower 🏰 on green ground.\nÉvening  light, e\u0301cru."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "p.txt"


@pytest.mark.parametrize(
    "raw",
    [
        TEXT.encode(),
        TEXT.encode("utf-8-sig"),
        TEXT.replace("\n", "\r\n").encode(),
        ("\ufeff" + TEXT.replace("\n", "\r\n")).encode() + b"\r\n",
        b" \t\r\n" + TEXT.encode() + b"\n\n",
        TEXT.encode("utf-16"),
        b"\xff\xfe" + TEXT.encode("utf-16-le"),
        b"\xfe\xff" + TEXT.replace("\n", "\r\n").encode("utf-16-be"),
    ],
    ids=["plain", "bom", "crlf", "bom-crlf", "outer-space", "utf16", "utf16-le", "utf16-be"],
)
def test_encodings_and_line_ends_give_one_prompt(file: Path, raw: bytes) -> None:
    file.write_bytes(raw)
    assert read_prompt_file(file) == TEXT


def test_nothing_else_is_changed(file: Path) -> None:
    kept = "A  RED\ttower\n\ncafe\u0301 \u00a0ﬁn“quoted” \ufeffinside — “…”\rcarriage"
    file.write_bytes(kept.encode())
    assert read_prompt_file(file) == kept


def test_one_full_stop_changes_the_hash(file: Path) -> None:
    hashes = []
    for text in ("a red tower", "a red tower."):
        file.write_text(text, encoding="utf-8")
        hashes.append(prompt_sha256(read_prompt_file(file)))
    assert hashes[0] == hashlib.sha256(b"a red tower").hexdigest()
    assert hashes[0] != hashes[1]
    assert prompt_sha256("e\u0301") != prompt_sha256("\u00e9")


@pytest.mark.parametrize(
    "text",
    ["", " \n\t ", "\ufeff", "\ufeff \r\n", "\u200b", "\u200b\u2060\u00ad", "\u3000", "\u3164",
     "\u2800\u2800", "\ufe0f", "\u202e", "\x1b\x07"],
)  # fmt: skip
def test_empty_and_invisible_prompts_are_refused(file: Path, text: str) -> None:
    file.write_bytes(text.encode())
    with pytest.raises(InputError, match=r"is empty|has no visible character") as e:
        read_prompt_file(file)
    assert str(file) in str(e.value)
    assert e.value.exit_code == 2
    with pytest.raises(InputError):
        clean_prompt(text)


@pytest.mark.parametrize("text", [".", "🏰", "塔", "é", "a\u200bb", "\U0001fae8"])
def test_anything_visible_is_a_prompt(text: str) -> None:
    assert clean_prompt(text) == text


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("Türme".encode("latin-1"), r"not UTF-8 text \(byte 0xfc at 1\)"),
        ("一座红塔".encode("gbk"), "not UTF-8 text"),
        (b"\xff\xfeabc", "not UTF-16-LE text"),
        ("a red tower".encode("utf-16-le"), "NUL characters"),
        ("a red tower".encode("utf-32"), "NUL characters"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not UTF-8 text"),
        (b"x" * (MAX_PROMPT_BYTES + 1), "too long for the prompt"),
    ],
    ids=["latin1", "gbk", "odd-utf16", "utf16-no-bom", "utf32", "png", "huge"],
)
def test_other_files_are_refused(file: Path, raw: bytes, message: str) -> None:
    file.write_bytes(raw)
    with pytest.raises(InputError, match=message) as e:
        read_prompt_file(file)
    assert str(e.value).startswith(f"{file}: ")
    assert e.value.exit_code == 2


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no such prompt file") as e:
        read_prompt_file(tmp_path / "nowhere.txt")
    assert e.value.exit_code == 3
    with pytest.raises(MissingFile, match="cannot be read"):
        read_prompt_file(tmp_path)


def test_undecoded_arguments_are_read_as_utf8() -> None:
    """Python under a C locale hands over bytes as lone surrogates."""
    assert clean_prompt(TEXT.encode().decode("ascii", "surrogateescape")) == TEXT
    with pytest.raises(InputError, match="--prompt: the prompt is not UTF-8"):
        clean_prompt("T\udcfcrme")
    with pytest.raises(InputError, match="lone surrogates"):
        check_prompt("a\ud800")


@given(st.text(max_size=40))
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    try:
        once = clean_prompt(text)
    except InputError:
        return
    assert clean_prompt(once) == once.removeprefix("\ufeff").strip()
    assert once == once.strip()
    assert "\r\n" not in once


SCRIPT = """
import sys
from pathlib import Path
from sanawm.text.prompt import clean_prompt, prompt_sha256, read_prompt_file
print(prompt_sha256(read_prompt_file(Path(sys.argv[1]))))
print(prompt_sha256(clean_prompt(sys.argv[2])))
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
        {"LC_ALL": "POSIX"},
        {"LC_ALL": "C.UTF-8"},
    ],
    ids=["c-ascii", "c", "posix", "utf8"],
)
def test_the_locale_plays_no_part(file: Path, locale: dict[str, str]) -> None:
    file.write_bytes(TEXT.encode())
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file), TEXT],
        env=environment | locale,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [hashlib.sha256(TEXT.encode()).hexdigest()] * 2
