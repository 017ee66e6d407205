"""Speed and memory of reading texts of each kind: MB/s, and peak over the text.

    python tests/benchmarks/reading.py [--megabytes 4] [--only bif]

The texts are those that take their reader longest or most memory: tiny variables, short numbers,
names that differ. The speed is that of one core, the best of a few runs; the peak is that of all
that Python and NumPy allocate, the text itself included.
"""

import argparse
import itertools
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress

from rdpgraph.errors import FileFormatError
from rdpgraph.io.bif import parse_bif
from rdpgraph.io.evidence import parse_evidence, parse_query
from rdpgraph.io.uai import parse_uai
from rdpgraph.trees import parse_grammar


def uai(size: int) -> Iterator[tuple[str, str]]:
    """Texts of UAI models."""
    wide = max((size // 2).bit_length() - 1, 1)
    scope = " ".join(map(str, range(wide)))
    head = f"MARKOV {wide} {'2 ' * wide} 1 {wide} {scope} {2**wide} "
    yield "one table, `1 1 1`", head + "1 " * 2**wide
    wide -= 3
    scope = " ".join(map(str, range(wide)))
    head = f"MARKOV {wide} {'2 ' * wide} 1 {wide} {scope} {2**wide} "
    yield "one table, 17 digits", head + "0.12345678901234567 " * 2**wide
    side = int((size / 50) ** 0.5)
    pairs = [(n, n + 1) for n in range(side * side) if (n + 1) % side]
    pairs += [(n, n + side) for n in range(side * (side - 1))]
    yield (
        "a grid of pairs",
        f"MARKOV {side * side} {'2 ' * side * side} {len(pairs)}\n"
        + "".join(f"2 {a} {b}\n" for a, b in pairs)
        + "4 1.5 1 1 1.5\n" * len(pairs),
    )
    many = size // 10
    yield "factors of one variable", f"MARKOV 1 2 {many} " + "1 0 " * many + "2 1 1 " * many
    many = size // 4
    yield "constants", f"MARKOV 1 2 {many} " + "0 " * many + "1 1 " * many
    many = size // 2
    yield "variables without factors", f"MARKOV {many} " + "2 " * many + "0"
    sizes = [2 + n % 40 for n in range(size // 100)]
    scopes = [
        (n, (7 * n + 1) % len(sizes)) for n in range(len(sizes)) if n != (7 * n + 1) % len(sizes)
    ]
    scopes = scopes[: len(sizes) // 20]
    yield (
        "factors of many shapes",
        f"MARKOV {len(sizes)} {' '.join(map(str, sizes))} {len(scopes)}\n"
        + "".join(f"2 {a} {b}\n" for a, b in scopes)
        + "".join(f"{sizes[a] * sizes[b]} " + "1 " * (sizes[a] * sizes[b]) for a, b in scopes),
    )
    yield "factors that all differ", all_different(size)
    yield "comments", "MARKOV 1 2 0\n" + "#\n" * (size // 2)
    yield "blank lines", "MARKOV 1 2 0" + "\n" * size


def all_different(size: int) -> str:
    """As many different shapes as a file of this length may have, or has room for."""
    wide, length, scopes = 14, 0, list[list[int]]()
    for bits in range(
        min(max(1 << 14, size // 700), 1 << wide)
    ):  # one state, or two up to six times
        scope = [n + wide * (bits >> n & 1) for n in range(wide)]
        if bits.bit_count() <= 6:
            scopes.append(scope)
            length += 40 + 2 * 2 ** bits.bit_count()
        if length > size:
            break
    tables = (2 ** sum(n >= wide for n in scope) for scope in scopes)
    return (
        f"MARKOV {2 * wide} {'1 ' * wide}{'2 ' * wide} {len(scopes)}\n"
        + "".join(f"{wide} {' '.join(map(str, scope))}\n" for scope in scopes)
        + "".join(f"{count} {'1 ' * count}\n" for count in tables)
    )


def evidence(size: int) -> Iterator[tuple[str, str]]:
    """Texts of evidence."""
    many = size // 8
    yield "one row", f"{many} " + " ".join(f"{n} 1" for n in range(many))
    many = size // 4
    yield "one observation repeated", f"{many} " + "0 1 " * many
    many = size // 60
    yield (
        "rows of ten",
        f"{many} " + ("10 " + " ".join(f"{n} 1" for n in range(10)) + " ") * many,
    )
    many = size // 6
    yield "rows of one", f"{many} " + "1 0 1 " * many
    many = size // 2
    yield "empty rows", f"{many} " + "0 " * many


def query(size: int) -> Iterator[tuple[str, str]]:
    """Texts of queries."""
    many = size // 7
    yield "one row", f"{many} " + " ".join(map(str, range(many)))


def grammar(size: int) -> Iterator[tuple[str, str]]:
    """Texts of grammars."""
    yield "symbols", "\n".join(f'1 {n:x} -> "a"' for n in range(size // 14))
    yield "words", "\n".join(f'1 S -> "{n:x}"' for n in range(size // 14))
    many = size // 15
    yield (
        "rules of two symbols",
        "\n".join(
            [f"1 {n % 100} -> {n // 100 % 100} {n // 10000}" for n in range(many)]
            + [f"1 {n} -> 'a'" for n in range(max(100, many // 10000 + 1))]
        ),
    )
    yield "comments", "1 S -> 'a'\n" + "#\n" * (size // 2)
    line = "1 {0:x} -> 'a' # {0}\n#\n"
    yield "comments among rules", "".join(line.format(n) for n in range(size // 24))
    yield "blank lines", "1 S -> 'a'" + "\n" * size


def declared(name: str, states: str = "a,b") -> str:
    """A variable of a BIF file."""
    return f"variable {name}{{type discrete[{states.count(',') + 1}]{{{states}}};}}"


def many_alike(size: int, states: str, block: str) -> str:
    """Variables of the same states, each with the one before as the parent where the block asks."""
    count = size // (len(declared("00000", states)) + len(block))
    first = declared("0", states) + f"probability(0){{default 1{',0' * states.count(',')};}}"
    return first + "".join(
        declared(f"{n:x}", states) + block.format(f"{n:x}", f"{n - 1:x}") for n in range(1, count)
    )


def bif(size: int) -> Iterator[tuple[str, str]]:
    """Texts of Bayesian networks."""
    yield "variables of two states", many_alike(size, "a,b", "probability({0}){{table 1,0;}}")
    yield "variables of one state", many_alike(size, "a", "probability({0}){{table 1;}}")
    block = "probability({0}|{1}){{(a)1,0;(b)0,1;}}"
    yield "a chain, rows", many_alike(size, "a,b", block)
    yield "a chain, tables", many_alike(size, "a,b", "probability({0}|{1}){{table 1,0,0,1;}}")
    tiny = "variable {0}{{type discrete[2]{{{0},b}};}}probability({0}){{table 1,0;}}"
    yield "states that differ", "".join(tiny.format(f"x{n:x}") for n in range(size // 75))
    tiny = "variable {0}{{type discrete[2]{{{0},b}};}}probability({0}|{1}){{({1})1,0;(b)0,1;}}"
    pairs = [(f"x{n:x}", f"x{n - 1:x}") for n in range(1, size // 90)]
    first = declared("x0", "x0,b") + "probability(x0){table 1,0;}"
    yield "states that differ, rows", first + "".join(tiny.format(*pair) for pair in pairs)
    count = size // 8
    names = ",".join(f"{n:x}" for n in range(count))
    yield (
        "one variable of many states",
        declared("x", names) + "probability(x){table 1" + ",0" * (count - 1) + ";}",
    )
    wide = max((size // 2).bit_length() - 2, 1)
    bits = "".join(declared(f"v{n}") + f"probability(v{n}){{table 1,0;}}" for n in range(wide))
    of = declared("x") + "probability(x|" + ",".join(f"v{n}" for n in range(wide)) + ")"
    table = "{table " + "1," * 2**wide + "0," * 2**wide + ";}"
    yield "one table", bits + of + table
    wide = max((size // 40).bit_length() - 1, 1)
    bits = "".join(declared(f"v{n}") + f"probability(v{n}){{table 1,0;}}" for n in range(wide))
    of = declared("x") + "probability(x|" + ",".join(f"v{n}" for n in range(wide)) + ")"
    rows = "".join(f"({','.join(row)})1,0;" for row in itertools.product("ab", repeat=wide))
    yield "one table, rows", bits + of + "{" + rows + "}"
    start = declared("x") + "probability(x){table 1,0;"
    yield "properties", start + "property a;" * (size // 11) + "}"
    yield "properties in quotes", start + 'property "a";' * (size // 13) + "}"
    yield "comments", start + "//\n" * (size // 3) + "}"
    yield "blank lines", start + "\n" * size + "}"


READERS: dict[str, tuple[Callable[[int], Iterator[tuple[str, str]]], Callable[..., object]]] = {
    "UAI": (uai, parse_uai),
    "evidence": (evidence, parse_evidence),
    "query": (query, parse_query),
    "grammar": (grammar, parse_grammar),
    "BIF": (bif, parse_bif),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=4.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=2)
    arguments = parser.parse_args()
    size = int(arguments.megabytes * 1e6)
    for _, parse in READERS.values():  # what is imported late
        with suppress(FileFormatError):
            parse("")
    print("| reader | text | MB/s | peak memory, of the text |")
    print("|---|---|---|---|")
    for name, (texts, parse) in READERS.items():
        for what, text in texts(size) if arguments.only.lower() in name.lower() else ():
            data = text.encode()
            times = []
            for _ in range(arguments.runs):
                own = bytearray(data)
                start = time.process_time()
                kept = parse(own)
                times.append(time.process_time() - start)
                del kept, own
            own = bytearray(data)
            tracemalloc.start()
            kept = parse(own)
            peak = tracemalloc.get_traced_memory()[1] + len(data)
            tracemalloc.stop()
            del kept, own
            speed, share = len(data) / min(times) / 1e6, peak / len(data)
            print(f"| {name} | {what} | {speed:.1f} | {share:.1f} |", flush=True)


if __name__ == "__main__":
    main()
