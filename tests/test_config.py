"""Settings: who wins, what is refused, and what the messages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sanawm.config import preset_names, resolve
from sanawm.errors import InputError, MissingFile, UsageError
from sanawm.expected import expected
from sanawm.settings import all_keys, is_path


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_presets_are_packaged_and_valid() -> None:
    assert {"tiny", "streaming-720p"} <= set(preset_names())
    for name in preset_names():
        assert resolve([name]).get("refiner.block_size") == 3


def test_streaming_720p_holds_every_released_value() -> None:
    s = resolve(["streaming-720p"]).settings
    assert s.model.refiner == "hf://Efficient-Large-Model/SANA-WM_streaming/refiner_diffusers"
    assert s.model.vae == "hf://Efficient-Large-Model/SANA-WM_streaming/ltx2_causal_vae"
    assert s.model.text_encoder == "hf://Efficient-Large-Model/SANA-WM_streaming/gemma3_12b"
    assert (s.refiner.sink_size, s.refiner.block_size, s.refiner.kv_max_frames) == (1, 3, 11)
    assert s.refiner.sigmas == (0.909375, 0.725, 0.421875, 0.0)
    assert s.stage1.denoising_step_list == (1000, 960, 889, 727, 0)
    assert (s.video.fps, s.video.height, s.video.width, s.video.num_frames) == (16, 704, 1280, 241)
    assert (s.text.max_length, s.runtime.seed) == (1024, 42)


def test_order_of_strength(tmp_path: Path) -> None:
    first = write(tmp_path / "a.toml", "[video]\ncrf = 1\nfps = 20\n[runtime]\nseed = 1\n")
    second = write(tmp_path / "b.toml", "[video]\ncrf = 2\n")
    r = resolve(["tiny", first, second], sets=["runtime.seed=3"], flags={"video.fps": ("--fps", 4)})
    assert (r.get("video.crf"), str(r.origin("video.crf"))) == (2, second)
    assert (r.get("runtime.seed"), str(r.origin("runtime.seed"))) == (3, "--set runtime.seed")
    assert (r.get("video.fps"), str(r.origin("video.fps"))) == (4, "--fps")
    assert str(r.origin("video.height")) == "preset tiny"
    assert str(r.origin("text.store")) == "built-in default"
    # Position decides, presets and files alike.
    assert resolve([first, "tiny"]).get("video.fps") == 16


def test_extends_is_weaker_than_the_file_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.toml", 'extends = "tiny"\n[video]\nfps = 12\n')
    r = resolve([path])
    assert (r.get("video.fps"), r.get("video.height")) == (12, 64)
    assert str(r.origin("video.height")) == "preset tiny"


def test_extends_itself_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.toml", 'extends = "b.toml"\n')
    write(tmp_path / "b.toml", 'extends = "a.toml"\n')
    with pytest.raises(InputError, match="extends itself"):
        resolve([str(tmp_path / "a.toml")])


@pytest.mark.parametrize("base", ["9" * 400, "a/" * 3000, r"\u0000"])
def test_extends_what_can_be_no_file(tmp_path: Path, base: str) -> None:
    path = write(tmp_path / "mine.toml", f'extends = "{base}"\n')
    with pytest.raises(InputError, match=r"mine\.toml: extends '.{4,44}': config: the path ") as e:
        resolve([path])
    assert len(e.value.message) < 300 + len(path)


def test_a_link_to_itself_is_no_config(tmp_path: Path) -> None:
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    with pytest.raises(MissingFile, match=r"loop\.toml: cannot be read \(Too many levels"):
        resolve([str(tmp_path / "loop.toml")])


def test_relative_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    text = '[input]\nlatents = "z.npy"\n[model]\nvae = "hf://a/b/c"\nrefiner = "/abs/r"\n'
    r = resolve([write(tmp_path / "deep" / "c.toml", text)])
    assert r.get("input.latents") == str(tmp_path / "deep" / "z.npy")
    assert r.get("model.vae") == "hf://a/b/c"
    assert r.get("model.refiner") == "/abs/r"


def test_a_flag_replaces_the_presets_whole_group() -> None:
    r = resolve(["tiny"], flags={"input.video": ("--video", "clip.mp4")})
    assert r.get("input.latents") is None
    r = resolve(["tiny"], flags={"input.prompt_file": ("--prompt-file", "p.txt")})
    assert r.get("input.prompt") is None
    r = resolve(["tiny"], flags={"input.action": ("--action", "w-24")})
    assert r.get("input.camera") is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"input.latents": ("--latents", "a"), "input.video": ("--video", "b")}, "--video and"),
        ({"input.prompt": ("--prompt", "a"), "input.prompt_embeds": ("--prompt-embeds", "b")},
         "exclude each other"),
        ({"input.camera": ("--camera", "a"), "input.action": ("--action", "b")}, "exclude"),
    ],
)  # fmt: skip
def test_two_flags_of_one_group_are_refused(flags: dict[str, tuple[str, str]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(["tiny"], flags=flags)


def test_two_keys_of_one_group_in_one_file_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", '[input]\nlatents = "a"\nvideo = "b"\n')
    with pytest.raises(UsageError, match=r"input.latents and input.video exclude"):
        resolve([path])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("video.crff=3", "did you mean 'video.crf'"),
        ("vidoe.crf=3", "did you mean 'video.crf'"),
        ("video.crf=99", "--set video.crf=99: expected a whole number from 0 to 51"),
        ("video.crf=true", "--set video.crf=true: expected a whole number from 0 to 51"),
        ("video.num_frames='many'", "--set video.num_frames=many: expected a whole number"),
        ("refiner.sigmas=[0.9,0.5]", "must end in 0"),
        ("refiner.mode=fast", "refiner.mode=fast: expected chunked or single-shot"),
        ("refiner.sigmas=3", ", 0], the preset's"),
        ("video.height=0", "use --set video.height=64, the preset's"),
        ("runtime.offload=3", "use --set runtime.offload=text, the default"),
        ("video.num_frames=1000001", "num_frames=1000001 cannot be used: expected at most 1000000"),
        ("video.crf", "expected section.key=value"),
    ],
)
def test_bad_overrides_say_what_and_where(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(["tiny"], sets=[text])
    assert words in str(caught.value)


@pytest.mark.parametrize("key", all_keys())
def test_every_key_says_what_it_takes(key: str, tmp_path: Path) -> None:
    """In words of our own: what was found and where, what is expected, and what works."""
    section, _, name = key.partition(".")
    path = write(tmp_path / "c.toml", f"[{section}]\n{name} = {{ a = 1 }}\n")
    with pytest.raises(UsageError) as caught:
        resolve([path])
    message, fix = caught.value.message, str(caught.value.fix)
    assert message.startswith(f"{key} = ")
    assert f"({path}): expected {expected(key)}" in message
    assert key in fix
    assert "nput should" not in message + fix
    if fix.endswith(", the default"):
        working = fix.removeprefix("use ").removesuffix(", the default")
        assert resolve([], sets=[working.replace(" = ", "=", 1)]).get(key) == resolve().get(key)


def test_a_rule_of_a_list_is_said_once() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(flags={"refiner.sigmas": ("--sigmas", (0.9, 0.5))})
    assert caught.value.message == "--sigmas: sigmas [0.9, 0.5]: the list must end in 0"
    assert str(caught.value.fix).startswith("use a list such as 0.909375")


def test_bad_files_name_file_and_key(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", "[video]\nfsp = 3\n")
    with pytest.raises(UsageError) as caught:
        resolve([path])
    assert path in str(caught.value)
    assert "video.fps" in str(caught.value)
    with pytest.raises(InputError, match="not valid TOML"):
        resolve([write(tmp_path / "d.toml", "[video\n")])
    with pytest.raises(InputError, match="must be a table"):
        resolve([write(tmp_path / "e.toml", "video = 3\n")])
    with pytest.raises(MissingFile, match="no such file"):
        resolve([str(tmp_path / "nosuch.toml")])
    with pytest.raises(UsageError, match="presets: "):
        resolve(["nosuch"])


def test_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "bom.toml"
    path.write_bytes(b"\xef\xbb\xbf[video]\ncrf = 7\n")
    assert resolve([str(path)]).get("video.crf") == 7


def test_input_values_beat_presets_but_not_the_user(tmp_path: Path) -> None:
    r = resolve(["tiny"]).with_input({"video.fps": 25}, where="video clip.mp4")
    assert (r.get("video.fps"), str(r.origin("video.fps"))) == (25, "video clip.mp4")
    mine = write(tmp_path / "c.toml", "[video]\nfps = 12\n")
    assert resolve(["tiny", mine]).with_input({"video.fps": 25}, where="v").get("video.fps") == 12


def test_the_table_lists_every_key_with_its_origin() -> None:
    table = resolve(["tiny"]).table()
    assert set(table) == set(all_keys())
    assert table["refiner.sigmas"] == {
        "value": [0.07, 0.0],
        "origin": "preset tiny",
    }


def test_path_keys_are_known() -> None:
    assert is_path("input.latents")
    assert is_path("model.vae")
    assert not is_path("input.prompt")
    assert not is_path("video.encoder")


def test_none_takes_a_value_away() -> None:
    settings = resolve(["tiny"], sets=["input.fov_x=none", "input.action=none"])
    assert settings.get("input.fov_x") is None
    assert settings.get("input.action") is None
    assert str(settings.origin("input.fov_x")) == "--set input.fov_x"
    assert resolve(["tiny"], sets=["output.state=none"]).get("output.state") == "none"
    assert resolve(["tiny"], sets=["input.prompt=none"]).get("input.prompt") == "none"
    with pytest.raises(UsageError, match=r"video.height=none: expected a whole number"):
        resolve(["tiny"], sets=["video.height=none"])
