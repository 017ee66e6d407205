"""Where answers are written: refused before anything runs, not after."""

import errno
import os
import stat
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

from rdpgraph.errors import FileFormatError
from rdpgraph.io.text import mode_of, write_bytes_atomically

PICTURES = (".png", ".svg", ".pdf")
_MOST_DOTS = 8_000


def checked_target(target: Path | None, *sources: Path | None) -> None:
    """Refuse a file to write that is one that is read, or is in no folder to write to.

    Raises:
        FileFormatError: it is one of the sources.
        OSError: it is a folder, or its folder does not exist or takes no files.
    """
    if target is None:
        return
    for source in sources:
        if source is not None and source.exists() and target.exists() and _same(source, target):
            raise FileFormatError(f"{target}: this file is read; write to another one.")
    mode = mode_of(target)
    if mode is not None and not stat.S_ISREG(mode):
        if stat.S_ISDIR(mode):
            raise _error(errno.EISDIR, target)
        return  # a pipe or a terminal
    folder = Path(os.path.realpath(target)).parent
    if not folder.is_dir():
        raise _error(errno.ENOENT if not folder.exists() else errno.ENOTDIR, target)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _error(errno.EACCES, target)


def checked_picture(target: Path | None, *sources: Path | None, output: Path | None = None) -> None:
    """The same of a picture, whose name must say its format, beside another output.

    Raises:
        FileFormatError: the name's suffix is no picture format, or as `checked_target`.
        OSError: as `checked_target`.
    """
    if target is not None and target.suffix.lower() not in PICTURES:
        raise FileFormatError(
            f"{target}: a picture's name ends in {', '.join(PICTURES)}; got {target.suffix!r}."
        )
    checked_target(target, *sources)
    if target is not None and output is not None and target.absolute() == output.absolute():
        raise FileFormatError(f"{target}: this file is already an output; name another one.")


def save_picture(figure: Any, target: Path) -> None:
    """Write a picture of matplotlib to a name that ends in a format's, a box for what no font has.

    A side has 150 dots an inch, and 8,000 of them at most.
    """
    dots = min(150.0, _MOST_DOTS / max(figure.get_size_inches()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(drawn := BytesIO(), format=target.suffix[1:].lower(), dpi=dots)
    write_bytes_atomically(target, drawn.getvalue())


def _same(source: Path, target: Path) -> bool:
    return source.is_file() and os.path.samefile(source, target)


def _error(number: int, target: Path) -> OSError:
    return OSError(number, os.strerror(number), str(target))
