"""The instruction that stage 1 puts in front of the prompt: always read from a file.

It asks the language model to expand the prompt; stage 1 was trained with it. Its text is data of
the release (`text_encoder.chi_prompt` of the release YAML: lines that are joined by line feeds) or
of the user (a plain text file), and every character counts, a space at its end too. This module
imports nothing heavy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sanawm.errors import InputError
from sanawm.tensorfile import list_some, short

from .prompt import check_text, plain_line_ends, read_text_file

YAML_SUFFIXES = (".yaml", ".yml")
SECTION, KEY = "text_encoder", "chi_prompt"
_EXPECTED = "expected a list of strings, one a line, or one string"


def read_instruction(path: Path | None) -> str | None:
    """Return the instruction in a release YAML (`.yaml`, `.yml`) or in a text file.

    Of a text file, only what editors add is removed: a byte-order mark, carriage returns before
    line feeds, one line end after the last line. None means that prompts go without instruction:
    no path, or a YAML whose `text_encoder.chi_prompt` is empty.

    Raises `MissingFile`, or `InputError` for a file that is no text or holds no instruction.
    """
    if path is None:
        return None
    text = plain_line_ends(read_text_file(path, what="instruction"))
    if path.suffix.lower() in YAML_SUFFIXES:
        text = _join(_chi_prompt(text, path), path)
        if not text:
            return None
    elif KEY in text:
        raise InputError(
            f"{path}: holds the key {KEY}, so it is a release config, but the suffix "
            f"{path.suffix or '(none)'} says plain text",
            fix="give the YAML file the suffix .yaml",
        )
    else:
        text = text.removesuffix("\n")
    fix = "leave [stage1] instruction unset to run without one"
    check_text(text, where=str(path), what="instruction", fix=fix)
    return text


def _chi_prompt(text: str, path: Path) -> Any:
    """Return the value of `text_encoder.chi_prompt` in YAML."""
    import yaml

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        reason = getattr(e, "problem", None) or short(e)
        raise InputError(f"{path}: not valid YAML ({where}{reason})") from None
    section = data.get(SECTION) if isinstance(data, dict) else None
    if isinstance(section, dict) and KEY in section:
        return section[KEY]
    if isinstance(section, dict):
        found = f"{SECTION} with " + (list_some([str(k) for k in section]) or "no key")
    elif isinstance(data, dict):
        found = list_some([str(k) for k in data]) or "no key"
    else:
        found = "no sections" if data is not None else "an empty file"
    raise InputError(
        f"{path}: no {SECTION}.{KEY}; found {found}",
        fix=f"name a release YAML; {KEY}: [] there stands for no instruction",
    )


def _join(value: Any, path: Path) -> str:
    """Return the lines of a `chi_prompt` as one text; empty when there are none."""
    where = f"{path}: {SECTION}.{KEY}"
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InputError(f"{where} is {_kind(value)}, {_EXPECTED}")
    for number, line in enumerate(value, 1):
        if not isinstance(line, str):
            raise InputError(
                f"{where}: item {number} is {_kind(line)}, expected a string",
                fix="put the line in quotes",
            )
    return "\n".join(value)


def _kind(value: object) -> str:
    names = {dict: "a mapping", list: "a list", bool: "a truth value", int: "a number"}
    return names.get(type(value), type(value).__name__) + f" ({str(value)[:40]})"
