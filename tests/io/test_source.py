"""Pipes, terminals and devices as files."""

import gzip
import os
import threading
import time

import pytest

from rdpgraph import read
from rdpgraph.errors import FileFormatError
from rdpgraph.io.text import read_text, write_bytes_atomically, write_text_atomically
from tests.io.helpers import refused

UAI = "MARKOV 1 2 1 1 0 2 0.25 0.75"

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_pipe_without_a_writer_is_not_waited_for(pipe):
    with pytest.raises(TimeoutError, match=r"no data arrived for 0\.05 seconds") as caught:
        read_text(pipe, wait=0.05)
    assert caught.value.filename == str(pipe)


def test_a_silent_writer_is_not_waited_for(pipe):
    end = os.open(pipe, os.O_RDWR)
    os.write(end, b"MARKOV 1 2")
    with pytest.raises(TimeoutError):
        read(pipe, wait=0.05)
    os.close(end)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("most", [1, 1000])
def test_a_pipe_is_read_as_it_comes(pipe, pack, most):
    data = pack(UAI.encode())

    def write():
        with open(pipe, "wb", buffering=0) as file:
            for at in range(0, len(data), most):
                file.write(data[at : at + most])
                time.sleep(0.0005)

    writer = threading.Thread(target=write)
    writer.start()
    assert read(pipe, wait=30).num_factors == 1
    writer.join()


def test_a_pipe_without_a_reader_is_not_waited_for(pipe):
    with pytest.raises(
        TimeoutError, match=r"no process read from this pipe for 0\.05 seconds"
    ) as caught:
        write_text_atomically(pipe, UAI, wait=0.05)
    assert caught.value.filename == str(pipe)


def test_a_silent_reader_is_not_waited_for(pipe):
    end = os.open(pipe, os.O_RDWR)
    with pytest.raises(TimeoutError):
        write_text_atomically(pipe, UAI * 100_000, wait=0.05)
    os.close(end)


def test_a_pipe_is_written_as_it_is_read(pipe):
    text, arrived = UAI * 20_000, []

    def read_on():
        with open(pipe) as file:
            arrived.append(file.read())

    reader = threading.Thread(target=read_on)
    reader.start()
    write_text_atomically(pipe, text, wait=30)
    reader.join()
    assert arrived == [text]


def test_standard_output_may_be_a_pipe():
    out, into = os.pipe()
    write_text_atomically(f"/dev/fd/{into}", UAI, wait=30)
    os.close(into)
    with open(out) as file:
        assert file.read() == UAI


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_read(pack, name):
    back, (out, into) = os.dup(0), os.pipe()
    try:
        os.dup2(out, 0)
        os.write(into, pack(UAI.encode()))
        os.close(into)
        assert read(name, wait=30).num_factors == 1
    finally:
        os.dup2(back, 0)
        os.close(back)
        os.close(out)


def test_an_endless_device_is_refused_where_it_begins():
    if not os.path.exists("/dev/zero"):
        pytest.skip("this system has no /dev/zero")
    refused(lambda: read("/dev/zero"), "/dev/zero: line 1", "control character")


def test_a_folder_is_named(tmp_path):
    with pytest.raises(IsADirectoryError) as caught:
        read(tmp_path)
    assert caught.value.filename == str(tmp_path)


def test_the_mark_of_an_end_of_file_ends_it(tmp_path):
    path = tmp_path / "m.uai"
    path.write_bytes(UAI.encode() + b"\x1a")
    assert read(path).num_factors == 1
    for data in (UAI.encode() + b"\x1a\x1a", b"MARKOV\x1a 1 2 0", b"MARKOV 1 2 0" + b" " * 2**20):
        path.write_bytes(data + b"\x1a \n")
        with pytest.raises(FileFormatError, match="control character"):
            read(path)


def test_bytes_are_written_whole_and_links_stay(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("real")
    write_bytes_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o600
