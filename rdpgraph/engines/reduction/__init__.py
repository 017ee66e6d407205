"""The network that engines solve: a graph less evidence and impossible states, in numbers."""
