"""Text files, plain or gzipped: read with guards, written whole or not at all."""

import gzip
import os
import re
import secrets
import shutil
import zlib
from pathlib import Path
from typing import NoReturn, TypeAlias

from rdpgraph.errors import FileFormatError

PathLike: TypeAlias = str | os.PathLike[str]

LIMIT = 1 << 30
_GZIP = b"\x1f\x8b"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")


def fail(source: str, message: str) -> NoReturn:
    """Raise a `FileFormatError` of one line that names the file."""
    raise FileFormatError(" ".join(f"{source}: {message}".split()))


def shown(token: str, most: int = 40) -> str:
    """A token as an error message quotes it: escaped, and not longer than ``most``."""
    return repr(token) if len(token) <= most else f"{token[:most]!r}..."


def read_text(path: PathLike, *, limit: int = LIMIT) -> str:
    """The text of a file, decompressed where its first bytes are gzip's, whatever its name.

    Args:
        path: the file.
        limit: the most bytes of text that are read, so that a small archive cannot fill memory.

    Raises:
        FileFormatError: not text, a damaged archive, or more than ``limit`` bytes.
        OSError: the file cannot be opened.
    """
    source = str(path)
    with open(path, "rb") as file:
        zipped = file.read(2) == _GZIP
        file.seek(0)
        try:
            data = (gzip.GzipFile(fileobj=file) if zipped else file).read(limit + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            fail(source, f"a damaged gzip archive ({error}); expected a whole one.")
    if len(data) > limit:
        fail(source, f"expected at most {limit} bytes of text; it holds more. Raise `limit`.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    text = text.removesuffix("\x1a")  # the end of a file on DOS
    noise = _CONTROL.search(text)
    if noise is not None:
        line = text.count("\n", 0, noise.start()) + 1
        fail(source, f"line {line}: expected text, got the control character {noise[0]!r}.")
    return text


def write_text_atomically(path: PathLike, text: str) -> None:
    """Write a file so that its name holds the old content or the new one, never a part.

    The text goes to a new file in the same folder, which then takes the name. A name that ends
    in ``.gz`` is compressed, to the same bytes each time.
    """
    target = Path(os.path.realpath(path))
    data = text.encode()
    if str(path).endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    if target.exists() and not target.is_file():
        target.write_bytes(data)  # a pipe or a terminal: there is nothing to replace
        return
    scratch = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(scratch, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, scratch)
        os.replace(scratch, target)
    except OSError as error:
        if str(error.filename) != str(scratch):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None  # the name asked for
    finally:
        scratch.unlink(missing_ok=True)
