"""Tree-reweighted messages and minimum cuts: modes of large graphs, and bounds at any size."""
