"""Files of pictures: what they may be called, what is overwritten, and how they say who made them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from hybridmpi.errors import UsageError
from hybridmpi.paths import require_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
MAKER = "hybridmpi plot"
"""What a picture's own description calls its maker: a picture that says so is overwritten by the next one."""


def require_picture(file: Path, option: str, force: bool = True, remedy: str = "") -> None:
    """Raise UsageError if `file`, which `option` names, could not be drawn in the end. Local."""
    if file.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{option} {file}: expected a name that ends in {', '.join(SUFFIXES)}")
    require_output(file, option, force, mark=MAKER.encode(), remedy=remedy)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"{option} needs matplotlib, which cannot be loaded ({error}): pip install 'hybridmpi[plot]' or pip "
            "install matplotlib"
        ) from error


def save(figure: Figure, file: Path, option: str, dpi: int) -> None:
    """Write a figure into `file`, which `option` names. Local. Raises UsageError if it cannot be written."""
    about = {".png": {"Software": MAKER}, ".svg": {"Creator": MAKER, "Date": None}, ".pdf": {"Creator": MAKER}}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # of a script that the font lacks: boxes show it
            figure.savefig(file, dpi=dpi, metadata=about[file.suffix.lower()])
    except OSError as error:
        raise UsageError(f"{option} {file}: cannot be written: {error.strerror}") from error
