"""Fixtures of tapes."""

import pytest

from rdpgraph.structures.recursion import library


@pytest.fixture
def by_torch(monkeypatch):
    """Answers of steps laid out anew, as where no library is."""

    def asked(answer):
        with monkeypatch.context() as patch:
            patch.setattr(library, "available", lambda dtype: False)
            return answer()

    return asked
