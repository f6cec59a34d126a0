"""Image and camera to video: stage 1 joined to the refiner, through the tiny preset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from sanawm.camera.actions import roll_out_actions
from sanawm.camera.framing import ImageSize
from sanawm.camera.intrinsics import intrinsics_of_fov
from sanawm.camera.rays import CameraRays, camera_rays
from sanawm.config import resolve
from sanawm.errors import UsageError
from sanawm.job import JobResult, RefineJob
from sanawm.notes import Notes
from sanawm.pipeline import Pipeline
from sanawm.plan import Plan, make_plan
from sanawm.shapes import LatentShape, VAERatios
from sanawm.sources import regroup
from sanawm.text.embeddings import Stage1Caption

SIZE = ImageSize(48, 32)
RATIOS = VAERatios(4, 8)


def rays_of(action: str, frames: int) -> CameraRays:
    poses = roll_out_actions(action).poses[:frames]
    lens = np.repeat(intrinsics_of_fov(90.0, SIZE), frames, axis=0)
    return camera_rays(poses, lens, size=SIZE, ratios=RATIOS)


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return Pipeline.from_config("tiny")


@pytest.fixture(scope="module")
def caption(pipe: Pipeline) -> Stage1Caption:
    return pipe.encode_caption("a red tower")


@pytest.fixture(scope="module")
def first(pipe: Pipeline) -> Tensor:
    picture = np.random.default_rng(0).integers(
        0, 255, (SIZE.height, SIZE.width, 3), dtype=np.uint8
    )
    return pipe.encode_picture(picture)


def clip(pipe: Pipeline, first: Tensor, caption: Stage1Caption, action: str) -> Tensor:
    shape = LatentShape(1, 16, 7, 4, 6)
    return torch.cat(list(pipe.generate(first, caption, rays_of(action, 25), shape=shape)), dim=2)


def plan_of(tmp_path: Path, *sets: str, name: str = "out", frames: int = 25) -> Plan:
    flags = {
        "output.output": ("-o", str(tmp_path / f"{name}.mp4")),
        "output.save_latents": ("--save-latents", str(tmp_path / f"{name}.safetensors")),
        "video.num_frames": ("--num-frames", frames),
    }
    sets = (f"video.height={SIZE.height}", f"video.width={SIZE.width}", *sets)
    return make_plan(resolve(["tiny"], sets=sets, flags=flags), notes=Notes(), download=False)


def run(plan: Plan) -> JobResult:
    return RefineJob(plan, notes=Notes(), command=["test"]).run()


def test_only_the_camera_changes_and_the_latents_do(
    pipe: Pipeline, first: Tensor, caption: Stage1Caption
) -> None:
    ahead = clip(pipe, first, caption, "w-24")
    again = clip(pipe, first, caption, "w-24")
    turned = clip(pipe, first, caption, "d-24")
    assert torch.equal(ahead, again)
    assert torch.equal(ahead[:, :, 0], turned[:, :, 0])  # the image stays what it is
    assert (ahead[:, :, 1:] - turned[:, :, 1:]).abs().max() > 1e-3


def test_only_the_camera_changes_and_the_pixels_do(tmp_path: Path) -> None:
    """Whole runs, decoded from their files: the same walk, ahead and turning."""
    films = {}
    for action in ("w-24", "dw-24"):
        run(plan_of(tmp_path, f"input.action={action}", name=action))
        films[action] = frames_of(tmp_path / f"{action}.mp4")
    ahead, turned = (np.stack([np.frombuffer(f, np.uint8) for f in x]) for x in films.values())
    apart = np.abs(ahead.astype(float) - turned).mean(1)
    assert apart[-1] > 4  # levels of 255
    assert apart[-1] > 2 * apart[0]  # both begin with the same picture


def test_without_camera_projections_the_camera_is_not_seen(
    first: Tensor, caption: Stage1Caption
) -> None:
    blind = Pipeline.from_config("tiny")
    zeroed = 0
    for name, parameter in blind.stage1.named_parameters():
        if ("cam" in name and "out" in name) or ("plucker" in name and "proj" in name):
            parameter.data.zero_()
            zeroed += 1
    assert zeroed > 0
    ahead = clip(blind, first, caption, "w-24")
    turned = clip(blind, first, caption, "d-24")
    assert torch.equal(ahead, turned)


def test_the_first_latent_is_the_encoded_image_for_every_length(
    pipe: Pipeline, first: Tensor, caption: Stage1Caption
) -> None:
    for frames in (13, 25):
        shape = LatentShape(1, 16, RATIOS.latent_frames_of(frames), 4, 6)
        made = pipe.generate(first, caption, rays_of("w-80", frames), shape=shape)
        assert torch.equal(next(made)[:, :, :1], first)


def test_overlap_equals_sequential_bit_for_bit(tmp_path: Path) -> None:
    reports = {}
    for schedule in ("sequential", "overlap"):
        plan = plan_of(tmp_path, f"runtime.schedule={schedule}", name=schedule, frames=37)
        reports[schedule] = run(plan).data
    assert torch.equal(*(latents_of(tmp_path / f"{n}.safetensors") for n in reports))
    assert frames_of(tmp_path / "sequential.mp4") == frames_of(tmp_path / "overlap.mp4")
    assert reports["overlap"]["schedule"] == "overlap"


def latents_of(path: Path) -> Tensor:
    return load_file(path)["latents"]


def frames_of(path: Path) -> list[bytes]:
    import av

    with av.open(str(path)) as container:
        return [f.to_ndarray(format="rgb24").tobytes() for f in container.decode(video=0)]


@pytest.mark.parametrize("schedule", ["sequential", "overlap"])
def test_first_chunk_is_in_the_file_before_stage1_ends(tmp_path: Path, schedule: str) -> None:
    report = run(plan_of(tmp_path, f"runtime.schedule={schedule}", frames=97)).data
    written = [s for s in report["timeline"] if s["stage"] == "write"]
    made = [s for s in report["timeline"] if s["stage"] == "stage1"]
    assert len(written) == len(report["blocks"]) == 8
    assert written[0]["stop"] < made[-1]["stop"]
    assert report["first_chunk_seconds"] < report["total_seconds"]
    assert {"stage1", "refine", "decode"} <= set(report["memory"]["per_stage"])


def test_offload_all_changes_nothing_but_the_schedule(tmp_path: Path) -> None:
    run(plan_of(tmp_path, name="plain"))
    plan = plan_of(tmp_path, "runtime.offload=all", "runtime.schedule=overlap", name="moved")
    report = run(plan).data
    assert report["schedule"] == "sequential"
    assert any("one model on the device at a time" in c for c in report["changes"])
    assert torch.equal(*(latents_of(tmp_path / f"{n}.safetensors") for n in ("plain", "moved")))


def test_reference_noise_is_one_draw_and_chunk_noise_is_a_prefix(
    pipe: Pipeline, first: Tensor, caption: Stage1Caption
) -> None:
    def clip_of(setting: str, frames: int) -> Tensor:
        p = Pipeline.from_config("tiny", sets=[f"stage1.noise={setting}"])
        p.__dict__["stage1"] = pipe.stage1
        shape = LatentShape(1, 16, RATIOS.latent_frames_of(frames), 4, 6)
        made = p.generate(first, caption, rays_of("w-80", frames), shape=shape)
        return torch.cat(list(made), dim=2)

    short, long = clip_of("chunk", 25), clip_of("chunk", 49)
    assert torch.equal(short, long[:, :, : short.shape[2]])
    assert not torch.equal(clip_of("reference", 25), short)


def test_saved_embeddings_serve_both_stages(tmp_path: Path) -> None:
    embeds = tmp_path / "p.safetensors"
    flags = {"output.save_prompt_embeds": ("--save-prompt-embeds", str(embeds))}
    base = {"output.output": ("-o", str(tmp_path / "a.mp4")), "video.num_frames": ("-n", 13)}
    latents = {"output.save_latents": ("--save-latents", str(tmp_path / "a.safetensors"))}
    run(make_plan(resolve(["tiny"], flags=base | flags | latents), notes=Notes(), download=False))
    sets = ["model.text_encoder=/nowhere", "model.stage1_text_encoder=/nowhere"]
    second = {
        "output.output": ("-o", str(tmp_path / "b.mp4")),
        "output.save_latents": ("--save-latents", str(tmp_path / "b.safetensors")),
        "video.num_frames": ("-n", 13),
        "input.prompt_embeds": ("--prompt-embeds", str(embeds)),
    }
    run(make_plan(resolve(["tiny"], sets=sets, flags=second), notes=Notes(), download=False))
    assert torch.equal(*(latents_of(tmp_path / f"{n}.safetensors") for n in ("a", "b")))


def test_saved_stage1_latents_refine_to_the_same_clip(tmp_path: Path) -> None:
    clean = tmp_path / "clean.safetensors"
    plan = plan_of(tmp_path, f"output.save_stage1='{clean}'", name="whole")
    run(plan)
    flags = {
        "output.output": ("-o", str(tmp_path / "half.mp4")),
        "output.save_latents": ("--save-latents", str(tmp_path / "half.safetensors")),
        "input.latents": ("--latents", str(clean)),
    }
    run(make_plan(resolve(["tiny"], flags=flags), notes=Notes(), download=False))
    assert torch.equal(*(latents_of(tmp_path / f"{n}.safetensors") for n in ("whole", "half")))


def test_an_image_needs_a_camera(tmp_path: Path) -> None:
    # A file of the user's own without a camera: the preset's action string is not in it.
    config = tmp_path / "bare.toml"
    preset = resolve(["tiny"])
    lines = ["[model]"]
    lines += [
        f"{name} = '{preset.get(f'model.{name}')}'"
        for name in ("refiner", "vae", "text_encoder", "stage1", "stage1_config")
    ]
    lines += [f"stage1_text_encoder = '{preset.get('model.stage1_text_encoder')}'"]
    lines += ["[input]", f"image = '{preset.get('input.image')}'", "prompt = 'a'"]
    lines += ["[video]", "height = 64", "width = 96"]
    config.write_text("\n".join(lines), encoding="utf-8")
    flags = {"output.output": ("-o", str(tmp_path / "a.mp4"))}
    with pytest.raises(UsageError, match="needs a camera path"):
        make_plan(resolve([str(config)], flags=flags), notes=Notes(), download=False)


def test_another_chunk_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"num_frame_per_block 4 .* chunk size 3"):
        plan_of(tmp_path, "stage1.num_frame_per_block=4")
    with pytest.raises(UsageError, match="refiner blocks of 2"):
        plan_of(tmp_path, "refiner.block_size=2")


def test_the_report_says_that_the_camera_changes_pixels(tmp_path: Path) -> None:
    report = run(plan_of(tmp_path, frames=13)).data
    assert report["camera"]["changes_pixels"] is True
    names = {w["component"] for w in report["weights"]}
    assert {"stage1", "stage1_text_encoder", "text_encoder", "vae"} <= names
    saved = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert saved["frames"] == report["frames"]


def test_regroup_hands_on_as_soon_as_it_can() -> None:
    pulled: list[int] = []

    def chunks() -> Iterator[Tensor]:
        for i, size in enumerate((4, 3, 3)):
            pulled.append(i)
            yield torch.full((1, 1, size, 1, 1), float(i))

    made = regroup(chunks(), [1, 3, 3, 3])
    assert next(made).shape[2] == 1
    assert next(made).shape[2] == 3
    assert pulled == [0]
    assert [t.shape[2] for t in made] == [3, 3]
