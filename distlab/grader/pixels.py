"""Makes a learner's picture anew, so that nothing but its pixels comes through.

    picture = only_pixels(data)          # a PNG again, or InvalidArgument says why not

A PNG is read strictly, chunk by chunk, and of them only four kinds are written again: size,
palette, transparency and pixels. Texts, profiles, times and whatever stands behind the end stay
behind. The pixels are unpacked to exactly as many bytes as the size asks for and packed again; each
row keeps its filter, for whatever follows one of the five filters is pixels and nothing else.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from distlab.errors import InvalidArgument

MOST_BYTES = 5_000_000
MOST_PIXELS = 8_000_000
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIZE = struct.Struct("!IIBBBBB")
_LARGEST_SIDE = 20_000
# By colour type: values for each pixel, and how many bits each may have.
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PALETTE = 3
_TRANSPARENT_BYTES = {0: 2, 2: 6}  # of one colour; a palette has one for each entry
_FILTERS = 5
_KNOWN = (b"IHDR", b"PLTE", b"IDAT", b"IEND")  # a kind in lower case may be left out


def only_pixels(data: bytes) -> bytes:
    """Returns a picture that shows what another one shows, and holds nothing else.

    Args:
        data: A PNG file.

    Raises:
        InvalidArgument: It is none, it is broken, or too large: what was found.
    """
    if len(data) > MOST_BYTES:
        raise _refused(f"{len(data):,} bytes; at most {MOST_BYTES:,} are read")
    if not data.startswith(_SIGNATURE):
        raise _refused("something else than a PNG")
    chunks = list(_chunks(data))
    kinds = [kind for kind, _ in chunks]
    if kinds[:1] != [b"IHDR"] or kinds[-1] != b"IEND" or kinds.count(b"IHDR") > 1:
        raise _refused("a broken PNG: it does not begin and end as one")
    if unknown := [kind for kind in kinds if kind[:1].isupper() and kind not in _KNOWN]:
        raise _refused(f"a PNG with a part {unknown[0]!r} that nobody knows")
    size = chunks[0][1]
    width, height, depth, colours = _checked(size)
    palette = _only(chunks, b"PLTE") if colours == _PALETTE else b""
    if colours == _PALETTE and (len(palette) % 3 or not 3 <= len(palette) <= 3 * 2**depth):
        raise _refused("a broken PNG: its palette")
    clear = _only(chunks, b"tRNS") if colours in (0, 2, _PALETTE) else b""
    most = _TRANSPARENT_BYTES.get(colours, len(palette) // 3)
    if len(clear) > most or (clear and colours != _PALETTE and len(clear) < most):
        raise _refused("a broken PNG: its transparency")
    row = 1 + (width * _CHANNELS[colours] * depth + 7) // 8
    packed = b"".join(content for kind, content in chunks if kind == b"IDAT")
    pixels = _unpacked(packed, row * height)
    if max(pixels[::row]) >= _FILTERS:
        raise _refused("a broken PNG: a row with a filter that nobody knows")
    parts = [
        (b"IHDR", size),
        (b"PLTE", palette),
        (b"tRNS", clear),
        (b"IDAT", zlib.compress(pixels)),
    ]
    written = b"".join(_chunk(kind, content) for kind, content in parts if content)
    return _SIGNATURE + written + _chunk(b"IEND", b"")


def _refused(found: str) -> InvalidArgument:
    return InvalidArgument(
        asked="show a picture", found=found, do="save it as a PNG, as matplotlib shows one"
    )


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the kind and the content of each chunk, up to the end."""
    at = len(_SIGNATURE)
    while at < len(data):
        length = int.from_bytes(data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        check = data[at + 8 + length : at + 12 + length]
        if len(check) < 4 or zlib.crc32(kind + content) != int.from_bytes(check):
            raise _refused("a broken PNG: a part is cut off or damaged")
        yield kind, content
        at += 12 + length
        if kind == b"IEND":
            return


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return len(content).to_bytes(4) + kind + content + check.to_bytes(4)


def _checked(size: bytes) -> tuple[int, int, int, int]:
    """Returns width, height, bits and colour type of a header that a browser would take."""
    if len(size) != _SIZE.size:
        raise _refused("a broken PNG: its size")
    width, height, depth, colours, packing, filtering, interlaced = _SIZE.unpack(size)
    if depth not in _DEPTHS.get(colours, ()) or packing or filtering:
        raise _refused("a broken PNG: its colours")
    if interlaced:
        raise _refused("an interlaced PNG")
    if not (0 < width <= _LARGEST_SIDE and 0 < height <= _LARGEST_SIDE):
        raise _refused(f"a picture of {width:,} x {height:,} pixels")
    if width * height > MOST_PIXELS:
        raise _refused(f"{width:,} x {height:,} pixels; at most {MOST_PIXELS:,} are shown")
    return width, height, depth, colours


def _only(chunks: list[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    """Returns the content of a part that may be there once, before the pixels; b"" for none."""
    kinds = [kind for kind, _ in chunks]
    if kinds.count(wanted) > 1 or (wanted in kinds and b"IDAT" in kinds[: kinds.index(wanted)]):
        raise _refused(f"a broken PNG: {wanted.decode()} in a wrong place")
    return dict(chunks).get(wanted, b"")


def _unpacked(packed: bytes, length: int) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        pixels = unpacking.decompress(packed, length)
        more = unpacking.decompress(unpacking.unconsumed_tail, 1)
    except zlib.error as problem:
        raise _refused(f"a broken PNG: its pixels ({problem})") from problem
    if len(pixels) != length or more or not unpacking.eof:
        raise _refused("a broken PNG: another number of pixels than its size says")
    return pixels
