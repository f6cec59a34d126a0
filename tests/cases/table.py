"""Every case file of the field log with its outcome, through what a user would run.

Outcomes are those of the log: V accepted with the stated value, W accepted with one warning, E
refused. `choice` says which outcome sanawm chose where a case allows two; docs/troubleshooting.md
repeats these lines.

`FILE` in the arguments stands for the case file. Rows with `sets` are runs of the released model
(`sanawm refine -c streaming-720p --set …`), rows with `command` are other commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import values


class Row(NamedTuple):
    """One case file in one use. `words` stand in the messages, `check` looks at what came out."""

    file: str
    outcome: str
    sets: tuple[str, ...] = ()
    command: tuple[object, ...] = ()
    words: tuple[str, ...] = ()
    code: int = 2
    check: Callable[..., None] | None = None
    given: tuple[Any, ...] = ()
    choice: str = ""
    named: bool = True  # the message names the file


def camera(file: str, outcome: str, *words: str, sets: tuple[str, ...] = (), **more: Any) -> Row:
    """A camera path of the main job, asked for as many frames as fit 25 poses."""
    frames = more.pop("frames", 25)
    count = () if frames is None else (f"video.num_frames={frames}",)
    return Row(file, outcome, ("input.camera=FILE", *count, *sets), words=words, **more)


def convert(file: str, *flags: str, check: Any, given: tuple[Any, ...] = (), **more: Any) -> Row:
    """`sanawm camera convert`, whose result is looked at."""
    command = ("camera", "convert", "FILE", "-o", "out.npy", *flags)
    return Row(file, "V", command=command, check=check, given=given, **more)


def shown(file: str, *words: str, flags: tuple[str, ...] = (), **more: Any) -> Row:
    """`sanawm camera show`, whose motion summary is read."""
    return Row(file, more.pop("outcome", "V"), command=("camera", "show", "FILE", *flags),
               words=words, **more)  # fmt: skip


def lens(file: str, outcome: str, *words: str, sets: tuple[str, ...] = (), **more: Any) -> Row:
    """Intrinsics of a 640x360 picture in a run of 25 frames."""
    fixed = ("input.action=w-24", "video.num_frames=25", "input.intrinsics=FILE")
    return Row(file, outcome, (*fixed, *sets), words=words, **more)


def picture(file: str, outcome: str, *words: str, **more: Any) -> Row:
    """A first image of the released size. Of a wide one little is left, so its angle is small."""
    path = ("input.action=w-24", "video.num_frames=25", "camera.allow_extreme_fov=true")
    return Row(file, outcome, ("input.image=FILE", *path), words=words, **more)


def frames(file: str, outcome: str, *words: str, **more: Any) -> Row:
    """Frames given to the video writer."""
    return Row(file, outcome, command=("writer",), words=words, **more)


def weights(file: str, *words: str) -> Row:
    """A file in the place of the refiner's weights."""
    return Row(file, "E", ("model.refiner=MODEL",), words=words, code=3)


C01, C02, C04 = "C01_camera_nan/", "C02_camera_dtypes/", "C04_camera_convention/"
C06, C07, C08 = "C06_camera_short/", "C07_realestate10k_txt/", "C08_nerfstudio_transforms/"
C09, C10, C14 = "C09_colmap_text/", "C10_intrinsics/", "C14_safetensors_broken/"
C17, C19, C20 = "C17_pickle_checkpoint/", "C19_first_frame_images/", "C20_frames_to_mp4/"

PATHS = (
    camera(C01 + "clean.npy", "V", check=values.has_frames, given=(25,)),
    camera(C01 + "nan.npy", "E", "frame 5, row 1, column 3 (counted from 0) is nan"),
    camera(C01 + "inf.npy", "E", "frame 7, row 0, column 0 (counted from 0) is inf"),
    *(
        convert(f"{C02}{name}", check=values.walks_by_one)
        for name in ("f32.npy", "f64.npy", "f16.npy", "int32.npy", "int64.npy", "f32_fortran.npy")
    ),
    camera(C02 + "complex64.npy", "E", "dtype complex64", "float16, float32, float64 or integers"),
    camera(C02 + "bool.npy", "E", "dtype bool", "float16, float32, float64 or integers"),
    convert(C02 + "c2w.npz", check=values.walks_by_one, choice="an .npz with the key c2w is read"),
    camera(
        C02 + "poses.txt", "E", "16 columns a line: no trajectory that can be read",
        "RealEstate10K", choice="rows of 16 numbers are refused, naming the formats that are read",
    ),
    camera(C02 + "truncated.npy", "E", "cut short", "needs 3200 bytes of data, 3160 are there"),
    convert(C04 + "c2w_opencv.npy", check=values.last_pose, given=(24, values.C04)),
    convert(C04 + "w2c_opencv.npy", "--camera-convention", "w2c", check=values.last_pose,
            given=(24, values.C04), choice="--camera-convention w2c reads world-to-camera"),
    convert(C04 + "c2w_opengl.npy", "--camera-axes", "opengl", check=values.last_pose,
            given=(24, values.C04), choice="--camera-axes opengl reads OpenGL axes"),
    shown(C04 + "c2w_opencv.npy", "forward 1.163, right 0.258", "right 24.0 degrees"),
    shown(C04 + "w2c_opencv.npy", "backwards 1.198"),
    shown(C04 + "c2w_opengl.npy", "backwards 1.163"),
    camera(C06 + "F0.npy", "E", "no poses in this file"),
    camera(C06 + "F1.npy", "E", "gives 1 pose: a clip needs at least 25", frames=None),
    camera(C06 + "F24.npy", "E", "gives 24 poses: a clip needs at least 25", frames=None),
    camera(C06 + "F50.npy", "W", "241", "50", "49", frames=None, check=values.has_frames,
           given=(49,)),
    camera(C06 + "F50.npy", "E", "241", "50 poses", frames=241),
    camera(C06 + "F242.npy", "V", "242 poses, the first 241 are used", frames=241,
           check=values.has_frames, given=(241,)),
    camera(C06 + "F242.npy", "W", "100 frames asked", "97", frames=100, check=values.has_frames,
           given=(97,)),
    camera(C06 + "F242.npy", "E", "0 frames asked, expected at least 25", frames=0, named=False),
    Row(C06 + "F242.npy", "V", command=("library",), check=values.snapping),
    convert(C07 + "clip.txt", check=values.last_pose, given=(8, values.C07)),
    Row(C07 + "clip.txt", "V", command=("library",), check=values.lens_of_file,
        given=((320, 320, 320, 180),), choice="RealEstate10K text is read"),
    camera(C07 + "bad_columns.txt", "E", "line 5 has 18 columns, expected 19"),
    convert(C08 + "transforms.json", check=values.last_pose, given=(8, values.C08),
            choice="nerfstudio files are read, their frames in the order of file_path"),
    Row(C08 + "transforms.json", "V", command=("library",), check=values.lens_of_file,
        given=((500, 505, 320, 180),)),
    shown(C08 + "with_distortion.json", "distortion k1=-0.21 ignored", outcome="W",
          choice="lens distortion is ignored with a warning"),
    camera(C08 + "with_distortion.json", "E", "gives 1 pose: a clip needs at least 25",
           frames=None),
    convert(C09 + "images.txt", check=values.last_pose, given=(8, values.C09),
            choice="the COLMAP text model is read, images in the order of their names"),
    Row(C09 + "images.txt", "V", command=("library",), check=values.lens_of_file,
        given=((512, 514, 320, 180),)),
    camera(C09 + "cameras.txt", "E", "this is COLMAP's camera list, it holds no poses"),
)  # fmt: skip

LENSES = (
    *(
        lens(f"{C10}{name}.npy", "V", check=values.target_lens, given=((1200, 1220, 640, 352),))
        for name in ("vec4", "mat33", "perframe_F4", "perframe_F33")
    ),
    lens(C10 + "zoom_F4.npy", "V", check=values.target_lens, given=((1800, 1220, 640, 352), 24)),
    lens(C10 + "zoom_long_49.npy", "V", "intrinsics of 49 frames, the first 25 are used",
         check=values.target_lens, given=(None,)),
    lens(C10 + "zero_focal.npy", "E", "zero_focal.npy", "expected a positive number of pixels"),
    lens(C10 + "negative_focal.npy", "E", "negative_focal.npy", "expected a positive number"),
    lens(C10 + "nan.npy", "E", "nan.npy", "is nan"),
    lens(C10 + "shape_3.npy", "E", "shape_3.npy", "shape (3,)"),
    lens(C10 + "skew.npy", "W", "skew"),
    lens(C10 + "principal_point_outside.npy", "W", "outside",
         choice="a principal point outside the picture is a warning"),
    lens(C10 + "fov_too_wide.npy", "E", "145.3", "121.9"),
    lens(C10 + "fov_too_wide.npy", "V", sets=("camera.allow_extreme_fov=true",),
         check=values.target_lens, given=((200, 200, 640, 352),)),
)  # fmt: skip

FILES = (
    weights(C14 + "truncated_data.safetensors", "cut short: 390 bytes found, 440 expected"),
    weights(C14 + "truncated_header.safetensors", "cut short"),
    weights(C14 + "empty.safetensors", "the file is empty"),
    weights(C14 + "html_page.safetensors", "not a safetensors file: it looks like an HTML page"),
    weights(C14 + "trailing_junk.safetensors", "size does not match header"),
    weights(C14 + "huge_header_length.safetensors", "not a valid safetensors file"),
    weights(C14 + "torch_zip_renamed.safetensors", "it is a PyTorch zip file"),
    Row(C14 + "ok_reference.safetensors", "V", command=("inspect", "FILE"),
        words=("proj_in.weight", "proj_in.bias", "8x8")),
    Row(C17 + "plain_state_dict.pt", "V", command=("library",), check=values.state_dict,
        choice="a .pt of plain tensors is read through the weights-only loader"),
    Row(C17 + "plain_state_dict.pt", "V", command=("inspect", "FILE")),
    Row(C17 + "has_namespace.pt", "E", code=3, command=("inspect", "FILE"),
        words=("refused, it holds more than tensors (argparse.Namespace)",)),
    Row(C17 + "has_namespace.pt", "E", ("input.latents=FILE",), code=3,
        words=("refused, it holds more than tensors (argparse.Namespace)",)),
    Row(C17 + "marker_exec.pt", "E", ("input.latents=FILE",), code=3,
        words=("refused, it holds more than tensors",)),
    Row(C17 + "marker_exec.pt", "E", command=("inspect", "FILE"), code=3,
        words=("refused, it holds more than tensors",)),
    Row(C17 + "raw_pickle.pkl", "E", ("input.latents=FILE",), words=(".pkl", "are not read")),
    Row(C17 + "raw_pickle.pkl", "E", command=("inspect", "FILE"), words=("a pickle",)),
)  # fmt: skip

PICTURES = (
    picture(C19 + "odd_65x33_rgba.png", "W", "transparent parts are shown over white",
            "resized 65x33 to 1387x704", check=values.cropped, given=((1387, 704, 53, 0),),
            choice="transparency is blended over white with a warning"),
    picture(C19 + "gray8_64x36.png", "V", "resized 64x36 to 1280x720", check=values.grey),
    picture(C19 + "exif1_64x36.jpg", "V", "resized 64x36 to 1280x720", check=values.red_and_blue),
    picture(C19 + "cmyk_64x36.jpg", "V", check=values.red),
    picture(C19 + "palette_trns_64x36.png", "W", "transparent parts are shown over white"),
    picture(C19 + "portrait_90x160.png", "W", "69 % of the picture is cut off",
            "resized 90x160 to 1280x2276", check=values.cropped, given=((1280, 2276, 0, 786),)),
    picture(C19 + "panorama_200x10.png", "W", "91 % of the picture is cut off",
            "resized 200x10 to 14080x704", check=values.cropped, given=((14080, 704, 6400, 0),)),
    picture(C19 + "one_pixel.png", "W", "45 % of the picture is cut off", "resized 1x1 to",
            check=values.cropped, given=((1280, 1280, 0, 288),),
            choice="a picture of one pixel is accepted"),
    picture(C19 + "animated_2f.gif", "W", "an animation of 2 pictures; only the first is used",
            check=values.first_of_two, choice="the first picture of an animation is used, with a "
            "warning"),
    picture(C19 + "truncated.jpg", "E", "truncated.jpg: the picture is broken or cut short"),
    picture(C19 + "text_renamed.png", "E", "text_renamed.png: not a picture that can be read"),
    picture(C19 + "zero_bytes.png", "E", "zero_bytes.png: the file is empty"),
    picture(C19 + "claims_60000x60000.png", "E", "the picture is too large: 3600000000 pixels"),
)  # fmt: skip

VIDEOS = (
    frames(C20 + "colour_bars_u8.npy", "V", check=values.bars),
    frames(C20 + "frame_counter_49.npy", "V", check=values.counter),
    frames(C20 + "odd_33x65_u8.npy", "E", "65x33",
           choice="odd sizes are refused by the video writer"),
    frames(C20 + "float01.npy", "E", "float32", "values 0.0 to 1.0",
           choice="the video writer takes uint8 alone"),
    frames(C20 + "float_minus1_1.npy", "E", "float32", "values -1.0 to 1.0"),
    frames(C20 + "float_0_255.npy", "E", "float16", "to 255.0"),
    frames(C20 + "float01_nan_over.npy", "E", "NaN"),
    frames(C20 + "TCHW_u8.npy", "E", "(3, 3, 32, 64)", "move the colour axis last"),
    frames(C20 + "gray_THW.npy", "E", "(3, 32, 64)"),
    frames(C20 + "rgba_u8.npy", "E", "4)", "drop the alpha channel"),
    frames(C20 + "zero_frames.npy", "E", "no values"),
    Row(C20 + "fps.json", "V", command=("library",), check=values.rates,
        choice="rates up to 1000 frames per second; 23.976 is 24000/1001"),
)  # fmt: skip

SETTINGS = (
    Row("C21_output_names/names.json", "V", command=("library",), check=values.names),
    Row("C22_sigma_and_step_lists/lists.json", "V", command=("library",), check=values.lists,
        choice="every list that follows the rules is accepted; another than the preset's warns"),
    Row("C23_kv_window/windows.json", "V", command=("library",), check=values.windows,
        choice="the window is that of the public port: history of kv_max - sink frames, cut by "
        "frames"),
)  # fmt: skip

TABLE = (*PATHS, *LENSES, *FILES, *PICTURES, *VIDEOS, *SETTINGS)
