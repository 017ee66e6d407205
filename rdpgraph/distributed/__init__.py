"""More than one process, on torch.distributed: the same answers as one.

Models whose tables outgrow a machine. `group` makes a mesh of the processes that torchrun started,
and `partition` spreads the factors of a graph over it. Nothing of this is loaded before it is asked
for.
"""

from rdpgraph.distributed.cuts import by_metis, partition
from rdpgraph.distributed.estimates import SpreadChains, SpreadReplicates
from rdpgraph.distributed.forecast import Cluster, Forecast, explain
from rdpgraph.distributed.graphs import GraphPart, PartPosterior
from rdpgraph.distributed.group import alone, group
from rdpgraph.distributed.slices import SpreadSlices, pooled, share

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
