"""Models, evidence and results in files, and models of other libraries as objects."""

from rdpgraph.io.bif import format_bif, parse_bif, read_bif, write_bif
from rdpgraph.io.dimacs import format_dimacs, parse_dimacs
from rdpgraph.io.evidence import (
    format_map,
    format_mar,
    format_mmap,
    format_pr,
    parse_evidence,
    parse_query,
    read_evidence,
    read_query,
)
from rdpgraph.io.files import FORMATS, FileFormat, read, write
from rdpgraph.io.graphs import from_networkx, to_networkx
from rdpgraph.io.pgmpy import from_pgmpy, to_pgmpy
from rdpgraph.io.pyagrum import from_pyagrum, to_pyagrum
from rdpgraph.io.text import read_text, write_text_atomically
from rdpgraph.io.uai import format_uai, parse_uai, read_uai, write_uai

__all__ = [
    "FORMATS",
    "FileFormat",
    "format_bif",
    "format_dimacs",
    "format_map",
    "format_mar",
    "format_mmap",
    "format_pr",
    "format_uai",
    "from_networkx",
    "from_pgmpy",
    "from_pyagrum",
    "parse_bif",
    "parse_dimacs",
    "parse_evidence",
    "parse_query",
    "parse_uai",
    "read",
    "read_bif",
    "read_evidence",
    "read_query",
    "read_text",
    "read_uai",
    "to_networkx",
    "to_pgmpy",
    "to_pyagrum",
    "write",
    "write_bif",
    "write_text_atomically",
    "write_uai",
]
