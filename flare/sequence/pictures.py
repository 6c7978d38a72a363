"""Decoding pictures, with errors that name the file."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from flare.utils.errors import DataError

MOST = 20_000_000
"""Pixels of a picture: a larger one is no file of these tasks."""


def read_picture(source: Path | bytes, mode: str, where: str) -> NDArray[np.uint8]:
    """(rows, columns) of a grey picture (mode "L"), (rows, columns, 3) of a coloured one ("RGB")."""
    try:
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=["PNG"]) as picture:
            if picture.width * picture.height > MOST:
                raise DataError(f"{where}: {picture.width} × {picture.height} pixels are no picture of this task")
            if picture.mode != mode:
                kind = {"L": "8-bit grey", "RGB": "8-bit colour"}[mode]
                raise DataError(f"{where}: the picture has mode {picture.mode}; {kind} is expected")
            return np.array(picture)
    except DataError:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, EOFError, ValueError) as error:
        raise DataError(f"{where}: no PNG picture, or only part of one ({error})") from None
