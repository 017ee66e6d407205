"""Recurrences whose objects answer for every input, as those of `by_input` do."""

from rdpgraph import Input, Lengths
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.declaration import program_of


class Recurrence(Bound):
    """Inputs and rules that a subclass declares; objects take the inputs in order, or by name."""

    rules = ""

    def __init__(self, *args, **named):
        declared = [name for name, _ in self.declared()]
        super().__init__(self.make_program(), dict(zip(declared, args, strict=False)) | named)
        vars(self).update(self.given)

    def with_inputs(self, **tensors):
        return type(self)(**(self.given | tensors))

    @classmethod
    def declared(cls):
        parts = [part for base in reversed(cls.__mro__) for part in vars(base).items()]
        found = {name: one for name, one in parts if isinstance(one, Input | Lengths)}
        return tuple(found.items())

    @classmethod
    def make_program(cls):
        return program_of(cls.__name__, cls.declared(), cls.rules)
