"""Mutated files: a graph, or a `FileFormatError` of one line, and nothing else."""

import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdpgraph import read
from tests.io.helpers import accepted_or_refused, cuts, mutated, of_format

parse_uai, _ = of_format(".uai")

parse_bif, _ = of_format(".bif")

UAI = "MARKOV\n3\n2 3 2\n3\n1 2\n2 0 1\n0\n2 1 4\n6 1 2 3 4 5 6\n1 .5 # a tail\n"
BIF = """network x { property a = "b"; } // c
variable a { type discrete [ 2 ] { no, yes }; }
variable "b c" { type discrete [ 3 ] { "u v", w, x }; } /* d */
probability ( a ) { table 0.8, 0.2; }
probability ( "b c" | a ) { (no) 0.1, 0.2, 0.7; default 0.3, 0.3, 0.4; }
"""
CASES = {"uai": (parse_uai, UAI), "bif": (parse_bif, BIF)}


@pytest.mark.long
@pytest.mark.parametrize("kind", CASES)
@given(data=st.data())
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_mutations(kind, data):
    parse, text = CASES[kind]
    changed = mutated(data, text)
    accepted_or_refused(lambda: parse(changed))


@pytest.mark.long
@pytest.mark.parametrize("kind", CASES)
def test_cuts_and_deletions(kind):
    parse, text = CASES[kind]
    for changed in cuts(text):
        accepted_or_refused(lambda changed=changed: parse(changed))


@pytest.mark.parametrize("kind", ["uai", "bif"])
@given(data=st.data())
@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_mutated_bytes(tmp_path, kind, data):
    text = CASES[kind][1].encode()
    raw = bytearray(data.draw(st.sampled_from([text, gzip.compress(text, mtime=0)])))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / f"m.{kind}"
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    accepted_or_refused(lambda: read(path))
