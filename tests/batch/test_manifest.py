"""Manifests of the three kinds: what is read, which lines are bad, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanawm.batch.manifest import Line, open_manifest
from sanawm.errors import MissingFile, UsageError

LINES = [Line(2, {"id": "a", "seed": "1"}), Line(4, {"id": "b, c", "prompt": 'say "hi"'})]
CSV = 'id,seed,prompt\na,1,\n\n"b, c",,"say ""hi"""\n'
JSON = '{"defaults": {"fps": 24}}\n{"id": "a", "seed": 1}\n\n{"id": "b"}\n'
TOML = '[defaults]\nfps = 24\n[[job]]\nid = "a"\nseed = 1\n[[job]]\nid = "b"\n'


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(path: Path) -> list[Line]:
    return list(open_manifest(path).lines())


def test_csv(tmp_path: Path) -> None:
    assert lines(write(tmp_path, "m.csv", CSV)) == LINES


def test_csv_as_spreadsheets_write_it(tmp_path: Path) -> None:
    assert lines(write(tmp_path, "m.CSV", "\ufeff" + CSV.replace("\n", "\r\n"))) == LINES


def test_json_lines(tmp_path: Path) -> None:
    manifest = open_manifest(write(tmp_path, "m.jsonl", "\ufeff" + JSON))
    assert manifest.defaults == {"fps": 24}
    assert list(manifest.lines()) == [Line(2, {"id": "a", "seed": 1}), Line(4, {"id": "b"})]


def test_toml(tmp_path: Path) -> None:
    manifest = open_manifest(write(tmp_path, "m.toml", TOML))
    assert manifest.defaults == {"fps": 24}
    assert list(manifest.lines()) == [Line(1, {"id": "a", "seed": 1}), Line(2, {"id": "b"})]


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"{", "not JSON"),
        (b"[1]", "a list"),
        (b'"a"', "a text"),
        (b"null", "null"),
        (b'{"id": "a", "id": "b"}', "'id' is there twice"),
        (b'{"id": "a", "fov-x": NaN}', "NaN is no JSON number"),
        (b'{"id": "\xff"}', "not UTF-8"),
        (b'{"a":' * 100_000, "not JSON"),
        (b'{"id": "a"} {"id": "b"}', "Extra data"),
        (b'{"id": "z", "n": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_bad_line_of_json_does_not_hurt_its_neighbours(
    raw: bytes, word: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "m.jsonl", b'{"id": "x"}\n' + raw + b'\n{"id": "y"}\n')
    before, bad, after = lines(path)
    assert (before.values, after.values) == ({"id": "x"}, {"id": "y"})
    assert bad.error is not None
    assert word in bad.error
    assert (bad.number, bad.values) == (2, {})


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (b"a,1", "2 cells, expected 3"),
        (b"a,1,2,3", "4 cells, expected 3"),
        (b"a,\xff,x", "seed: not UTF-8"),
        (b"a," + b"9" * (1 << 21) + b",x", "field larger"),
    ],
)
def test_a_bad_row_of_csv_does_not_hurt_its_neighbours(
    row: bytes, word: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "m.csv", b"id,seed,prompt\nx,,\n" + row + b"\ny,,\n")
    before, bad, after = lines(path)
    assert (before.values, after.values) == ({"id": "x"}, {"id": "y"})
    assert bad.error is not None
    assert word in bad.error


def test_a_quotation_mark_that_stays_open_is_told(tmp_path: Path) -> None:
    *_, bad = lines(write(tmp_path, "m.csv", 'id,prompt\na,x\nb,"never closed\nc,y\n'))
    assert bad.error is not None
    assert "quotation mark" in bad.error


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("m.json", "[]", "the name ends in '.json'"),
        ("m", "", "the name has no ending, expected .jsonl"),
        ("m.jsonl", '{"a": 1}'.encode("utf-16"), "UTF-16"),
        ("m.jsonl", '{"defaults": 1}\n', "defaults must be a table"),
        ("m.jsonl", '{"defaults": {}, "id": "a"}\n', "holds nothing else"),
        ("m.jsonl", '{"defaults": {"id": "a"}}\n', "defaults hold an id"),
        ("m.csv", "", "names no column id"),
        ("m.csv", "name;prompt\n", "names no column id"),
        ("m.csv", "id,id\n", "column 'id' is there twice"),
        ("m.csv", "id,\n", "a column has no name"),
        ("m.toml", "[", "not valid TOML"),
        ("m.toml", b"\xff\xfe", "UTF-16"),
        ("m.toml", b'a = "\x80"', "not valid TOML in UTF-8"),
        ("m.toml", "[jobs]\n", "unknown table 'jobs'"),
        ("m.toml", "[job]\nid = 1\n", "job is one table"),
        ("m.toml", "defaults = 3\n", "defaults must be a table"),
    ],
)
def test_what_is_no_manifest_is_refused(
    name: str, content: str | bytes, word: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        lines(write(tmp_path, name, content))
    assert word in str(caught.value)


def test_a_manifest_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n.jsonl").mkdir()
    for name, word in (("m.jsonl", "no such file"), ("n.jsonl", "folder"), ("", "folder")):
        with pytest.raises(MissingFile, match=word) as caught:
            open_manifest(tmp_path / name)
        assert caught.value.fix


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


@settings(deadline=None)
@given(raw=st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b and b.strip())))
def test_any_bytes_give_one_line_each(raw: list[bytes], folder: Path) -> None:
    if raw and raw[0][:2] in (b"\xff\xfe", b"\xfe\xff"):
        return
    path = write(folder, "m.jsonl", b'{"id": 0}\n' + b"\n".join(raw))
    assert [line.number for line in lines(path)] == list(range(1, len(raw) + 2))


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)


@settings(deadline=None)
@given(jobs=st.lists(st.dictionaries(st.text().filter(lambda k: k != "defaults"), VALUES)))
def test_json_comes_back_as_it_was_written(jobs: list[dict[str, Any]], folder: Path) -> None:
    text = "\n".join(json.dumps(job, allow_nan=False).replace("\n", " ") for job in jobs)
    assert [line.values for line in lines(write(folder, "n.jsonl", text))] == jobs
