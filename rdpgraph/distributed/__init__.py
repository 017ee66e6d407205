"""Inference by several processes of torch.distributed, with the answers of one.

For models whose tables exceed the memory of a machine. `group` makes a mesh of the processes that
torchrun started, and `partition` divides the factors of a graph between them.
"""

from rdpgraph.distributed.collectives import alone, group, share
from rdpgraph.distributed.cuts import Cluster, Forecast, by_metis, explain, partition
from rdpgraph.distributed.graphs import GraphPart, PartPosterior
from rdpgraph.distributed.spread import SpreadChains, SpreadReplicates, SpreadSlices, pooled

__all__ = [
    "Cluster",
    "Forecast",
    "GraphPart",
    "PartPosterior",
    "SpreadChains",
    "SpreadReplicates",
    "SpreadSlices",
    "alone",
    "by_metis",
    "explain",
    "group",
    "partition",
    "pooled",
    "share",
]
