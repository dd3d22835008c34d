"""Length of chunks."""

from __future__ import annotations

import pytest

from ctrlgrad.engines.cuda import chunks, stacks
from ctrlgrad.runtime import chunks as engine_chunks


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one or two iterations: the loops of the corpus are short."""
    monkeypatch.setattr(chunks, "FIRST_ITERATIONS", 1)
    monkeypatch.setattr(chunks, "MOST_ITERATIONS", 2)
    monkeypatch.setattr(stacks, "FIRST_ROWS", 1)


@pytest.fixture
def chunks_of_16_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of the same length with a budget as without: then results are the same bits."""
    monkeypatch.setattr(engine_chunks, "CHUNK_BYTES", 16 << 10)
