"""Files as such: the right reader, guards, and writing whole or not at all."""

import gzip
import os
import stat

import pytest
import torch

from rdpgraph import Factor, FactorGraph, Table, Variable, read, write
from rdpgraph.errors import UnsupportedError
from tests.io.helpers import refused, same_graph

UAI = "MARKOV 1 2 1 1 0 2 0.25 0.75"
BIF = "variable x { type discrete [2] { a, b }; } probability (x) { table 0.25, 0.75; }"


def graph():
    table = Table(torch.tensor([0.25, 0.75], dtype=torch.float64).log())
    return FactorGraph([Factor((Variable("x", ("a", "b")),), table)])


@pytest.mark.parametrize("name", ["m.uai", "m.uai.gz", "m.bif", "m.bif.gz", "M.BIF", "M.UAI.gz"])
def test_the_name_says_the_format(tmp_path, name):
    write(graph(), tmp_path / name)
    same_graph(read(tmp_path / name), graph(), names=False)
    same_graph(read(str(tmp_path / name)), graph(), names=False)


@pytest.mark.parametrize("text", [UAI, f"# c\n{UAI}", BIF, f"/* MARKOV */ // x\n{BIF}"])
@pytest.mark.parametrize("pack", [str.encode, lambda text: gzip.compress(text.encode())])
def test_other_names_are_read_by_content(tmp_path, text, pack):
    (tmp_path / "model").write_bytes(pack(text))
    same_graph(read(tmp_path / "model"), graph(), names=False)


def test_dtype_is_passed_on(tmp_path):
    for name, text in (("m.uai", UAI), ("m.bif", BIF), ("m", UAI)):
        (tmp_path / name).write_text(text)
        assert read(tmp_path / name, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize(
    "text", ["", "hello", "3 4 5", "/* open", "/**/" * 100_000, "\n" * 100_000]
)
def test_unknown_content(tmp_path, text):
    (tmp_path / "model.txt").write_text(text)
    refused(lambda: read(tmp_path / "model.txt"), "model.txt", "expected a UAI file")


@pytest.mark.parametrize("name", ["m", "m.uai", "m.uai.gz", "m.bif", "m.bif.gz"])
def test_binary_noise(tmp_path, name):
    generator = torch.Generator().manual_seed(5)
    for size in (1, 2, 10, 1000, 100_000):
        noise = torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)
        for head in (b"", b"\x1f\x8b", b"\x1f\x8b\x08\x00", b"MARKOV 1 2 ", b"\xff\xfe"):
            (tmp_path / name).write_bytes(head + bytes(noise.tolist()))
            refused(lambda: read(tmp_path / name), str(tmp_path / name))


def test_a_cut_archive(tmp_path):
    whole = gzip.compress(UAI.encode() * 20)
    for count in (2, 5, 12, len(whole) // 2, len(whole) - 1):
        (tmp_path / "m.uai.gz").write_bytes(whole[:count])
        refused(lambda: read(tmp_path / "m.uai.gz"), "gzip")


def test_a_flipped_archive(tmp_path):
    whole = bytearray(gzip.compress(UAI.encode() * 20))
    whole[len(whole) // 2] ^= 0xFF
    (tmp_path / "m.uai.gz").write_bytes(whole)
    refused(lambda: read(tmp_path / "m.uai.gz"))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_more_text_than_the_limit(tmp_path, pack):
    (tmp_path / "m.uai").write_bytes(pack(UAI.ljust(1001).encode()))
    same_graph(read(tmp_path / "m.uai", limit=1001), graph(), names=False)
    refused(lambda: read(tmp_path / "m.uai", limit=1000), "1000 bytes", "limit")


def test_encodings(tmp_path):
    path = tmp_path / "m.bif"
    for encoding in ("utf-8", "utf-8-sig", "latin-1"):
        path.write_bytes(BIF.replace("{ a,", "{ été,").encode(encoding))
        assert read(path).variables[0].states == ("été", "b")
    path.write_bytes(BIF.encode("utf-16-le"))  # without a byte order mark
    refused(lambda: read(path), "UTF-16")
    path.write_bytes(BIF.encode() + b"\x1a")
    same_graph(read(path), graph())


def test_a_missing_file_stays_what_it_is(tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "m.uai")


def test_writing_another_format(tmp_path):
    with pytest.raises(UnsupportedError, match=r"m\.txt.*\.uai"):
        write(graph(), tmp_path / "m.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.uai"
    path.write_text("old")

    def broken(*names):
        raise OSError("no room")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="no room"):
        write(graph(), path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["m.uai"]


def test_an_unwritable_model_leaves_the_old_file(tmp_path):
    path = tmp_path / "m.bif"
    path.write_text("old")
    with pytest.raises(UnsupportedError):
        write(FactorGraph([], variables=[Variable("x", 2)]), path)
    assert path.read_text() == "old"


def test_writing_keeps_the_mode_and_the_link(tmp_path):
    path, link = tmp_path / "m.uai", tmp_path / "link.uai"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write(graph(), link)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    same_graph(read(path), graph(), names=False)


def test_links_to_each_other_are_refused_and_stay(tmp_path):
    (tmp_path / "one.uai").symlink_to("other.uai")
    (tmp_path / "other.uai").symlink_to("one.uai")
    with pytest.raises(OSError, match="symbolic links") as caught:
        write(graph(), tmp_path / "one.uai")
    assert caught.value.filename == str(tmp_path / "one.uai")
    assert (tmp_path / "one.uai").is_symlink()


def test_what_is_written_is_at_no_time_for_more_eyes_than_the_file(tmp_path, monkeypatch):
    target, seen = tmp_path / "private.uai", []
    target.touch(mode=0o600)
    monkeypatch.setattr(os, "fsync", lambda file: seen.append(os.fstat(file).st_mode & 0o777))
    write(graph(), target)
    assert seen == [0o600]
    assert target.stat().st_mode & 0o777 == 0o600
    write(graph(), tmp_path / "new.uai")
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "new.uai").stat().st_mode & 0o777 == 0o666 & ~umask


def test_the_same_bytes_each_time(tmp_path):
    for name in ("a.uai.gz", "b.uai.gz"):
        write(graph(), tmp_path / name)
    assert (tmp_path / "a.uai.gz").read_bytes() == (tmp_path / "b.uai.gz").read_bytes()
    same_graph(read(tmp_path / "a.uai.gz"), graph(), names=False)


def test_long_names_in_the_headers_of_archives_are_passed_over(tmp_path):
    whole, reads = gzip.compress(UAI.encode(), mtime=0), []
    named = whole[:3] + b"\x08" + whole[4:10] + b"n" * (1 << 22) + b"\0" + whole[10:]
    path = tmp_path / "m.uai.gz"
    path.write_bytes(named + b"\0" * 512 + gzip.compress(b"\n"))
    read_once = os.read

    def counted(*args):
        reads.append(args)
        return read_once(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "read", counted)
        assert read(path).num_variables == 1
    assert len(reads) < 20
    path.write_bytes(named[:-4])
    refused(lambda: read(path), "gzip")
