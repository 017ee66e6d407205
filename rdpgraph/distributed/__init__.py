"""More than one process, on torch.distributed: the same answers as one.

Models whose tables outgrow a machine. `group` makes a mesh of the processes that torchrun started;
`shard` spreads the states of a chain over it. Nothing of this is loaded before it is asked for.
"""

from rdpgraph.distributed.chains import ShardedChain, shard
from rdpgraph.distributed.group import alone, group

__all__ = ["ShardedChain", "alone", "group", "shard"]
