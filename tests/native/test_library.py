"""The library's file: packaged, or kept where nobody else can write; checked, and rebuilt."""

import importlib.util
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from rdpgraph.native import building, library
from rdpgraph.native.loading import Library
from rdpgraph.recurrences.executor import LIBRARY

ROOT = Path(__file__).parents[2]
real = LIBRARY.status.kernel
needs_kernel = pytest.mark.skipif(real is None, reason=str(LIBRARY.status))
CODE = (
    "import pathlib, sys, torch\n"
    "import rdpgraph as rg\n"
    "from rdpgraph.native import building\n"
    "from rdpgraph.recurrences.executor import LIBRARY\n"
    "building.PACKAGED = pathlib.Path(sys.argv[1])\n"
    "chain = rg.Chain(torch.zeros(1, 3, 2), torch.zeros(2, 2))\n"
    "for _ in range(2):\n"
    "    torch.testing.assert_close(chain.log_partition(), torch.tensor([8.0]).log())\n"
    "print(LIBRARY.status.kernel)"
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, no packaged library, and a compiler that copies the kernel and counts."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(building, "PACKAGED", tmp_path / "packaged")
    monkeypatch.setattr(building, "UNITS", (building.RECURRENCES,))  # one is enough, and quick
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("RDPGRAPH_DEBUG", "0")  # also where all tests are run with sanitizers
    tools = tmp_path / "tools"
    tools.mkdir()
    fake = tools / "c++"
    fake.write_text(
        "#!/bin/sh\n"
        'while [ "$#" -gt 0 ]; do [ "$1" = -o ] && target=$2; shift; done\n'
        '[ -n "$target" ] || exit 0\n'
        f'case "$target" in *.so) echo built >> {tmp_path}/builds; sleep 0.1;; esac\n'
        f'cp {real} "$target"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return folder / "rdpgraph"


def load():
    return Library(building.RECURRENCES, LIBRARY._check).load()[1]


def builds(cache):
    return len((cache.parent.parent / "builds").read_text().splitlines())


def put(file, content):
    """Replace the file, which this process has loaded and must not lose."""
    file.unlink()
    file.write_bytes(content)
    file.chmod(0o700)


def cut(file):
    put(file, file.read_bytes()[:5000])


def empty(file):
    put(file, b"")


def flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    put(file, bytes(content))


def renamed(file):
    file.rename(file.with_name(file.name[:-8] + "0000.so"))


def writable(file):
    file.chmod(0o770)


def planted(file):
    """A library of other functions under its right digest."""
    other = file.with_name("other.so")
    command = ["/usr/bin/env", "cc", "-shared", "-x", "c", "-o", str(other), "-"]
    subprocess.run(command, input=b"int nothing;", check=True)
    stem = "-".join(file.name.split("-")[:2]) + "-"
    other.rename(file.with_name(building.name_of(stem, other.read_bytes())))
    file.unlink()


def foreign(file):
    """No library of this machine, under its right digest."""
    stem, content = "-".join(file.name.split("-")[:2]) + "-", b"of another machine"
    put(file, content)
    file.rename(file.with_name(building.name_of(stem, content)))


@needs_kernel
def test_a_build_says_so_once(cache, caplog):
    load()
    load()
    assert [str(cache) in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.long
@needs_kernel
@pytest.mark.parametrize("damage", [cut, empty, flipped, renamed, writable, planted, foreign])
def test_a_damaged_file_is_built_anew(damage, cache):
    first = load().kernel
    assert first.parent == cache
    assert load().kernel == first
    assert builds(cache) == 1
    damage(first)
    again = load().kernel
    assert builds(cache) == 2
    assert load().kernel == again
    assert builds(cache) == 2
    assert [file.name for file in cache.iterdir()] == [first.name]


@needs_kernel
def test_what_does_not_load_where_it_was_built_is_built_once(cache, tmp_path):
    compiler = tmp_path / "tools" / "c++"
    script = compiler.read_text()
    missing = 'case "$all" in *-fopenmp*) echo no library > "$target";; esac\n'
    compiler.write_text(script.replace("#!/bin/sh\n", '#!/bin/sh\nall="$*"\n') + missing)
    first = load()
    assert first.kernel is not None
    assert "no OpenMP" in first.reason
    assert builds(cache) == 2
    assert load() == first
    assert builds(cache) == 2


@needs_kernel
def test_what_killed_builds_left_is_removed(cache):
    for name in ("tmpold", "tmpnew"):
        (cache / name).mkdir(parents=True, mode=0o700)
        (cache / name / "chain.so").touch()
    cache.chmod(0o700)
    os.utime(cache / "tmpold", (0, 0))
    kernel = load().kernel
    assert {file.name for file in cache.iterdir()} == {kernel.name, "tmpnew"}  # one may be at work


@needs_kernel
@pytest.mark.parametrize("mode", [0o770, 0o777, 0o722])
def test_a_folder_that_others_may_write_to_is_not_used(mode, cache):
    cache.mkdir(parents=True)
    cache.chmod(mode)
    found = load()
    assert found.kernel is None
    assert str(cache) in found.reason
    assert "XDG_CACHE_HOME" in found.reason
    assert list(cache.iterdir()) == []


@needs_kernel
def test_a_folder_in_one_that_anyone_may_write_to_is_not_used(cache):
    cache.mkdir(parents=True, mode=0o700)
    cache.parent.chmod(0o777)
    assert f"anyone may write to {cache.parent}" in load().reason
    cache.parent.chmod(0o1777)
    assert load().kernel is not None


@needs_kernel
def test_a_link_in_place_of_the_folder_is_not_followed(cache, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.parent.mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    assert load().kernel is None


@needs_kernel
def test_a_relative_cache_is_refused(cache, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    found = load()
    assert found.kernel is None
    assert "absolute" in found.reason
    assert not Path("somewhere").exists()


@needs_kernel
def test_without_a_home_torch_answers(cache, monkeypatch):
    def unknown(number):
        raise KeyError(number)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    found = load()
    assert found.kernel is None
    assert "no home" in found.reason


@needs_kernel
def test_a_file_where_the_folder_should_be(cache):
    cache.parent.write_text("")
    assert load().kernel is None


def test_a_compiler_that_fails_is_named(cache, tmp_path):
    (tmp_path / "tools" / "c++").write_text("#!/bin/sh\necho 'error: out of order' >&2\nexit 1\n")
    found = load()
    assert found.kernel is None
    assert "error: out of order" in found.reason
    assert "\n" not in found.reason


@pytest.mark.long
def test_without_a_kernel_one_warning_names_the_way_out(tmp_path):
    """Run a separate process that asks twice."""
    environment = dict(os.environ, PATH=str(tmp_path))
    command = [sys.executable, "-W", "always", "-c", CODE, str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "None\n"
    assert run.stderr.count("RuntimeWarning") == 1
    assert "apt install g++" in run.stderr


@needs_kernel
def test_two_processes_build_at_once(cache):
    fork = multiprocessing.get_context("fork")
    found = fork.SimpleQueue()
    both = [fork.Process(target=lambda: found.put(str(load().kernel))) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    (file,) = cache.iterdir()
    assert [found.get() for _ in both] == [str(file), str(file)]


@needs_kernel
@pytest.mark.parametrize("damage", [cut, empty, flipped, renamed, planted, foreign])
def test_a_packaged_library_answers_unless_it_is_damaged(damage, cache, monkeypatch):
    building.package()
    files, taken = set(building.PACKAGED.iterdir()), load().kernel
    assert taken in files
    damage(taken)
    assert load().kernel not in (None, taken)
    for file in files - {taken}:
        damage(file)
    monkeypatch.setenv("PATH", "")
    found = load()
    assert found.kernel is None
    assert "no sound compiled library" in found.reason


@needs_kernel
def test_a_packaged_library_of_other_sources_is_not_loaded_and_is_replaced(
    cache, tmp_path, monkeypatch
):
    building.package()
    before, built = set(building.PACKAGED.iterdir()), builds(cache)
    building.package()
    assert builds(cache) == built
    monkeypatch.setattr(building, "FLAGS", (*building.FLAGS, "-DCHANGED"))
    assert load().kernel.parent == cache
    building.package()
    after = set(building.PACKAGED.iterdir())
    assert len(after) == len(before)
    assert not after & before
    assert load().kernel in after


@needs_kernel
@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling builds wheels")
def test_wheels_hold_the_library_where_there_is_a_compiler(cache, tmp_path):
    part = Path("rdpgraph/native")
    ignored = shutil.ignore_patterns("__pycache__", "compiled")
    shutil.copytree(ROOT / part, tmp_path / part, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "rdpgraph/__init__.py").touch()
    for path, compiled in ((os.environ["PATH"], True), ("", False)):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"]
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        subprocess.run(command, cwd=tmp_path, env=dict(os.environ, PATH=path), check=True)
        (wheel,) = (tmp_path / "out").iterdir()
        names = zipfile.ZipFile(wheel).namelist()
        assert "-py3-none-" in wheel.name
        assert wheel.name.endswith("-any.whl") != compiled
        assert any(name.endswith(".so") for name in names) == compiled


@needs_kernel
def test_libraries_to_be_debugged_are_files_of_their_own(cache, monkeypatch):
    """Never the package's, and never taken where nobody debugs."""
    plain = load()
    monkeypatch.setenv("RDPGRAPH_DEBUG", "1")
    building.package()
    debugged = load()
    assert debugged.kernel.parent == cache
    assert debugged.kernel != plain.kernel
    assert str(debugged).endswith("built here, to be debugged.")
    monkeypatch.setenv("RDPGRAPH_DEBUG", "0")
    assert load().kernel.parent == building.PACKAGED


@pytest.mark.skipif(os.name != "posix", reason="processes are ended by groups")
def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    """As a compiler, which runs its parts as processes."""
    told = tmp_path / "number"
    script = f"sleep 60 & echo $! > {told}; wait"
    with pytest.raises(subprocess.TimeoutExpired):
        building.run(["sh", "-c", script], seconds=0.5)
    number = int(told.read_text())
    for _ in range(100):  # until the system has noticed
        stat = Path(f"/proc/{number}/stat")
        state = stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "gone"
        if state in ("Z", "gone"):
            break
        time.sleep(0.02)
    assert state in ("Z", "gone")


@needs_kernel
def test_a_build_that_takes_too_long_is_not_tried_again(cache, monkeypatch):
    commands = []

    def run(command, *, seconds):
        commands.append(command)
        if "-c" in command:
            raise subprocess.TimeoutExpired(command, seconds)
        return b""

    monkeypatch.setattr(building, "run", run)
    status = load()
    assert status.kernel is None
    assert f"took more than {building.SECONDS} seconds" in str(status)
    builds = [command for command in commands if "-c" in command]
    assert builds
    assert all(building.RECURRENCES.openmp in command for command in builds)


def test_types_that_have_no_kernel():
    assert not LIBRARY.available(torch.float16)


def test_every_library_has_its_functions():
    for unit, functions in library._FUNCTIONS.items():
        if library.status(unit).kernel is None:
            pytest.skip(str(library.status(unit)))
        for name in functions:
            assert callable(library.function(name, None if "_" in name else torch.float32))


@pytest.mark.skipif(
    "ATEN_CPU_CAPABILITY" in os.environ, reason="torch is told to use another level"
)
def test_a_checkout_is_built_for_the_processor_that_torch_finds():
    found = torch.backends.cpu.get_cpu_capability().lower()
    here = building.levels_here()
    assert here in ([found if found in building.LEVELS else "base"], list(building.LEVELS))
