"""Images of attributions as PNG, made with NumPy only."""

import base64
import struct
import zlib

import numpy as np

from rationale.pictures.colours import LOWERS, RAISES, rgb
from rationale.pictures.panels import Heat

_LEAST, _MOST = 240, 1024  # pixels of the longer side
_BRIGHT = 99.5  # percentile of |attribution| with the full colour; the maximum may be a single pixel
_PALE = 0.4  # contrast of the picture beneath
_LINE = 4  # ratio of sides from which pixels are not square


def full_colour(values: np.ndarray) -> float:
    """Return the |attribution| that is drawn in full colour."""
    sizes = np.abs(np.nan_to_num(values))
    return float(np.percentile(sizes, _BRIGHT)) or float(sizes.max(initial=0)) or 1.0


def heat_map(panel: Heat) -> np.ndarray:
    """Return pixels [H, W, 3]: red raises, blue lowers, over the paler picture or on white."""
    values = np.nan_to_num(panel.values)
    share = np.clip(np.abs(values) / full_colour(values), 0, 1)[..., None]
    colour = np.where(values[..., None] >= 0, rgb(RAISES), rgb(LOWERS))
    beneath = (
        np.full(values.shape, 255.0) if panel.picture is None else 255 - _PALE * 255 * (1 - panel.picture)
    )
    return _bytes(share * colour + (1 - share) * beneath[..., None])


def grey(picture: np.ndarray) -> np.ndarray:
    """Return pixels [H, W, 3] of a picture [H, W] from 0 to 1."""
    return _bytes(np.repeat(255 * picture[..., None], 3, axis=2))


def resize_picture(pixels: np.ndarray) -> np.ndarray:
    """Resize a picture: enlarge the pixels of a small one, and average those of a large one."""
    height, width = pixels.shape[:2]
    if max(height, width) > _MOST:
        step = -(-max(height, width) // _MOST)
        rows, columns = (np.arange(0, n, step) for n in (height, width))
        sums = np.add.reduceat(np.add.reduceat(pixels.astype(np.int64), rows, axis=0), columns, axis=1)
        counts = np.diff(np.append(rows, height))[:, None] * np.diff(np.append(columns, width))
        return _bytes(sums / counts[..., None])
    if max(height, width) > _LINE * min(height, width):
        tall, wide = (
            max(1, _LEAST // (1 if n >= max(height, width) else _LINE) // n) for n in (height, width)
        )
    else:
        tall = wide = max(1, -(-_LEAST // max(height, width)))
    return pixels.repeat(tall, axis=0).repeat(wide, axis=1)


def data_uri(pixels: np.ndarray) -> str:
    """Return pixels [H, W, 3] of bytes as a PNG in a data URI."""
    height, width = pixels.shape[:2]
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),  # 8 bits, RGB
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _bytes(pixels: np.ndarray) -> np.ndarray:
    return np.clip(np.round(pixels), 0, 255).astype(np.uint8)
