"""The UAI formats beside the models: evidence and the queries of marginal MAP."""

from rdpgraph.io.text import PathLike, read_text
from rdpgraph.io.tokens import Numbers, read_numbers


def read_evidence(path: PathLike) -> list[dict[str, int]]:
    """The rows of an evidence file, each ready for ``graph.condition(row)``.

    Both dialects are read, told apart by the number of tokens: ``n v1 s1 ... vn sn`` (2014, one
    row) and ``samples``, then for each sample ``n v1 s1 ... vn sn`` (2010). An empty file and a
    lone 0 are one row without evidence.

    Returns:
        At least one row: {variable: state}, the variables named as `read_uai` names them.

    Raises:
        FileFormatError: with the line and the token that do not fit.
    """
    return parse_evidence(read_text(path), source=str(path))


def parse_evidence(text: str, *, source: str = "<text>") -> list[dict[str, int]]:
    """The rows of an evidence file's text; see `read_evidence`.

    Example:
        >>> parse_evidence("2  0 1  3 0"), parse_evidence("2  1 0 1  1 0 0")
        ([{'0': 1, '3': 0}], [{'0': 1}, {'0': 0}])
    """
    numbers = read_numbers(text, source)
    end = len(numbers.values)
    if end == 0:
        return [{}]
    count = numbers.whole(0, "a number of observed variables, or of samples", end - 1)
    if end == 1 + 2 * count:
        return [_row(numbers, 0)[0]]
    rows: list[dict[str, int]] = []
    at = 1
    for _ in range(count):
        row, at = _row(numbers, at)
        rows.append(row)
    if at < end:
        expected = f"the end of the file after {count} samples, or {1 + 2 * count} tokens in all"
        numbers.fail(at, expected)
    return rows


def read_query(path: PathLike) -> list[str]:
    """The query variables of a marginal MAP file (``n v1 ... vn``), by name.

    Raises:
        FileFormatError: with the line and the token that do not fit.
    """
    return parse_query(read_text(path), source=str(path))


def parse_query(text: str, *, source: str = "<text>") -> list[str]:
    """The query variables of a marginal MAP file's text; see `read_query`."""
    numbers = read_numbers(text, source)
    end = len(numbers.values)
    count = numbers.whole(0, "a number of query variables", max(end - 1, 0))
    names: dict[str, None] = {}
    for at in range(1, 1 + count):
        name = str(numbers.whole(at, "a variable"))
        if name in names:
            numbers.fail(at, "a variable that the query does not hold yet")
        names[name] = None
    if end > 1 + count:
        numbers.fail(1 + count, f"the end of the file after {count} variables")
    return list(names)


def _row(numbers: Numbers, at: int) -> tuple[dict[str, int], int]:
    """One ``n v1 s1 ... vn sn``, and the place after it."""
    left = (len(numbers.values) - at - 1) // 2
    count = numbers.whole(at, "a number of observed variables", max(left, 0))
    row: dict[str, int] = {}
    for place in range(at + 1, at + 1 + 2 * count, 2):
        name = str(numbers.whole(place, "a variable"))
        state = numbers.whole(place + 1, f"a state of variable {name}")
        if row.setdefault(name, state) != state:
            numbers.fail(place + 1, f"the state {row[name]} that variable {name} has already")
    return row, at + 1 + 2 * count
