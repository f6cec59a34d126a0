"""The values of a line as settings: what they become, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sanawm.cli.batch_params import options

from sanawm.batch.asked import Asked, Reader, job_id
from sanawm.errors import UsageError
from sanawm.settings import all_keys

READER = Reader(options(), Path("/data/jobs.jsonl"))


def settings(**values: Any) -> dict[str, Any]:
    """Return the settings that a line gives, by key."""
    asked = READER.asked({k.replace("_", "-"): v for k, v in values.items()}, where="line 1")
    return {key: value for key, (_, value) in asked.flags.items()}


@pytest.mark.parametrize(
    ("name", "value", "key", "expected"),
    [
        ("num-frames", 25, "video.num_frames", 25),
        ("num-frames", "25", "video.num_frames", 25),
        ("num-frames", 25.0, "video.num_frames", 25),
        ("fov-x", 75, "input.fov_x", 75.0),
        ("fov-x", "7.5e1", "input.fov_x", 75.0),
        ("fps", 24, "video.fps", "24"),
        ("fps", "24000/1001", "video.fps", "24000/1001"),
        ("sigmas", [0.9, 0.5, 0], "refiner.sigmas", (0.9, 0.5, 0.0)),
        ("sigmas", "0.9,0.5,0", "refiner.sigmas", (0.9, 0.5, 0.0)),
        ("intrinsics", [48, 48, 48, 32], "input.intrinsics", "48,48,48,32"),
        ("intrinsics", "k.npy", "input.intrinsics", "/data/k.npy"),
        ("no-video", True, "output.video", False),
        ("no-video", "no", "output.video", True),
        ("keep-first-frame", "yes", "video.keep_first_frame", True),
        ("drop-first-frame", True, "video.keep_first_frame", False),
        ("no-hold-last", True, "camera.hold_last", False),
        ("sink-token", "0", "stage1.sink_token", False),
        ("image", "a/b.png", "input.image", "/data/a/b.png"),
        ("image", "/abs.png", "input.image", "/abs.png"),
        ("state", "none", "output.state", "none"),
        ("prompt", "a/b", "input.prompt", "a/b"),
    ],
)
def test_a_value_becomes_what_the_flag_would_set(
    name: str, value: Any, key: str, expected: Any
) -> None:
    for spelling in (name, name.replace("-", "_")):
        flags = READER.asked({spelling: value}, where="line 3").flags
        assert dict(flags) == {key: (f"{name} (line 3)", expected)}
        assert type(flags[key][1]) is type(expected)


def test_every_long_option_of_refine_is_a_key() -> None:
    keys = {option.key for option in options()}
    assert keys <= set(all_keys())
    names = {option.name for option in options()}
    assert {"prompt", "prompt-file", "action", "seed", "save-latents", "report", "crf"} <= names
    assert {"no-resume", "keep-first-frame", "no-sink-token", "no-prompt-store"} <= names
    assert "o" not in names


def test_null_is_not_given() -> None:
    assert settings(seed=None, prompt="x") == {"input.prompt": "x"}


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"promt": "x"}, "did you mean 'prompt'?"),
        ({"video.crf": 3}, "unknown key 'video.crf'"),
        ({"": 3}, "unknown key ''"),
        ({"num-frames": "many"}, "num-frames 'many': expected a whole number"),
        ({"num-frames": 2.5}, "expected a whole number"),
        ({"num-frames": True}, "expected a whole number"),
        ({"fov-x": "wide"}, "expected a number"),
        ({"fov-x": False}, "expected a number"),
        ({"fov-x": 10**400}, "expected a number"),
        ({"no-video": 1}, "expected true or false"),
        ({"no-video": "maybe"}, "expected true or false"),
        ({"prompt": True}, "expected a text"),
        ({"prompt": {"a": 1}}, "expected a text"),
        ({"prompt": []}, "expected a text"),
        ({"prompt": ["a"]}, "expected a text"),
        ({"sigmas": [0.9, None]}, "expected a text"),
        ({"sigmas": "a,b"}, "expected numbers"),
        ({"set": 3}, "expected a text or a list of texts"),
        ({"config": [1]}, "expected a text or a list of texts"),
        ({"config": "~nobody-here/a.toml"}, "no such user"),
        ({"config": "a\0b.toml"}, "NUL"),
        ({"image": "~nobody-here/a.png"}, "no such user"),
        ({"num-frames": 1, "num_frames": 1}, "num-frames and num_frames are one option"),
        ({"drop-first-frame": True, "keep-first-frame": True}, "contradict"),
        ({"output": "x.mp4"}, "output has no place in a job: the id names the output"),
        ({"output_dir": "x"}, "--output-dir names the folder"),
        ({"name": "x"}, "the id names the output"),
        ({"overwrite": True}, "an option of the whole batch"),
        ({"no-resume": True}, "half-done jobs resume by themselves"),
    ],
)
def test_other_values_are_refused(values: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError) as caught:
        READER.asked(values, where="line 1")
    assert word in str(caught.value)


def test_a_line_replaces_the_whole_exclusive_group_of_the_defaults() -> None:
    defaults = READER.asked({"prompt": "x", "camera": "c.npy", "seed": 1}, where="defaults")
    line = READER.asked({"prompt-file": "p.txt", "action": "w-9", "seed": 2}, where="line 1")
    resolved = defaults.under(line).resolve()
    assert resolved.get("input.prompt") is None
    assert resolved.get("input.prompt_file") == "/data/p.txt"
    assert (resolved.get("input.camera"), resolved.get("input.action")) == (None, "w-9")
    assert resolved.get("runtime.seed") == 2


def test_two_of_a_group_in_one_line_are_refused() -> None:
    both = READER.asked({"prompt": "x", "prompt-file": "y"}, where="line 1")
    with pytest.raises(UsageError, match="exclude each other"):
        both.resolve()


def test_configs_and_sets_of_a_line_come_after_those_of_the_batch(tmp_path: Path) -> None:
    (tmp_path / "fast.toml").write_text("[video]\ncrf = 40\nfps = 12\n")
    (tmp_path / "jobs.jsonl").touch()
    reader = Reader(options(), tmp_path / "jobs.jsonl")
    line = reader.asked({"config": "fast.toml", "set": ["video.fps=8"]}, where="line 1")
    resolved = Asked(("tiny",), ("video.fps=30",)).under(line).resolve()
    assert (resolved.get("video.crf"), resolved.get("video.fps")) == (40, 8)
    assert resolved.get("model.refiner") is not None
    assert reader.asked({"config": ["tiny"]}, where="line 1").configs == ("tiny",)


def test_ids_are_checked_as_file_names() -> None:
    assert job_id({"id": "clip 1"}) == "clip 1"
    assert job_id({"id": 17}) == "17"
    for id_ in ("", "..", "a/b", "a\\b", "a\nb", "x" * 300, None, True, 1.5, ["a"]):
        with pytest.raises(UsageError):
            job_id({"id": id_})
    with pytest.raises(UsageError, match="no id"):
        job_id({})
