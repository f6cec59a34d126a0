"""The instruction of stage 1: release YAML files, text files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sanawm.errors import InputError, MissingFile
from sanawm.text.instruction import read_instruction
from tests.conftest import GOLDEN

RELEASE = ("sana_wm_streaming_1600m_720p.yaml", "sana_wm_1600m_720p.yaml")
LINE = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=20)


def release(name: str) -> Path:
    return GOLDEN / "stage1" / "configs" / name


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("name", RELEASE)
def test_release_files(name: str) -> None:
    """Eight lines of the YAML, taken apart by hand: quoted with ' and without escapes in them."""
    text = read_instruction(release(name))
    assert text is not None
    raw = release(name).read_text(encoding="utf-8").splitlines()
    start = raw.index("  chi_prompt:") + 1
    quoted = [line.removeprefix("    - '").removesuffix("'") for line in raw[start : start + 8]]
    assert raw[start + 8] == "scheduler:"
    assert text.split("\n") == quoted
    assert text.endswith(": ")
    assert text == read_instruction(release(RELEASE[0]))


@pytest.mark.oracle
def test_release_text_is_that_of_diffusers() -> None:
    from diffusers.pipelines.sana_wm.pipeline_sana_wm import DEFAULT_CHI_PROMPT

    assert read_instruction(release(RELEASE[0])) == "\n".join(DEFAULT_CHI_PROMPT)


def test_the_code_does_not_hold_the_text() -> None:
    text = read_instruction(release(RELEASE[0]))
    assert text is not None
    folder = Path(__file__).parents[2] / "sanawm"
    code = "".join(file.read_text(encoding="utf-8") for file in folder.rglob("*.py"))
    assert not [line for line in text.split("\n") if len(line) > 20 and line in code]


@given(lines=st.lists(LINE, min_size=1, max_size=4).filter(lambda lines: "x" in "".join(lines)))
@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much], deadline=None)
def test_any_list_of_lines(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("i")
    data = yaml.safe_dump({"text_encoder": {"chi_prompt": lines}}, allow_unicode=True)
    assert read_instruction(write(folder, "a.yml", data)) == "\n".join(lines)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("'one string '", "one string "),
        ('"with\\ntwo lines"', "with\ntwo lines"),
        ("|\n    kept\n    as it is\n", "kept\nas it is\n"),
        ("[a, '', ' b ']", "a\n\n b "),
        ("[]", None),
        ("''", None),
        ("", None),
        ("['']", None),
    ],
)
def test_values(tmp_path: Path, value: str, expected: str | None) -> None:
    path = write(tmp_path, "a.YAML", f"text_encoder:\n  chi_prompt: {value}\n")
    assert read_instruction(path) == expected


def test_no_file_is_no_instruction() -> None:
    assert read_instruction(None) is None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("Describe it.\nUser: ", "Describe it.\nUser: "),
        ("Describe it.\nUser: \n", "Describe it.\nUser: "),
        ("\ufeffDescribe it.\r\nUser: \r\n", "Describe it.\nUser: "),
        ("  Describe it.\n\n", "  Describe it.\n"),
    ],
)
def test_text_files_lose_only_what_editors_add(tmp_path: Path, raw: str, expected: str) -> None:
    assert read_instruction(write(tmp_path, "i.txt", raw)) == expected
    assert read_instruction(write(tmp_path, "instruction", raw)) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "model: {}\nvae: {}\n",
            r"a\.yaml: no text_encoder\.chi_prompt; found model, vae\n.*: \[\]",
        ),
        ("text_encoder: {y_norm: true}", "no text_encoder.chi_prompt; found text_encoder with y_n"),
        ("text_encoder: {}", "found text_encoder with no key"),
        ("text_encoder: gemma", "found text_encoder"),
        ("", "found an empty file"),
        ("- a\n- b\n", "found no sections"),
        ("text_encoder: {chi_prompt: 3}", r"chi_prompt is a number \(3\), expected a list of str"),
        ("text_encoder: {chi_prompt: {a: b}}", r"chi_prompt is a mapping .*or one string"),
        (
            "text_encoder:\n  chi_prompt:\n    - fine\n    - User Prompt: it\n",
            r"item 2 is a mapping \(\{'User Prompt': 'it'\}\), expected a string\n.*in quotes",
        ),
        ("text_encoder: {chi_prompt: [a, 2026-08-01]}", "item 2 is date"),
        ("text_encoder: {chi_prompt: ['  ', '']}", "the instruction is empty"),
        ("text_encoder: {chi_prompt: ['\u200b']}", "the instruction has no visible character"),
        ('text_encoder: {chi_prompt: ["a\\uD800"]}', "lone surrogates"),
        ("text_encoder:\n  chi_prompt: [a\n", r"a\.yaml: not valid YAML \(line 3: "),
        ("text_encoder: {chi_prompt: !!python/object:os.system a}", "not valid YAML .*could not"),
        ("a: 2026-99-99", "not valid YAML .*month"),
        ("[" * 800, "not valid YAML .*recursion"),
        ("a: \x01", "not valid YAML .*unacceptable character"),
    ],
)
def test_other_yaml_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path, "a.yaml", content)
    with pytest.raises(InputError, match=message) as e:
        read_instruction(path)
    assert e.value.exit_code == 2
    assert str(e.value).startswith(str(path))
    assert len(str(e.value).splitlines()) <= 3


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the instruction is empty\n.*unset to run without one"),
        (b" \n \n", "the instruction is empty"),
        (b"caf\xe9", r"not UTF-8 text \(byte 0xe9 at 3\)\n.*save the instruction as UTF-8"),
        (b"a\0b", "NUL characters"),
        (b"x" * (1 << 20) + b"y", "too long for the instruction"),
        (b"text_encoder:\n  chi_prompt: [a]\n", r"release config, but the suffix \.txt says plain"),
    ],
    ids=["empty", "blank", "latin1", "nul", "huge", "yaml"],
)
def test_other_text_is_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "i.txt"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=message) as e:
        read_instruction(path)
    assert str(e.value).startswith(str(path))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"nowhere\.yaml: no such instruction file") as e:
        read_instruction(tmp_path / "nowhere.yaml")
    assert e.value.exit_code == 3
    with pytest.raises(MissingFile, match="the instruction file cannot be read"):
        read_instruction(tmp_path)
