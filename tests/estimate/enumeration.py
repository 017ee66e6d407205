"""Every outcome of a selection, as the conformance suite enumerates them."""

from rdpgraph.testing.selections import LAST, Recorder, Script, expectation, outcomes

__all__ = ["LAST", "Recorder", "Script", "expectation", "outcomes"]
