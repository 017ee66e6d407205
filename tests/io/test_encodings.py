"""Text of any encoding that its first bytes, its declaration or the user says."""

import gzip
import json

import pytest

import rdpgraph as rg
from rdpgraph.errors import FileFormatError, ModelError
from rdpgraph.io.xml import parse_xmlbif

XML = """<?xml version="1.0" encoding="{}"?>
<BIF><NETWORK><VARIABLE><NAME>Größe</NAME><OUTCOME>groß</OUTCOME><OUTCOME>klein</OUTCOME></VARIABLE>
<DEFINITION><FOR>Größe</FOR><TABLE>.4 .6</TABLE></DEFINITION></NETWORK></BIF>
"""
BIF = """network x {}
variable Größe { type discrete [2] { groß, klein }; }
probability (Größe) { table .4, .6; }
"""
CFN = json.dumps({
    "problem": {"mustbe": "<9"}, "variables": {"Größe": ["groß", "klein"]},
    "functions": {"f": {"scope": ["Größe"], "costs": [1, 2]}},
}, ensure_ascii=False)  # fmt: skip


def names(path, **options):
    """The name of the variable and its states."""
    (variable,) = rg.read(path, **options).variables
    return variable.name, *variable.states


EXPECTED = "Größe", "groß", "klein"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-8", "latin-1"])
@pytest.mark.parametrize(("name", "text"), [("m.bif", BIF), ("m.cfn", CFN), ("m", BIF)])
def test_byte_order_marks_are_read(tmp_path, name, text, encoding, pack):
    path = tmp_path / name
    path.write_bytes(pack(text.encode(encoding)))
    assert names(path) == EXPECTED


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252", "iso8859-2", "cp437"],
)
def test_declarations_of_xml_are_kept(tmp_path, encoding):
    path, data = tmp_path / "m.xmlbif", XML.format(encoding).encode(encoding)
    path.write_bytes(data)
    assert names(path) == EXPECTED
    assert parse_xmlbif(data).variables[0].name == "Größe"
    # What can be read as ASCII is not UTF-16, whatever it says.
    path.write_bytes(XML.format("UTF-16").encode("utf-8"))
    assert names(path) == EXPECTED
    path.write_bytes(b"\xef\xbb\xbf" + XML.format("latin-1").encode("utf-8"))
    assert names(path) == EXPECTED


@pytest.mark.parametrize("encoding", ["utf-16-le", "cp437", "mac-roman"])
def test_an_encoding_that_is_given_comes_first(tmp_path, encoding):
    for name, text in (("m.bif", BIF), ("m.xmlbif", XML.format("utf-8"))):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        assert names(path, encoding=encoding) == EXPECTED


def test_a_byte_order_mark_is_no_part_of_numbers(tmp_path):
    for name, text in (
        ("m.uai", "MARKOV 1 2 1 1 0 2 .4 .6"), ("m.wcsp", "m 1 2 1 9 2 1 0 0 1 0 3"),
        ("m.cnf", "p cnf 1 1\n1 0\n"),
    ):  # fmt: skip
        for encoding in ("utf-8-sig", "utf-16"):
            (tmp_path / name).write_bytes(text.encode(encoding))
            assert rg.read(tmp_path / name).num_factors == 1


@pytest.mark.parametrize(
    ("data", "encoding", "message"),
    [
        (BIF.encode("utf-16-le"), None, r"control character '\\x00'. If it is UTF-16, say so"),
        (BIF.encode("latin-1"), "utf-8", "expected text in utf-8; got the byte 0xf6"),
        (BIF.encode("utf-16")[:-1], None, "expected text in utf-16; got the byte 0x"),
        (
            XML.format("x-foo").encode(),
            None,
            "the file declares the encoding 'x-foo', which Python does not know",
        ),
    ],
)
def test_what_cannot_be_decoded_says_so(tmp_path, data, encoding, message):
    path = tmp_path / "m.bif"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=message) as error:
        rg.read(path, encoding=encoding)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("encoding", ["utf-99", "rot13", ""])
def test_names_of_no_encoding_are_refused(tmp_path, encoding):
    (tmp_path / "m.bif").write_text(BIF)
    with pytest.raises(ModelError, match="There is no encoding"):
        rg.read(tmp_path / "m.bif", encoding=encoding)
