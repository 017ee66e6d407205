"""Tree-reweighted messages: modes of large graphs, and bounds that are finite at any size."""
