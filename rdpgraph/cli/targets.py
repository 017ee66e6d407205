"""Where answers are written: refused before anything runs, not after."""

import errno
import os
from pathlib import Path

from rdpgraph.errors import FileFormatError

PICTURES = (".png", ".svg", ".pdf")


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
    real = Path(os.path.realpath(target))
    if real.is_dir():
        raise _error(errno.EISDIR, target)
    if real.exists() and not real.is_file():
        return  # a pipe or a terminal
    if not real.parent.is_dir():
        raise _error(errno.ENOENT if not real.parent.exists() else errno.ENOTDIR, target)
    if not os.access(real.parent, os.W_OK | os.X_OK):
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


def _same(source: Path, target: Path) -> bool:
    return source.is_file() and os.path.samefile(source, target)


def _error(number: int, target: Path) -> OSError:
    return OSError(number, os.strerror(number), str(target))
