"""Of a learner's picture only the pixels come through, and what would be too much does not."""

import io
import random
import struct
import zlib

import pytest
from PIL import Image, PngImagePlugin

from distlab import errors
from distlab.grader import pixels
from distlab.grader.pixels import only_pixels

SIGNATURE = b"\x89PNG\r\n\x1a\n"
EVIL = b"<script>alert(1)</script>"


def chunk(kind, content=b""):
    check = struct.pack("!I", zlib.crc32(kind + content))
    return struct.pack("!I", len(content)) + kind + content + check


def header(width=2, height=2, depth=8, colours=2, packing=0, filtering=0, interlaced=0):
    return struct.pack("!IIBBBBB", width, height, depth, colours, packing, filtering, interlaced)


ROWS = b"\x00rgbrgb\x01RGBRGB"


def png(*more, size=None, rows=ROWS, end=b"", before=b""):
    size = header() if size is None else size
    body = before + chunk(b"IDAT", zlib.compress(rows)) + b"".join(more)
    return SIGNATURE + chunk(b"IHDR", size) + body + chunk(b"IEND") + end


def saved(mode, size=(40, 30), **options):
    draw = random.Random(1)
    picture = Image.new(mode, size)
    most = {"1": 1, "P": 2, "I;16": 60_000}.get(mode, 255)
    bands = len(picture.getbands())
    for x in range(size[0]):
        for y in range(size[1]):
            colour = tuple(draw.randint(0, most) for _ in range(bands))
            picture.putpixel((x, y), colour if bands > 1 else colour[0])
    if mode == "P":
        picture.putpalette([0, 0, 0, 255, 0, 0, 0, 0, 255])
    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()


def shown(data):
    picture = Image.open(io.BytesIO(data))
    picture.load()
    return picture.convert("RGBA")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_picture_shows_the_same_afterwards(mode):
    data = saved(mode)
    assert shown(only_pixels(data)).tobytes() == shown(data).tobytes()


def test_what_is_transparent_stays_so():
    for data in (saved("P", transparency=1), saved("RGB", transparency=(1, 2, 3))):
        assert shown(only_pixels(data)).tobytes() == shown(data).tobytes()


def test_pictures_of_matplotlib_come_through():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    figure.subplots().plot([1, 3, 2])
    file = io.BytesIO()
    figure.savefig(file, format="png")
    assert shown(only_pixels(file.getvalue())).tobytes() == shown(file.getvalue()).tobytes()


def test_texts_times_and_profiles_stay_behind():
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", EVIL.decode())
    info.add_itxt("More", EVIL.decode(), zip=True)
    data = saved("RGB", pnginfo=info, icc_profile=EVIL, dpi=(72, 72), exif=EVIL)
    assert EVIL in data
    clean = only_pixels(data)
    kinds, at = [], len(SIGNATURE)
    while at < len(clean):
        kinds.append(clean[at + 4 : at + 8])
        at += 12 + int.from_bytes(clean[at : at + 4], "big")
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]
    assert EVIL not in clean and shown(clean).tobytes() == shown(data).tobytes()


def test_what_stands_behind_the_end_stays_behind():
    assert only_pixels(png(end=EVIL)) == only_pixels(png())


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "something else than a PNG"),
        (b"\xff\xd8\xff\xe0 a photograph", "something else than a PNG"),
        (b"<svg onload='alert(1)'/>", "something else than a PNG"),
        (SIGNATURE, "a broken PNG: it does not begin and end as one"),
        (png()[:-1], "a broken PNG: a part is cut off or damaged"),
        (png()[:-12], "a broken PNG: it does not begin and end as one"),
        (png().replace(b"IDAT", b"IDAt"), "a broken PNG: a part is cut off or damaged"),
        (SIGNATURE + chunk(b"IDAT") + chunk(b"IEND"), "a broken PNG: it does not begin"),
        (png(chunk(b"IHDR", header())), "a broken PNG: it does not begin and end as one"),
        (png(chunk(b"EVIL")), "a PNG with a part b'EVIL' that nobody knows"),
        (png(size=b"short"), "a broken PNG: its size"),
        (png(size=header(depth=4)), "a broken PNG: its colours"),
        (png(size=header(colours=5)), "a broken PNG: its colours"),
        (png(size=header(packing=1)), "a broken PNG: its colours"),
        (png(size=header(interlaced=1)), "an interlaced PNG"),
        (png(size=header(width=0)), "a picture of 0 x 2 pixels"),
        (png(size=header(width=2**31)), "a picture of 2,147,483,648 x 2 pixels"),
        (png(size=header(9000, 9000)), "9,000 x 9,000 pixels; at most 8,000,000 are shown"),
        (png(rows=ROWS[:-1]), "a broken PNG: another number of pixels than its size says"),
        (png(rows=ROWS + b"x"), "a broken PNG: another number of pixels than its size says"),
        (png(rows=b"\x05" + ROWS[1:]), "a broken PNG: a row with a filter that nobody knows"),
        (
            SIGNATURE + chunk(b"IHDR", header()) + chunk(b"IDAT", EVIL) + chunk(b"IEND"),
            "a broken PNG: its pixels (",
        ),
        (png(size=header(colours=3), rows=b"\0\0\0" * 2), "a broken PNG: its palette"),
        (png(before=chunk(b"tRNS", b"1234567")), "a broken PNG: its transparency"),
        (png(chunk(b"tRNS", b"123456")), "a broken PNG: tRNS in a wrong place"),
    ],
)
def test_what_is_no_whole_png_is_told(data, found):
    with pytest.raises(errors.InvalidArgument) as caught:
        only_pixels(data)
    assert caught.value.found.startswith(found)


def test_a_bomb_is_not_unpacked(monkeypatch):
    unpacked = []
    real = zlib.decompressobj

    class Counting:
        def __init__(self):
            self._real = real()

        def __getattr__(self, name):
            return getattr(self._real, name)

        def decompress(self, data, most):
            unpacked.append(most)
            return self._real.decompress(data, most)

    monkeypatch.setattr(pixels.zlib, "decompressobj", Counting)
    with pytest.raises(errors.InvalidArgument, match="another number of pixels"):
        only_pixels(png(rows=bytes(50_000_000)))
    assert sum(unpacked) == len(ROWS) + 1


def test_a_file_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(pixels, "MOST_BYTES", 10)
    with pytest.raises(errors.InvalidArgument, match="bytes; at most 10 are read"):
        only_pixels(png())


def test_a_damaged_picture_is_explained_or_can_be_shown():
    shows = 0
    for seed in range(400):
        draw = random.Random(seed)

        def damaged(content, draw=draw):
            content = bytearray(content)
            if draw.random() < 0.3:
                at = draw.randrange(len(content))
                content[at : at + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
            return bytes(content)

        palette = chunk(b"PLTE", damaged(b"rgb" * 4)) + chunk(b"tRNS", damaged(b"\0\xff"))
        size = damaged(header(depth=draw.choice([2, 8]), colours=3))
        data = png(size=size, before=palette, rows=damaged(b"\0\1\2" * 2))
        try:
            clean = only_pixels(data)
        except errors.InvalidArgument:
            continue
        shown(clean)
        shows += 1
    assert shows > 20
