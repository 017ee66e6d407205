"""A file format of your own, which needs no change to the package."""

import importlib.metadata

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import FileFormatError, ModelError, UnsupportedError
from rdpgraph.extend import FORMATS, FileFormat


def parse(data, *, source, dtype):
    try:
        values = torch.tensor([float(word) for word in bytes(data).split()[1:]], dtype=dtype)
    except ValueError as error:
        raise FileFormatError(f"{source}: {error}") from None
    return rg.FactorGraph([rg.Factor((rg.Variable("x", len(values)),), rg.Table(values))])


def text(graph):
    (factor,) = graph.factors()
    return " ".join(["coin", *map(repr, factor.potential.table(1).tolist())])


COIN = FileFormat(".coin", parse, text, ("coin",))


@pytest.fixture
def registered():
    FORMATS.add(COIN)
    yield
    FORMATS.remove(".coin")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["m.coin", "m.coin.gz", "M.COIN"])
def test_a_registered_format_is_read_and_written(tmp_path, name):
    table = torch.tensor([0.25, -1.5, 3.0])
    graph = rg.FactorGraph([rg.Factor((rg.Variable("x", 3),), rg.Table(table))])
    rg.write(graph, tmp_path / name)
    again = rg.read(tmp_path / name, dtype=torch.float32)
    assert torch.equal(next(iter(again.factors())).potential.table(1), table)
    (tmp_path / name).rename(tmp_path / "model")
    assert rg.read(tmp_path / "model").num_variables == 1  # by its first word
    (tmp_path / "bad.coin").write_text("coin heads")
    with pytest.raises(FileFormatError, match="heads"):
        rg.read(tmp_path / "bad.coin")


def test_an_unregistered_format_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match=r"\.uai or \.bif"):
        rg.write(parse(b"coin 1", source="", dtype=torch.float64), tmp_path / "m.coin")
    (tmp_path / "m.coin").write_text("coin 1")
    with pytest.raises(FileFormatError):
        rg.read(tmp_path / "m.coin")


@pytest.mark.parametrize(
    "wrong", [FileFormat(".uai", parse), FileFormat(".x", parse, first_words=("markov",))]
)
def test_what_is_taken_is_refused(wrong):
    with pytest.raises(ModelError, match="registered already"):
        FORMATS.add(wrong)
    with pytest.raises(ModelError, match="registered"):
        FORMATS.remove(".nothing")


@pytest.mark.parametrize("suffix", ["", ".", "coin", ".Coin", ".coin.gz"])
def test_a_suffix_is_one(suffix):
    with pytest.raises(ModelError, match="suffix"):
        FileFormat(suffix, parse)


def test_a_format_that_is_only_read(tmp_path):
    known = type(FORMATS)()
    known.add(FileFormat(".coin", parse))
    found = known.find("m.coin")
    assert found is not None
    assert found.text is None
    assert known.suffixes == ()


def test_an_installed_package_offers_a_format(tmp_path, monkeypatch):
    """Packages are asked once, and only for a name that nothing known fits."""

    def install(value):
        folder = tmp_path / "coins-1.0.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text("Name: coins\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[rdpgraph.formats]\ncoin = {value}\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    install("nowhere:nothing")
    known = type(FORMATS)()
    known.add(FileFormat(".other", parse))
    assert known.find("m.other") is not None  # no package was asked
    install(f"{__name__}:COIN")
    assert known.find("m.coin") == COIN
    assert known.find("pipe", "coin") == COIN
    install("nowhere:nothing")
    assert known.find("m.unknown") is None
    install(f"{__name__}:text")
    with pytest.raises(ModelError, match="coin"):
        type(FORMATS)().find("m.coin")


def test_the_version_is_that_of_the_package():
    assert rg.__version__ == importlib.metadata.version("rdpgraph")
