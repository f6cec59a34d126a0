"""Action strings: goldens of upstream and diffusers, the released demo paths, bad strings."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sanawm.camera import parse_actions, roll_out_actions
from sanawm.errors import InputError, UsageError

from .places import CAMERA, DEMO

GOLDEN = json.loads((CAMERA / "actions.json").read_text(encoding="utf-8"))
OPTIONS = ("translation_speed", "rotation_speed_deg", "pitch_limit_deg", "smooth")
REASONS = {
    "empty": "the action string is empty",
    "bad_segment": r"has no frame count, expected KEYS-FRAMES|is empty: two commas",
    "bad_duration": "expected a whole number from 1",
    "unknown_keys": "keys that do not exist",
}


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_roll_out_matches_the_reference(case: dict) -> None:
    expected = np.load(CAMERA / "poses.npz")[case["name"]]
    options = {name: case[name] for name in OPTIONS if name in case}
    poses = roll_out_actions(case["action"], scheme=case["scheme"], **options).poses
    assert poses.shape == (case["frames"], 4, 4)
    assert poses.dtype == np.float32
    np.testing.assert_allclose(poses, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("demo_0", "w-100,dw-60,w-100,aw-60"),
        ("demo_3", "w-70,none-40,dw-35,w-70,aw-35,none-72"),
    ],
)
def test_roll_out_gives_the_released_demo_paths(name: str, action: str) -> None:
    poses = roll_out_actions(action).poses
    np.testing.assert_array_equal(poses, np.load(DEMO / f"{name}_pose.npy"))


@pytest.mark.parametrize("case", GOLDEN["invalid_or_edge"], ids=lambda case: repr(case["action"]))
def test_strings_at_the_edge(case: dict) -> None:
    if case["ok"]:
        assert len(parse_actions(case["action"])) + 1 == case["frames"]
        return
    with pytest.raises(InputError, match=REASONS[case["reason"]]) as caught:
        roll_out_actions(case["action"])
    assert caught.value.fix
    assert caught.value.exit_code == 2


def test_errors_name_the_segment_and_what_to_do() -> None:
    with pytest.raises(InputError) as caught:
        parse_actions("w-24,xd-3,s-2")
    assert str(caught.value) == (
        "action segment 2 of 3: 'xd-3' has keys that do not exist: 'x'; expected letters of "
        "w a s d i j k l, or none\n  fix: separate segments with a comma and remove unknown letters"
    )
    with pytest.raises(InputError, match="use the plain hyphen - instead of –"):
        parse_actions("w–24")
    with pytest.raises(InputError, match="say w-24"):
        parse_actions("3-w")


@pytest.mark.parametrize("count", ["1" * 5000, "1000001"])
def test_absurd_lengths_are_refused_at_once(count: str) -> None:
    with pytest.raises(InputError, match=r"expected a whole number from 1|longer than 1000000"):
        parse_actions(f"w-{count}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "modern"}, "action scheme 'modern' does not exist"),
        ({"translation_speed": -1.0}, "translation speed -1"),
        ({"translation_speed": float("nan")}, "translation speed nan"),
        ({"rotation_speed_deg": 181.0}, "rotation speed 181"),
        ({"pitch_limit_deg": 91.0}, "pitch limit 91 cannot be used: expected 0 to 90"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        roll_out_actions("w-3", **options)


def test_first_segment_of_each_scheme() -> None:
    """D turns in one scheme and strafes in the other; speeds are the defaults of camera.md."""
    unified = roll_out_actions("d-24").poses[-1]
    np.testing.assert_allclose(unified[:3, 3], 0, atol=1e-7)
    assert np.degrees(np.arctan2(unified[0, 2], unified[2, 2])) == pytest.approx(14.4, abs=1e-4)
    legacy = roll_out_actions("d-24", scheme="legacy").poses[-1]
    np.testing.assert_allclose(legacy[:3, 3], (24 * 0.05, 0, 0), atol=1e-6)
    np.testing.assert_allclose(legacy[:3, :3], np.eye(3), atol=1e-7)


segments = st.lists(
    st.tuples(st.text("wasdijkl", max_size=4), st.integers(1, 6)), min_size=1, max_size=6
)


def text_of(parts: list[tuple[str, int]]) -> str:
    return ",".join(f"{keys or 'none'}-{frames}" for keys, frames in parts)


@given(segments)
@settings(max_examples=60, deadline=None)
def test_every_roll_out_is_a_level_rigid_path(parts: list[tuple[str, int]]) -> None:
    trajectory = roll_out_actions(text_of(parts))
    poses = trajectory.poses.astype(np.float64)
    assert len(poses) == sum(frames for _, frames in parts) + 1
    np.testing.assert_array_equal(poses[0], np.eye(4))
    rotations = poses[:, :3, :3]
    gram = rotations @ rotations.transpose(0, 2, 1)
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(3), gram.shape), atol=1e-6)
    assert not poses[:, 1, 3].any()  # the height never changes
    steps = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1)
    assert steps.max() <= 0.025 * np.sqrt(2) + 1e-6


@given(segments, st.integers(0, 5), st.data())
@settings(max_examples=40, deadline=None)
def test_splitting_case_order_and_repeats_change_nothing(
    parts: list[tuple[str, int]], where: int, data: st.DataObject
) -> None:
    plain = roll_out_actions(text_of(parts)).poses
    index = where % len(parts)
    keys, frames = parts[index]
    cut = data.draw(st.integers(0, frames))
    halves = [(keys[::-1].upper() + keys, n) for n in (cut, frames - cut) if n]
    split = [*parts[:index], *halves, *parts[index + 1 :]]
    spaced = text_of(split).replace(",", " ，\t")
    np.testing.assert_array_equal(roll_out_actions(spaced).poses, plain)


@given(segments)
@settings(max_examples=40, deadline=None)
def test_schemes_differ_only_in_letters_speed_and_fading(parts: list[tuple[str, int]]) -> None:
    """Without pitch and fading, A/D and J/L exchanged, both schemes are one motion."""
    level = [(keys.replace("i", "").replace("k", ""), frames) for keys, frames in parts]
    swapped = [(keys.translate(str.maketrans("adjl", "jlad")), n) for keys, n in level]
    speeds = {"translation_speed": 0.1, "rotation_speed_deg": 2.0}
    unified = roll_out_actions(text_of(level), smooth=False, **speeds).poses
    legacy = roll_out_actions(text_of(swapped), scheme="legacy", **speeds).poses
    np.testing.assert_allclose(unified, legacy, atol=2e-5)  # unified divides by length + 1e-6
