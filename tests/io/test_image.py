"""First-frame pictures and how they are fitted."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sanawm.errors import InputError, MissingFile, UsageError
from sanawm.io.image import check_size, fit_image, fit_size, read_image
from sanawm.notes import Notes

from .clips import CASES

C19 = CASES / "C19_first_frame_images"


@pytest.mark.parametrize(
    ("name", "size", "resized", "left", "top"),
    [
        ("odd_65x33_rgba.png", (65, 33), (1387, 704), 53, 0),
        ("exif1_64x36.jpg", (64, 36), (1280, 720), 0, 8),
        ("portrait_90x160.png", (90, 160), (1280, 2276), 0, 786),
        ("panorama_200x10.png", (200, 10), (14080, 704), 6400, 0),
        ("one_pixel.png", (1, 1), (1280, 1280), 0, 288),
    ],
)
def test_fit_of_cases(
    name: str, size: tuple[int, int], resized: tuple[int, int], left: int, top: int
) -> None:
    notes = Notes()
    pixels = read_image(C19 / name, notes=notes)
    assert not any("EXIF" in line for line in notes.infos)
    assert pixels.shape == (size[1], size[0], 3)
    fit = fit_size(*size, 1280, 704)
    assert (fit.resized_w, fit.resized_h, fit.left, fit.top) == (*resized, left, top)
    assert fit_image(pixels, width=1280, height=704, notes=Notes()).shape == (704, 1280, 3)


@pytest.mark.parametrize(
    ("size", "resized", "left", "top"),
    [
        ((90, 160), (64, 114), 0, 41),
        ((65, 33), (64, 32), 0, 0),
        ((64, 36), (64, 36), 0, 2),
        ((200, 10), (640, 32), 288, 0),
        ((640, 360), (64, 36), 0, 2),
    ],
)
def test_fit_to_small_target(
    size: tuple[int, int], resized: tuple[int, int], left: int, top: int
) -> None:
    fit = fit_size(*size, 64, 32)
    assert (fit.resized_w, fit.resized_h, fit.left, fit.top) == (*resized, left, top)


def test_intrinsics_move_with_the_fit() -> None:
    fit = fit_size(640, 360, 1280, 704)  # R15 of the field log
    fx, fy, cx, cy = 600, 610, 320, 180
    moved = (fx * fit.scale_x, fy * fit.scale_y)
    assert moved == (1200, 1220)
    assert (cx * fit.scale_x - fit.left, cy * fit.scale_y - fit.top) == (640, 352)


sides = st.integers(1, 4000)


@given(sides, sides, st.integers(2, 60), st.integers(2, 60))
def test_fit_covers_and_centres(w: int, h: int, columns: int, rows: int) -> None:
    target_w, target_h = 32 * columns, 32 * rows
    fit = fit_size(w, h, target_w, target_h)
    assert fit.resized_w >= target_w
    assert fit.resized_h >= target_h
    assert fit.resized_w == target_w or fit.resized_h == target_h  # one side fits exactly
    for resized, target, start in (
        (fit.resized_w, target_w, fit.left),
        (fit.resized_h, target_h, fit.top),
    ):
        assert 0 <= start <= resized - target
        assert abs((resized - target - start) - start) <= 1  # centred
    assert 0 <= fit.cut < 1


def test_rounding_is_half_to_even() -> None:
    # 5 x 2 to 4 x 1: scale 0.8, height 1.6 -> 2; 3 x 1 to 2 x 1: width 3; 25 x 10 to 10 x 1: 4.0
    assert fit_size(5, 2, 4, 1).resized_h == 2
    assert fit_size(4, 5, 2, 2).resized_h == 2  # 2.5 goes to 2, not to 3
    assert fit_size(4, 7, 2, 2).resized_h == 4  # 3.5 goes to 4


def test_fit_is_lanczos_then_crop() -> None:
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 255, (36, 64, 3), dtype=np.uint8)
    out = fit_image(pixels, width=128, height=64, notes=Notes())
    image = Image.fromarray(pixels).resize((128, 72), Image.Resampling.LANCZOS)
    assert np.array_equal(out, np.asarray(image.crop((0, 4, 128, 68))))


class TestLines:
    def test_small_cut_is_a_change(self) -> None:
        notes = Notes()
        fit_image(np.zeros((360, 640, 3), np.uint8), width=1280, height=704, notes=notes, name="a")
        assert notes.changes == [
            "a: resized 640x360 to 1280x720, cropped to 1280x704: 2 % is cut off"
        ]
        assert notes.warnings == []

    def test_large_cut_is_also_a_warning(self) -> None:
        notes = Notes()
        fit_image(np.zeros((272, 640, 3), np.uint8), width=96, height=64, notes=notes, name="p.png")
        assert notes.changes == [
            "p.png: resized 640x272 to 151x64, cropped to 96x64: 36 % is cut off"
        ]
        assert notes.warnings == ["p.png: 36 % of the picture is cut off to fit 96x64"]

    @pytest.mark.parametrize(("size", "percent"), [((90, 160), "69 %"), ((200, 10), "91 %")])
    def test_cases(self, size: tuple[int, int], percent: str) -> None:
        notes = Notes()
        pixels = np.zeros((size[1], size[0], 3), np.uint8)
        fit_image(pixels, width=1280, height=704, notes=notes)
        assert percent in notes.warnings[0]

    def test_exact_size_says_nothing(self) -> None:
        notes = Notes()
        pixels = np.zeros((64, 96, 3), np.uint8)
        assert np.array_equal(fit_image(pixels, width=96, height=64, notes=notes), pixels)
        assert (notes.changes, notes.warnings) == ([], [])

    def test_next_to_nothing_left_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"line: of 10000x1 only .* % would be left"):
            fit_image(
                np.zeros((1, 10000, 3), np.uint8), width=64, height=64, notes=Notes(), name="line"
            )


class TestCheckSize:
    def test_valid(self) -> None:
        check_size(704, 1280, 32)
        check_size(64, 64, 32)

    @pytest.mark.parametrize(
        ("height", "width", "message", "fix"),
        [
            (700, 1280, "height 700", "--height 672 or 704"),
            (704, 1290, "width 1290", "--width 1280 or 1312"),
            (32, 1280, "height 32", "--height 64"),
            (-32, 64, "height -32", "--height 64"),
            (65, 64, "height 65", "--height 64 or 96"),
        ],
    )
    def test_refused(self, height: int, width: int, message: str, fix: str) -> None:
        with pytest.raises(UsageError, match=message) as caught:
            check_size(height, width, 32)
        assert caught.value.fix == f"use {fix}"


class TestRead:
    def test_grey(self) -> None:
        pixels = read_image(C19 / "gray8_64x36.png", notes=Notes())
        assert (pixels[..., 0] == pixels[..., 1]).all()
        assert (pixels[..., 0] == pixels[..., 2]).all()
        assert abs(int(pixels[18, 32, 0]) - 129) <= 1

    def test_upright_photo(self) -> None:
        pixels = read_image(C19 / "exif1_64x36.jpg", notes=Notes()).astype(int)
        assert pixels[:, :28, 0].min() > 200
        assert pixels[:, 36:, 2].min() > 200

    def test_cmyk(self) -> None:
        pixels = read_image(C19 / "cmyk_64x36.jpg", notes=Notes()).astype(int)
        assert np.abs(pixels - [255, 0, 0]).max() <= 3

    @pytest.mark.parametrize("name", ["odd_65x33_rgba.png", "palette_trns_64x36.png"])
    def test_transparency_is_white_with_a_warning(self, name: str) -> None:
        notes = Notes()
        pixels = read_image(C19 / name, notes=notes)
        alpha = np.asarray(Image.open(C19 / name).convert("RGBA"))[..., 3]
        assert (alpha == 0).any()
        assert (pixels[alpha == 0] == 255).all()
        assert notes.warnings == [f"{C19 / name}: transparent parts are shown over white"]

    def test_half_transparent_blends(self, tmp_path: Path) -> None:
        Image.new("RGBA", (4, 4), (255, 0, 0, 128)).save(tmp_path / "a.png")
        pixels = read_image(tmp_path / "a.png", notes=Notes())
        assert np.abs(pixels.astype(int) - [255, 127, 127]).max() <= 1

    def test_opaque_alpha_is_silent(self, tmp_path: Path) -> None:
        Image.new("RGBA", (4, 4), (10, 20, 30, 255)).save(tmp_path / "a.png")
        notes = Notes()
        assert (read_image(tmp_path / "a.png", notes=notes) == [10, 20, 30]).all()
        assert notes.warnings == []

    def test_animation(self) -> None:
        notes = Notes()
        pixels = read_image(C19 / "animated_2f.gif", notes=notes)
        assert (pixels == 40).all()
        assert "animation of 2 pictures; only the first is used" in notes.warnings[0]

    def test_sixteen_bit_grey(self, tmp_path: Path) -> None:
        ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(4, 16)
        Image.fromarray(ramp).save(tmp_path / "a.png")
        pixels = read_image(tmp_path / "a.png", notes=Notes())
        assert np.array_equal(pixels[..., 1], np.rint(ramp / 257).astype(np.uint8))

    def test_exif_rotation(self, tmp_path: Path) -> None:
        stored = np.zeros((4, 8, 3), np.uint8)
        stored[:, :4] = 255  # left half white; shown turned clockwise it is the upper half
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
        notes = Notes()
        pixels = read_image(tmp_path / "a.png", notes=notes)
        assert notes.infos == [f"{tmp_path / 'a.png'}: turned upright as its EXIF data says"]
        assert pixels.shape == (8, 4, 3)
        assert (pixels[:4] == 255).all()
        assert (pixels[4:] == 0).all()

    @pytest.mark.parametrize("mode", ["1", "LA", "YCbCr"])
    def test_other_modes(self, tmp_path: Path, mode: str) -> None:
        path = tmp_path / ("a.jpg" if mode == "YCbCr" else "a.png")
        Image.new("L", (8, 8), 255).convert(mode).save(path)
        assert (read_image(path, notes=Notes()) >= 254).all()

    def test_float_picture_is_refused(self, tmp_path: Path) -> None:
        Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / "a.tiff")
        with pytest.raises(InputError, match=r"^[^(]* mode F has no known range\n  fix: save"):
            read_image(tmp_path / "a.tiff", notes=Notes())

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("truncated.jpg", "broken or cut short"),
            ("text_renamed.png", "not a picture"),
            ("zero_bytes.png", "the file is empty"),
        ],
    )
    def test_broken(self, name: str, text: str) -> None:
        with pytest.raises(InputError, match=text) as caught:
            read_image(C19 / name, notes=Notes())
        assert str(C19 / name) in str(caught.value)
        assert caught.value.exit_code == 2

    def test_bomb(self) -> None:
        started = time.perf_counter()
        with pytest.raises(
            InputError, match="too large: 3600000000 pixels, at most 178956970"
        ) as caught:
            read_image(C19 / "claims_60000x60000.png", notes=Notes())
        assert time.perf_counter() - started < 1
        assert "claims_60000x60000.png" in str(caught.value)

    def test_missing(self, tmp_path: Path) -> None:
        for path in (tmp_path / "no.png", tmp_path):
            with pytest.raises(MissingFile) as caught:
                read_image(path, notes=Notes())
            assert caught.value.exit_code == 3
