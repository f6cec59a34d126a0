"""Nothing that is loaded runs code, leaves its folder or uses the network; reports hold no secrets.

The pickles of case C17 create a file PWNED_MARKER in the current folder when they are loaded
unsafely.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from .cli.command import ROOT, sanawm
from .tiny_runs import decode

C17 = ROOT / "tests" / "cases" / "C17_pickle_checkpoint"
C19 = ROOT / "tests" / "cases" / "C19_first_frame_images"
TINY = ROOT / "configs" / "tiny"
MARKER = "PWNED_MARKER"
SECRET = "hunter2-sanawm-secret"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SANAWM_CACHE", str(tmp_path.with_name("cache")))
    return tmp_path


#: Every option that takes a file, with a file name that its reader would accept.
ENTRIES = {
    "--latents x.pt": ("refine", "--latents", "x.pt", "-o", "o.mp4"),
    "--latents x.pth": ("refine", "--latents", "x.pth", "-o", "o.mp4"),
    "--latents x.safetensors": ("refine", "--latents", "x.safetensors", "-o", "o.mp4"),
    "--latents x.npy": ("refine", "--latents", "x.npy", "-o", "o.mp4"),
    "--latents x.npz": ("refine", "--latents", "x.npz", "-o", "o.mp4"),
    "--latents x.pkl": ("refine", "--latents", "x.pkl", "-o", "o.mp4"),
    "--noise x.pt": ("refine", "--noise", "x.pt", "-o", "o.mp4"),
    "--prompt-embeds": ("refine", "--prompt-embeds", "x.safetensors", "-o", "o.mp4"),
    "--prompt-file": ("refine", "--prompt-file", "x.txt", "-o", "o.mp4"),
    "--image": ("refine", "--image", "x.png", "-o", "o.mp4"),
    "--video": ("refine", "--video", "x.mp4", "-o", "o.mp4"),
    "--camera x.npy": ("refine", "--camera", "x.npy", "-o", "o.mp4"),
    "--camera x.npz": ("refine", "--camera", "x.npz", "-o", "o.mp4"),
    "--camera x.txt": ("refine", "--camera", "x.txt", "-o", "o.mp4"),
    "--intrinsics": ("refine", "--intrinsics", "x.npy", "-o", "o.mp4"),
    "--config": ("refine", "-c", "x.toml", "-o", "o.mp4"),
    "stage 1, folder": ("refine", "--set", "model.stage1=model", "-o", "o.mp4"),
    "stage 1, file": ("refine", "--set", "model.stage1=x.pt", "-o", "o.mp4"),
    "stage 1, settings": ("refine", "--set", "model.stage1_config=x.yaml", "-o", "o.mp4"),
    "stage 1, instruction": ("refine", "--set", "stage1.instruction=x.yaml", "-o", "o.mp4"),
    "refiner": ("refine", "--set", "model.refiner=x.safetensors", "-o", "o.mp4"),
    "vae": ("refine", "--set", "model.vae=weights", "-o", "o.mp4"),
    "--resume": ("refine", "-o", "o.mp4", "--state", "x.state", "--resume"),
    "decode x.pt": ("decode", "x.pt", "-o", "o.mp4"),
    "decode x.npy": ("decode", "x.npy", "-o", "o.mp4"),
    "encode": ("encode", "x.png", "-o", "o.safetensors"),
    "camera show": ("camera", "show", "x.npy"),
    "camera check": ("camera", "check", "x.npz"),
    "inspect x.pt": ("inspect", "x.pt"),
    "inspect --stats": ("inspect", "--stats", "x.pt"),
    "inspect --convert": ("inspect", "x.pt", "--convert", "o.safetensors"),
    "inspect x.pkl": ("inspect", "x.pkl"),
    "compare": ("compare", "x.pt", "x.pt"),
    "batch": ("batch", "x.jsonl", "--output-dir", "."),
}
PICKLES = ("marker_exec.pt", "has_namespace.pt", "raw_pickle.pkl")


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_entry_runs_a_pickle(here: Path, entry: str) -> None:
    unsafe = re.compile(r"weights_only\s*=\s*False|trust|allow_pickle|add_safe_globals", re.I)
    for pickle in PICKLES:
        for word in ("x.pt", "x.pth", "x.safetensors", "x.npy", "x.npz", "x.pkl", "x.txt", "x.png"):
            shutil.copy(C17 / pickle, word)
        for word in ("x.mp4", "x.toml", "x.yaml", "x.state", "x.jsonl"):
            shutil.copy(C17 / pickle, word)
        for folder in ("model", "weights"):
            Path(folder).mkdir(exist_ok=True)
            shutil.copy(C17 / pickle, f"{folder}/model.pt")
        shutil.copy(TINY / "ltx2_causal_vae/config.json", "weights")
        shutil.copy(C17 / pickle, "weights/diffusion_pytorch_model.safetensors")
        done = sanawm(*ENTRIES[entry])
        assert not Path(MARKER).exists(), pickle
        assert done.code in ((1,) if entry == "batch" else (2, 3, 5)), done.err
        assert "Traceback" not in done.err
        assert "unexpected" not in done.err
        assert unsafe.search(done.err) is None
        assert not list(here.glob("o.*"))


def test_the_marker_would_show(here: Path) -> None:
    """The case works: loaded unsafely, as nothing here does, its file makes the marker."""
    torch.load(C17 / "marker_exec.pt", weights_only=False)
    assert Path(MARKER).exists()


def test_the_refused_type_is_named(here: Path) -> None:
    shutil.copy(C17 / "has_namespace.pt", "x.pt")
    done = sanawm("refine", "--latents", "x.pt", "-o", "o.mp4")
    assert done.code == 3
    assert "refused, it holds more than tensors (argparse.Namespace)" in done.err


def test_arrays_of_objects(here: Path) -> None:
    """NumPy pickles them inside .npy and .npz."""

    class Opens:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (MARKER, "w"))

    array = np.array([Opens()], dtype=object)
    np.save("x.npy", array, allow_pickle=True)
    np.savez("x.npz", latents=array, c2w=array)
    for option in ("--latents", "--noise", "--camera", "--intrinsics"):
        for name in ("x.npy", "x.npz"):
            done = sanawm("refine", option, name, "-o", "o.mp4")
            assert done.code == 2, done.err
            assert "x.np" in done.err
            assert not Path(MARKER).exists()


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.mkdir", "!!python/name:os.mkdir"])
def test_yaml_makes_no_objects(here: Path, tag: str) -> None:
    text = (TINY / "sana_dit/config.yaml").read_text(encoding="utf-8")
    Path("x.yaml").write_text(f"{text}\nextra: {tag} [{MARKER}]\n", encoding="utf-8")
    for key in ("model.stage1_config", "stage1.instruction"):
        done = sanawm("refine", "--set", f"{key}=x.yaml", "-o", "o.mp4")
        assert done.code == 2, done.err
        assert "x.yaml: not valid YAML" in done.err
        assert not Path(MARKER).exists()


@pytest.mark.parametrize(
    "shard",
    ["../stolen.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "a\\..\\b", "\0"],
)
def test_shards_stay_in_their_folder(here: Path, shard: str) -> None:
    shutil.copytree(TINY / "gemma2", "model/gemma2")
    (file,) = Path("model/gemma2").glob("*.index.json")
    index = json.loads(file.read_text(encoding="utf-8"))
    name = next(iter(index["weight_map"]))
    shutil.copy(Path("model/gemma2") / index["weight_map"][name], "model/stolen.safetensors")
    index["weight_map"][name] = shard
    file.write_text(json.dumps(index), encoding="utf-8")
    location = "model.stage1_text_encoder=model/gemma2"
    done = sanawm("refine", "--set", location, "-o", "o.mp4", "--dry-run")
    assert done.code == 3, done.err
    assert str(file) in done.err or "a\\..\\b" in done.err
    assert "Traceback" not in done.err


def test_a_bomb_of_pixels_is_refused_at_once(here: Path) -> None:
    shutil.copy(C19 / "claims_60000x60000.png", "x.png")
    for command in (("refine", "--image", "x.png", "-o", "o.mp4"), ("encode", "x.png", "-o", "o")):
        began = time.monotonic()
        done = sanawm(*command)
        assert done.code == 2
        assert time.monotonic() - began < 5  # it would take minutes and 11 GB
        assert "o.mp4" in command or "the name has no ending" in done.err
    assert (
        "the picture is too large: 3600000000 pixels"
        in sanawm("encode", "x.png", "-o", "o.safetensors").err
    )


def test_headers_that_claim_too_much(here: Path) -> None:
    """Sizes in a header allocate nothing."""
    shape = (1, 16, 10**9, 8, 12)
    header = (
        str({"descr": "<f4", "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    )
    npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    Path("x.npy").write_bytes(npy)
    with zipfile.ZipFile("x.npz", "w") as archive:
        archive.writestr("latents.npy", npy)
    offsets = [0, 4 * int(np.prod(shape))]
    entry = {"latents": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}
    text = json.dumps(entry).encode()
    Path("x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    Path("y.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + text)
    for name in ("x.npy", "x.npz", "x.safetensors", "y.safetensors"):
        done = sanawm("refine", "--latents", name, "-o", "o.mp4")
        assert done.code == 2, done.err
        assert f"error: {name}: " in done.err


def test_an_archive_that_unpacks_to_too_much(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed("x.npz", latents=np.zeros((1, 16, 25, 8, 12), np.float32))
    monkeypatch.setattr("sanawm.io.latents.MAX_UNPACKED", 1000)
    done = sanawm("refine", "--latents", "x.npz", "-o", "o.mp4")
    assert done.code == 2
    assert "x.npz: 153728 bytes when unpacked, at most 1000 are read from .npz" in done.err


BLOCKED = """
import os, socket, sys
def refuse(*args, **kwargs):
    with open({log!r}, "a") as file:
        file.write(repr(args) + "\\n")
    raise OSError("the network is off")
for name in ("create_connection", "getaddrinfo", "gethostbyname"):
    setattr(socket, name, refuse)
socket.socket = type("Refused", (socket.socket,), {{"__init__": refuse}})
sys.argv = ["sanawm", *{arguments!r}]
from sanawm.cli import app
app.main()
"""


def test_no_network_and_no_secrets(here: Path) -> None:
    """A whole run, text encoders too, in a process whose sockets raise and whose environment tells.

    The Hugging Face libraries are left as they come: no offline switch.
    """
    arguments = [
        "refine", "--prompt", "never seen before", "--height", "32", "--width", "48",
        "--num-frames", "25", "-o", "o.mp4", "--save-latents", "o.safetensors",
        "--save-stage1", "s.safetensors", "--save-prompt-embeds", "e.safetensors",
        "--save-noise", "n.safetensors", "--preview", "o.png", "--frames-dir", "f",
        "--save-camera", "c.npy", "--log-file", "log.jsonl", "-v", "--threads", "1",
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS"))}
    environment |= {"HF_TOKEN": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET, "MY_PASSWORD": SECRET}
    environment["SANAWM_CACHE"] = str(here / "cache")
    code = BLOCKED.format(log=str(here / "attempts"), arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not Path("attempts").exists(), Path("attempts").read_text()
    assert len(decode(here / "o.mp4").frames) == 24
    names = {p.name for p in here.iterdir()}
    assert {"o.json", "o.mp4", "s.safetensors", "e.safetensors", "log.jsonl", "cache"} <= names
    for path in (p for p in here.rglob("*") if p.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path
        for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"):
            assert name.encode() not in path.read_bytes(), path
    assert SECRET not in done.stdout + done.stderr


#: What the sources must not hold, and why.
FORBIDDEN = {
    r"\bpickle\.loads?\(": "runs code of the file",
    r"allow_pickle\s*=\s*True": "runs code of the file",
    r"weights_only\s*=\s*False": "runs code of the file",
    r"torch\.load\((?![^)]*weights_only=True)": "is unsafe without weights_only=True",
    r"yaml\.(unsafe_load|full_load|load)\(": "makes objects",
    r"trust_remote_code\s*=\s*True": "runs code of a repository",
    r"(?<![\w.])(eval|exec)\(": "runs text as code",
    r"shell\s*=\s*True|os\.system\(": "runs text in a shell",
    r"MAX_IMAGE_PIXELS\s*=": "lifts Pillow's limit",
}


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_the_sources_hold_no_unsafe_call(pattern: str) -> None:
    files = [*(ROOT / "sanawm").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    assert len(files) > 100
    found = [
        f"{file.relative_to(ROOT)}: {match[0]} {FORBIDDEN[pattern]}"
        for file in files
        for match in re.finditer(pattern, file.read_text(encoding="utf-8"))
    ]
    assert not found
