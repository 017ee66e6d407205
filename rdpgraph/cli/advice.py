"""Advice in the words of the command line, which has options where Python has arguments."""

import re

# What messages of the package advise, in the order in which it is replaced. An option that has no
# equivalent is left out, with the word that joins it to others.
_OPTIONS = (
    (r"(?:scheduler=)?Contraction\(memory=\.\.\.\)", "--memory"),
    (r"(?:scheduler=)?Contraction\(\)", "--method exact"),
    (r"Auto\(seconds=([0-9]+)\)", r"give --time \1s"),
    (r"(?:scheduler=)?Auto\(\)", "--method auto"),
    (r"(?:scheduler=)?JoinGraph\(\)", "--method join"),
    (r"(?:scheduler=)?Loopy\(\)", "--method loopy"),
    (r"(?:estimator=)?Exact\(\)", "--estimator exact"),
    (r"counting=TreeReweighted\(\) or ", ""),
    (r"another schedule, such as Residual\(\)", "--method join"),
    (r"replicates=([0-9]+), or interval\(\), which accounts for it", r"--replicates \1"),
    (r"replicates=([0-9]+)", r"--replicates \1"),
    (r"damping=([0-9.]+)", r"--damping \1"),
    (r"allow more sweeps", "allow more sweeps (--sweeps)"),
    (r"keep more states", "keep more states (--keep)"),
    (r"raise the time budget", "raise --time"),
    (r"raise the memory budget", "raise --memory"),
    (r"raise the (memory|time) or (?:the )?(memory|time) budget", r"raise --\1 or --\2"),
    (r"(; [^;]*\buse an approximate method)(?! \()", r"\1 (--method auto)"),
    (r"(budget is [^;]*); raise it", r"\1; raise it (--memory)"),
    (r"(allow more time)", r"\1 (--time)"),
    (r"(: allow more)$", r"\1 (--time)"),
    (r"more seconds", "more seconds (--time)"),
    (r"more memory or time", "more memory or time (--memory, --time)"),
    (r"or damp them$", "or damp them (--damping)"),
    (r"give a larger limit", "raise --steps"),
    (r" status_of\('[^']*'\) says more\.", ""),
)


def in_options(text: str) -> str:
    """Return a message with options of the command line in place of arguments in Python.

    Example:
        >>> in_options("needs 3 GB; raise the memory or time budget, or use Contraction()")
        'needs 3 GB; raise --memory or --time, or use --method exact'
        >>> in_options("would take about 8.0 s (width 22): Auto(seconds=30)")
        'would take about 8.0 s (width 22): give --time 30s'
        >>> in_options("damp them (damping=0.8), or use counting=TreeReweighted() or JoinGraph()")
        'damp them (--damping 0.8), or use --method join'
    """
    for python, option in _OPTIONS:
        text = re.sub(python, option, text)
    return text
