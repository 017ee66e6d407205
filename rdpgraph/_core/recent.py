"""A cache of the values of the last few keys, without an import of torch."""

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values of the keys asked for last, shared by threads."""

    def __init__(self, most: int) -> None:
        self._most, self._values, self._lock = most, OrderedDict[object, Value](), Lock()

    def get(self, key: object) -> Value | None:
        """Return the value of a key, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: object, value: Value) -> Value:
        """Store and return a value; the oldest ones beyond ``most`` are dropped."""
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value
