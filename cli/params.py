"""The flags of the commands, as a table: each names the settings key it sets.

Typer commands are built from these rows, so a flag has its name, type, help and key in one place.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .flags import Flag as Flag
from .flags import argument as argument
from .flags import extra, numbers
from .flags import given as given
from .flags import with_flags as with_flags

INPUT = "Input"
CAMERA = "Camera (recorded with --latents and --video)"
MODEL = "Model (changes pixels, recorded)"
STAGE1_PANEL = "Stage 1 (with --image)"
COMPUTE = "Compute (results stay the same)"
OUTPUT = "Output"


def _flag(names: str, key: str, type_: Any, help_: str, panel: str, **more: Any) -> Flag:
    return Flag(names, key, type_, help_, panel, **more)


SOURCE = (
    _flag(
        "--image",
        "input.image",
        str,
        "First image: stage 1 makes the clean latents of it, the prompt and the camera.",
        INPUT,
    ),
    _flag(
        "--latents",
        "input.latents",
        str,
        "Clean latents (B,C,T,H,W): .safetensors, .npy, .npz or weights-only .pt. "
        "The file decides the length.",
        INPUT,
    ),
    _flag("--video", "input.video", str, "A video, encoded by the VAE into clean latents.", INPUT),
)
PROMPT = (
    _flag("--prompt", "input.prompt", str, "What the clip shows.", INPUT),
    _flag("--prompt-file", "input.prompt_file", str, "The prompt in a UTF-8 text file.", INPUT),
    _flag(
        "--prompt-embeds",
        "input.prompt_embeds",
        str,
        "Embeddings saved by --save-prompt-embeds; no text encoder is needed then.",
        INPUT,
    ),
)
LENGTH = _flag(
    "--num-frames",
    "video.num_frames",
    int,
    "Frames, snapped to ratio*block*k + 1 (24k + 1 in the release); of latents or a video at most.",
    INPUT,
)
SIZE = (
    _flag(
        "--height", "video.height", int, "Height in pixels, a multiple of the VAE's ratio.", INPUT
    ),
    _flag("--width", "video.width", int, "Width in pixels, a multiple of the VAE's ratio.", INPUT),
)
CAMERA_FLAGS = (
    _flag(
        "--camera",
        "input.camera",
        str,
        "Trajectory file: (F,4,4) camera-to-world .npy, OpenCV axes (+X right, +Y down, "
        "+Z forward), one pose a frame; or npz, nerfstudio, Blender, COLMAP, RealEstate10K, "
        "TUM, KITTI, LLFF.",
        CAMERA,
    ),
    _flag("--camera-format", "camera.format", str, "Force the format of --camera.", CAMERA),
    _flag("--camera-convention", "camera.convention", str, "c2w or w2c.", CAMERA),
    _flag("--camera-axes", "camera.axes", str, "opencv or opengl.", CAMERA),
    _flag("--camera-sort", "camera.sort", str, "Order frames by name or as in the file.", CAMERA),
    _flag(
        "--translation-scale", "camera.translation_scale", float, "Multiply translations.", CAMERA
    ),
    _flag(
        "--hold-last/--no-hold-last",
        "camera.hold_last",
        bool,
        "Repeat the last pose when the path is shorter than the clip.",
        CAMERA,
    ),
    _flag(
        "--resample",
        "camera.resample",
        str,
        "clip: stretch the path over the clip; time: sample its timestamps at the frame rate.",
        CAMERA,
    ),
)
KEEP_FIRST = _flag(
    "--drop-first-frame/--keep-first-frame",
    "video.keep_first_frame",
    bool,
    "Drop frame 0, the sink picture, or write it (refine drops it, decode keeps it).",
    MODEL,
    invert=True,
)
REFINER = (
    _flag("--sink-size", "refiner.sink_size", int, "Sink, latent frames (released: 1).", MODEL),
    _flag("--refiner-block-size", "refiner.block_size", int, "Latent frames a block (3).", MODEL),
    _flag(
        "--refiner-kv-max-frames",
        "refiner.kv_max_frames",
        int,
        "Sink and history together, latent frames (11).",
        MODEL,
    ),
    _flag(
        "--sigmas",
        "refiner.sigmas",
        str,
        "Noise levels, descending to 0 (0.909375,0.725,0.421875,0).",
        MODEL,
        parse=numbers("--sigmas"),
    ),
    _flag(
        "--refiner-mode",
        "refiner.mode",
        str,
        "chunked (streaming weights) or single-shot (whole clip at once).",
        MODEL,
    ),
    _flag("--seed", "runtime.seed", int, "Seed of every stage (42).", MODEL),
    _flag("--refiner-seed", "runtime.refiner_seed", int, "Seed of the refiner alone.", MODEL),
    _flag("--noise", "input.noise", str, "Noise from a file, eps (B,C,T-sink,H,W).", MODEL),
    _flag(
        "--noise-device",
        "runtime.noise_device",
        str,
        "cpu (same noise on every machine) or device.",
        MODEL,
    ),
    KEEP_FIRST,
    _flag(
        "--video-sampling",
        "video.sampling",
        str,
        "keep every frame of --video, or resample it to --fps.",
        MODEL,
    ),
)
FPS = _flag(
    "--fps",
    "video.fps",
    str,
    "Frames per second the model is told, and of the file: 16, 23.976 or 24000/1001.",
    MODEL,
)
STAGE1 = (
    _flag(
        "--denoising-step-list",
        "stage1.denoising_step_list",
        str,
        "Stage 1's timesteps (1000,960,889,727,0).",
        STAGE1_PANEL,
        parse=numbers("--denoising-step-list"),
    ),
    _flag(
        "--num-frame-per-block",
        "stage1.num_frame_per_block",
        int,
        "Latent frames a chunk; must be the checkpoint's (3).",
        STAGE1_PANEL,
    ),
    _flag(
        "--num-cached-blocks",
        "stage1.num_cached_blocks",
        int,
        "Earlier chunks that softmax attention sees (2); 0: all, and memory grows with the clip.",
        STAGE1_PANEL,
    ),
    _flag(
        "--sink-token/--no-sink-token",
        "stage1.sink_token",
        bool,
        "Keep chunk 0 among them (on).",
        STAGE1_PANEL,
    ),
    _flag(
        "--stage1-noise",
        "stage1.noise",
        str,
        "chunk: a draw a chunk; reference: one draw for the clip, as the authors do.",
        STAGE1_PANEL,
    ),
)
PRECISION = (
    _flag(
        "--precision", "runtime.precision", str, "auto (fp32 on CPU), fp32, bf16 or fp16.", MODEL
    ),
)
SCHEDULE = (
    _flag(
        "--schedule",
        "runtime.schedule",
        str,
        "sequential, overlap (a thread a stage) or auto (overlap on CUDA).",
        COMPUTE,
    ),
    _flag(
        "--offload",
        "runtime.offload",
        str,
        "all: models wait in main memory and come to the device for their chunk; "
        "text: only text encoders leave (default); none: nothing leaves.",
        COMPUTE,
    ),
    _flag(
        "--place",
        "runtime.place",
        str,
        "Devices of the stages: stage1=cuda:0,refiner=cuda:1,vae=cuda:2; others use --device.",
        COMPUTE,
    ),
)
COMPILE = _flag(
    "--compile/--no-compile",
    "runtime.compile",
    bool,
    "Compile the refiner's element-wise functions (C++ compiler needed; pays from about 7 blocks).",
    COMPUTE,
)
CUDA_GRAPH = _flag(
    "--cuda-graph/--no-cuda-graph",
    "runtime.cuda_graph",
    bool,
    "Replay the refiner's passes of the full window as CUDA graphs: same kernels, one launch.",
    COMPUTE,
)
DEVICE = (
    _flag("--device", "runtime.device", str, "auto, cpu, cuda or cuda:N.", COMPUTE),
    _flag("--threads", "runtime.threads", int, "CPU threads.", COMPUTE),
)
ENCODING = (
    _flag("--crf", "video.crf", int, "Quality, 0 (best) to 51 (18).", OUTPUT),
    _flag("--encoder", "video.encoder", str, "libx264, libx265 or h264_nvenc.", OUTPUT),
    _flag("--encoder-preset", "video.encoder_preset", str, "Encoder speed (medium).", OUTPUT),
    _flag("--frames-dir", "output.frames_dir", str, "Also write every frame as PNG here.", OUTPUT),
)
OVERWRITE = _flag(
    "--overwrite/--no-overwrite", "output.overwrite", bool, "Replace existing outputs.", OUTPUT
)
TARGET = _flag("--output,-o", "output.output", str, "Where the result goes.", OUTPUT)
REFINE_OUTPUT = (
    TARGET,
    _flag("--output-dir", "output.output_dir", str, "Folder of the MP4, with --name.", OUTPUT),
    _flag("--name", "output.name", str, "File name of the MP4 without .mp4.", OUTPUT),
    OVERWRITE,
    _flag(
        "--no-video",
        "output.video",
        bool,
        "Make no MP4 (with --save-latents); the VAE is not needed.",
        OUTPUT,
        invert=True,
    ),
    _flag("--save-latents", "output.save_latents", str, "Refined latents, .safetensors.", OUTPUT),
    _flag("--save-stage1", "output.save_stage1", str, "Stage 1's latents, .safetensors.", OUTPUT),
    _flag(
        "--save-prompt-embeds",
        "output.save_prompt_embeds",
        str,
        "The prompt's embeddings, .safetensors.",
        OUTPUT,
    ),
    _flag("--save-noise", "output.save_noise", str, "The noise used, .safetensors.", OUTPUT),
    _flag("--save-camera", "output.save_camera", str, "All poses, .npy (F,4,4).", OUTPUT),
    _flag("--preview", "output.preview", str, "Contact sheet, .png: one row a block.", OUTPUT),
    _flag("--report", "output.report", str, "Report, .json (default: beside the MP4).", OUTPUT),
    _flag("--output-fps", "video.output_fps", str, "Rate written to the file only.", OUTPUT),
    _flag(
        "--faststart/--no-faststart",
        "video.faststart",
        bool,
        "Move the index to the front after closing.",
        OUTPUT,
    ),
    _flag(
        "--state",
        "output.state",
        str,
        "Run state (default: FILE.state beside the output), or none.",
        OUTPUT,
    ),
    _flag("--state-every", "output.state_every", int, "Save it every N blocks (1).", OUTPUT),
    _flag(
        "--resume/--no-resume",
        "output.resume",
        bool,
        "Continue a stopped run from its state: same results as if it had never stopped.",
        OUTPUT,
    ),
    *ENCODING,
)
STORE = _flag(
    "--prompt-store/--no-prompt-store",
    "text.store",
    bool,
    "Keep prompt embeddings in the cache for the next run (on).",
    COMPUTE,
)

DECODE = (TARGET, FPS, *ENCODING, KEEP_FIRST, *PRECISION, *DEVICE, OVERWRITE)
BENCH = (*SIZE, *REFINER, *PRECISION, COMPILE, CUDA_GRAPH, *DEVICE)
ENCODE = (TARGET, *SIZE, LENGTH, *PRECISION, *DEVICE, OVERWRITE)


CONFIG = extra(
    "config",
    Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help="Preset name or TOML file; repeatable, later wins. Without it: tiny.",
            rich_help_panel=INPUT,
            show_default=False,
        ),
    ],
    None,
)
SET = extra(
    "set_",
    Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set one key of the configuration, like refiner.kv_max_frames=8; repeatable.",
            rich_help_panel=INPUT,
            show_default=False,
        ),
    ],
    None,
)
DRY_RUN = extra(
    "dry_run",
    Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything, print the plan, load no weights, write nothing.",
            rich_help_panel=OUTPUT,
        ),
    ],
    False,
)
