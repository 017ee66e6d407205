"""The dimension words of the library, as jaxtyping aliases.

Shapes are annotations in shared words. They are checked in the tests and cost nothing in use.

========  =====================================================================
word      meaning
========  =====================================================================
batch     leading dims over evidence rows or parameter sets
states    states of one variable
factors   factors of one block
arity     slots of a factor
kept      states kept of a variable by a support
========  =====================================================================
"""

from typing import TypeAlias

from jaxtyping import Float, Int
from torch import Tensor

LogValues: TypeAlias = Float[Tensor, "*shape"]
Probabilities: TypeAlias = Float[Tensor, "*shape"]
States: TypeAlias = Int[Tensor, "*shape"]
Scopes: TypeAlias = Int[Tensor, "factors arity"]
LogPartition: TypeAlias = Float[Tensor, "*batch"]
