"""Files of text and of tensors: read with guards, written whole or not at all."""

import codecs
import errno
import gzip
import importlib
import importlib.util
import json
import os
import re
import secrets
import select
import stat
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, NoReturn, Self, TypeAlias

from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.errors import FileFormatError, ModelError, UnsupportedError
from rdpgraph.model.names import CODEC

WAIT = 60.0
"""Default limit of a pipe's silence, in seconds."""
_STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
PathLike: TypeAlias = str | os.PathLike[str]
Bytes: TypeAlias = bytes | bytearray

LIMIT = 1 << 29
"""Default maximum of bytes of text, 512 MiB."""
_GZIP = b"\x1f\x8b"
_WITH_HEADER = 31  # zlib's wbits of gzip archives
_CONTROLS = bytes({*range(0x20), 0x7F} - set(b"\t\n\f\r"))
_END = b"\x1a"  # end of file on DOS
_BOM = b"\xef\xbb\xbf"
_HEAD = 1024  # bytes that tell the encoding
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
    (_BOM, "utf-8-sig"), (b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"),
)  # fmt: skip
"""How texts of more bytes a character begin: byte order marks, and XML without one."""
_DECLARED = re.compile(rb"(\s*<\?xml\s[^>]*?encoding\s*=\s*[\"'])([A-Za-z0-9._:-]+)")
BLANK = rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
"""Pattern of Unicode blanks beyond ASCII, in UTF-8."""
BLANKS = re.compile(BLANK)


class Source:
    """An open file, pipe or standard input (``-``), read from front to end; ``head`` is two bytes.

    A pipe without a writer, or with a silent one, raises TimeoutError after ``wait`` seconds.
    """

    def __init__(self, path: str | os.PathLike[str], wait: float = WAIT) -> None:
        if not isinstance(path, str | os.PathLike):
            raise ModelError(f"A file to read needs a path, as 'model.uai'; got {path!r:.80}.")
        self._name, self._wait = str(path), wait
        if self._name in _STANDARD_INPUT:
            self._file = os.dup(0)  # also a socket, which has no name
        else:  # a blocking open of a pipe could wait for its writer forever
            flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            self._file = os.open(path, flags)
        try:
            if stat.S_ISDIR(os.fstat(self._file).st_mode):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), self._name)
            self._waits = not stat.S_ISREG(os.fstat(self._file).st_mode)
            self._ahead = b""
            while len(self._ahead) < 2 and (byte := self._next(2 - len(self._ahead))):
                self._ahead += byte
        except BaseException:
            os.close(self._file)
            raise
        self.head = self._ahead

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def read(self, most: int) -> bytes:
        """Read up to ``most`` bytes; none at the end."""
        ahead, self._ahead = self._ahead[:most], self._ahead[most:]
        return ahead or self._next(most)

    def _next(self, most: int) -> bytes:
        until = monotonic() + self._wait
        while True:
            if self._waits and not _is_ready(self._file, select.POLLIN, until):
                message = f"no data arrived for {self._wait:g} seconds (is a process writing?)"
                raise TimeoutError(errno.ETIMEDOUT, message, self._name)
            try:
                return os.read(self._file, most)
            except BlockingIOError:
                continue
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._name) from None


def pour(path: str | os.PathLike[str], data: bytes, wait: float = WAIT) -> None:
    """Write into a pipe or a terminal; TimeoutError where nobody reads for ``wait`` seconds."""
    late = TimeoutError(
        errno.ETIMEDOUT, f"no process read from this pipe for {wait:g} seconds", str(path)
    )
    until, left, file = monotonic() + wait, memoryview(data), -1
    while file < 0:
        try:  # a blocking open could wait for a reader forever
            file = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if monotonic() > until:
                raise late from None
            sleep(0.02)
    try:
        while left:
            if not _is_ready(file, select.POLLOUT, until):
                raise late
            try:
                left = left[os.write(file, left) :]
                until = monotonic() + wait
            except BlockingIOError:
                continue
    finally:
        os.close(file)


def _is_ready(file: int, event: int, until: float) -> bool:
    """Wait until a file can be read or written; False if that is too late."""
    poll = select.poll()
    poll.register(file, event)
    return bool(poll.poll(min(1000 * max(until - monotonic(), 0.0), 2.0**31 - 1)))


def fail(source: str, message: str) -> NoReturn:
    """Raise a `FileFormatError` of one line that names the file."""
    raise FileFormatError(f"{source}: {message}")


def shown(token: str, most: int = 40) -> str:
    """Return a token for an error message, escaped and cut to ``most`` characters."""
    return repr(token) if len(token) <= most else f"{token[:most]!r}..."


def read_bytes(
    path: PathLike, *, limit: int = LIMIT, wait: float = WAIT, encoding: str | None = None
) -> bytearray:
    """The bytes of a text file, unpacked if they begin as gzip's do; control codes are refused.

    Text of another encoding becomes UTF-8: of the one that is given, or else of one that the first
    bytes say, by a byte order mark of UTF-16 or UTF-32 or by an XML declaration.

    Raises:
        FileFormatError: not text, a damaged archive, or more than ``limit`` bytes.
        ModelError: no such encoding.
        OSError: the file cannot be read, or a pipe is silent for too long.
    """
    source = str(path)
    if encoding is not None:
        _require_encoding(encoding)
    whole = bytearray()
    ended = False
    with Source(path, wait) as file:
        unpacked = _Unpacked(file) if file.head == _GZIP else file
        try:
            recoded = _Recoded(unpacked, source, encoding)
            while piece := recoded.read(tuning.UNPACKED):
                if len(whole) + len(piece) > limit:
                    fail(
                        source,
                        f"expected at most {limit} bytes of text; it holds more. Raise the limit "
                        "(`limit`, or --limit 2GiB).",
                    )
                text = piece.removesuffix(_END)
                if ended or len(text.translate(None, _CONTROLS)) < len(text):
                    _fail_at_control(source, whole, _END + piece if ended else piece)
                ended = len(text) < len(piece)
                whole += text
        except (EOFError, zlib.error) as error:
            fail(source, f"a damaged gzip archive ({error}); expected a whole one.")
    if whole.startswith(_BOM):  # that of an encoding that was given
        del whole[: len(_BOM)]
    return whole


def _require_encoding(encoding: str) -> None:
    """Refuse a name that is no encoding of text."""
    try:
        "".encode(encoding)
    except (LookupError, TypeError, UnicodeError):
        raise ModelError(
            f"There is no encoding {encoding!r:.80}; give one that Python knows, as 'utf-16' or "
            "'cp1252'."
        ) from None


def declared_encoding(head: bytes) -> str | None:
    """Return the encoding that a byte order mark or an XML declaration names; None for UTF-8."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    declared = _DECLARED.match(head)
    # Bytes that can be read as ASCII are of no encoding by pairs of bytes, whatever they say.
    if declared is None or declared[2].lower().startswith(
        (b"utf", b"ucs", b"iso-10646", b"unicode")
    ):
        return None
    return declared[2].decode()


class _Recoded:
    """A reader of a text's pieces in UTF-8, of whatever encoding they are."""

    def __init__(self, file: "Source | _Unpacked", source: str, encoding: str | None) -> None:
        self._file, self._source, self._first = file, source, True
        self._head = b""
        while len(self._head) < _HEAD and (piece := file.read(tuning.UNPACKED)):
            self._head += piece
        self._encoding = encoding or declared_encoding(self._head[:_HEAD])
        self._decoder: codecs.IncrementalDecoder | None = None
        if self._encoding is not None:
            try:
                self._decoder = codecs.getincrementaldecoder(self._encoding)()
            except LookupError:
                fail(
                    source,
                    f"the file declares the encoding {shown(self._encoding)}, which Python does "
                    "not know; name a known one (`encoding`, or --encoding cp1252).",
                )

    def read(self, most: int) -> bytes:
        """Read some bytes; none at the end."""
        while True:
            piece, self._head = self._head or self._file.read(most), b""
            if self._decoder is None:
                return piece
            try:
                text = self._decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                byte = f"{error.object[error.start]:#04x}"
                fail(
                    self._source,
                    f"expected text in {self._encoding}; got the byte {byte}. Name its encoding "
                    "(`encoding`, or --encoding cp1252).",
                )
            if text or not piece:
                data = text.encode(*CODEC)
                declared, self._first = _DECLARED.match(data) if self._first else None, False
                return data if declared is None else declared[1] + b"utf-8" + data[declared.end() :]


class _Unpacked:
    """A reader of a gzip archive's text, in pieces."""

    def __init__(self, file: Source) -> None:
        self._file, self._ahead = file, b""
        self._member: Any = None

    def read(self, most: int) -> bytes:
        """Read up to ``most`` bytes; none at the end."""
        while True:
            self._ahead = self._ahead or self._file.read(most)
            if self._member is None:
                self._ahead = self._ahead.lstrip(b"\0")  # padding between members
                self._member = zlib.decompressobj(_WITH_HEADER) if self._ahead else None
            if not self._ahead:
                if self._member is not None:
                    raise EOFError("it ends before its end marker")
                if not (ahead := self._file.read(most)):
                    return b""
                self._ahead = ahead
                continue
            text = self._member.decompress(self._ahead, most)
            self._ahead = self._member.unconsumed_tail or self._member.unused_data
            if self._member.eof:
                self._member = None
            if text:
                return text


def read_text(path: PathLike, *, limit: int = LIMIT, wait: float = WAIT) -> str:
    """The text of a file or standard input, UTF-8 or else Latin-1."""
    return decoded(read_bytes(path, limit=limit, wait=wait))


def decoded(text: str | Bytes) -> str:
    """Decode bytes of the encoding that they say, or else UTF-8, or else Latin-1."""
    known = text if isinstance(text, str) else text.decode(detected_encoding(text))
    return known.removeprefix("\ufeff")


def utf8(text: str | Bytes) -> Bytes:
    """A text in UTF-8, without a copy where it is; halves of surrogate pairs are kept."""
    if isinstance(text, str):
        return text.removeprefix("\ufeff").encode(*CODEC)
    plain = detected_encoding(text) == "utf-8" and not text.startswith(_BOM)
    return text if plain else decoded(text).encode()


def detected_encoding(data: Bytes) -> str:
    """The encoding that bytes say, or else UTF-8, or else Latin-1, tested piece by piece."""
    said = declared_encoding(bytes(data[:_HEAD]))
    step = tuning.UNPACKED // 16
    for encoding in filter(None, (said, "utf-8")):
        with suppress(LookupError, UnicodeDecodeError):
            decoder = codecs.getincrementaldecoder(encoding)()
            for start in range(0, len(data), step):
                decoder.decode(data[start : start + step])
            decoder.decode(b"", final=True)
            return encoding
    return "latin-1"


def write_text_atomically(path: PathLike, text: str, *, wait: float = WAIT) -> None:
    """Write a file so that its name holds the old content or the new one, never a part.

    A name that ends in ``.gz`` is compressed, to the same bytes each time. A pipe whose reader does
    not come, or does not read on, is waited for no longer than ``wait`` seconds.

    Raises:
        OSError: the file cannot be written; TimeoutError: nobody reads the pipe.
        UnsupportedError: a character that UTF-8 lacks.
    """
    data = encoded(text, str(path))
    packed = gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data
    write_bytes_atomically(path, packed, wait=wait)


def encoded(text: str, source: str) -> bytes:
    """The text in UTF-8; refuses halves of surrogate pairs."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedError(
            f"{source}: a name holds {text[error.start]!r}, which UTF-8 lacks. Rename it."
        ) from None


def write_bytes_atomically(path: PathLike, data: bytes, *, wait: float = WAIT) -> None:
    """Write a file so that its name holds the old content or the new one, never a part.

    The bytes go to a new file in the same folder, which then takes the name and keeps the old mode;
    a link stays a link. Pipes and terminals are written to directly.
    """
    mode = mode_of(path)
    if mode is not None and not stat.S_ISREG(mode):
        pour(path, data, wait)
        return
    target = Path(os.path.realpath(path))
    scratch = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        least = 0o666 if mode is None else stat.S_IMODE(mode)
        with open(scratch, "xb", opener=lambda name, how: os.open(name, how, least)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            scratch.chmod(stat.S_IMODE(mode))
        os.replace(scratch, target)
    except OSError as error:
        if str(error.filename) != str(scratch):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None  # the requested name
    finally:
        scratch.unlink(missing_ok=True)


def mode_of(path: PathLike) -> int | None:
    """The mode of a file, or None if it does not exist; OSError for links that form a cycle."""
    with suppress(FileNotFoundError):
        return os.stat(path).st_mode
    return None


def _fail_at_control(source: str, before: Bytes, piece: bytes) -> NoReturn:
    """Raise an error about the first control character of a piece."""
    at = next(at for at, byte in enumerate(piece) if byte in _CONTROLS)
    line = before.count(b"\n") + piece.count(b"\n", 0, at) + 1
    hint = "" if piece[at] else " If it is UTF-16, say so (`encoding`, or --encoding utf-16-le)."
    fail(source, f"line {line}: expected text, got the control character {chr(piece[at])!r}.{hint}")


def write_tensors(path: PathLike, tensors: Mapping[str, Tensor], texts: dict[str, str]) -> None:
    """Write tensors by name, with texts as metadata, to a file of safetensors, atomically."""
    copies = {name: part.detach().clone().contiguous() for name, part in tensors.items()}
    write_bytes_atomically(path, _safetensors().save(copies, texts))


def read_tensors(path: PathLike, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a file; errors say what it should be."""
    library, data = _safetensors(), Path(path).read_bytes()
    try:
        size = int.from_bytes(data[:8], "little")
        return library.load(data), json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except Exception as error:  # the library defines an exception
        raise FileFormatError(f"{path}: not {what}: {error}") from None


def require_like(path: PathLike, name: str, stored: Tensor | None, like: Tensor) -> Tensor:
    """The stored tensor, in the type and on the device of another of its shape."""
    if stored is None or stored.shape != like.shape:
        shape = None if stored is None else tuple(stored.shape)
        raise FileFormatError(
            f"{path}: expected {name} of shape {tuple(like.shape)}; got {shape}. Load it as "
            "what it was saved from."
        )
    return stored.to(like)


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError:
        raise UnsupportedError(
            "Files of tensors need safetensors, which is not installed: pip install "
            "'rdpgraph[safetensors]'; what they hold can be pickled too."
        ) from None


def downloaded(folder: PathLike) -> PathLike:
    """A folder that is here, or the copy of the repository of that name."""
    if Path(folder).exists() or not importlib.util.find_spec("huggingface_hub"):
        return folder
    try:
        return importlib.import_module("huggingface_hub").snapshot_download(str(folder))
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{folder}: neither a folder nor a model on the hub: {_line(error)}"
        ) from None


def upload(
    write: Callable[[str], None], name: str, *, token: str | None, private: bool | None, note: str
) -> str:
    """The address of a commit that has the files which a function writes to a folder."""
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        raise UnsupportedError(
            "push_to_hub needs huggingface_hub, which is not installed: pip install huggingface_hub"
        ) from None
    with TemporaryDirectory() as folder:
        write(folder)
        try:
            api = hub.HfApi(token=token)
            made = api.create_repo(name, private=private, exist_ok=True)
            sent = api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=note)
        except (OSError, ValueError) as error:  # no token or access, or no name of a repository
            raise UnsupportedError(f"{name}: the hub refused the model: {_line(error)}") from None
    return str(sent.commit_url)


def _line(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.200}"
