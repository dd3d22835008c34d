"""Result of `ctrlgrad.memory.profile()`: the recording and its summaries."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from ctrlgrad.memory.profile.page import write_page
from ctrlgrad.memory.profile.plot import write_plot
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.profile.summary import Summary, summarize
from ctrlgrad.memory.profile.trace import write_trace


class Profile(Recording):
    """A recording with its summary (also as `str`), trace and picture."""

    def summary(self) -> Summary:
        """The numbers so far."""
        return summarize(self)

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline as JSON that https://ui.perfetto.dev and Chrome open."""
        write_trace(self, Path(path))

    def write_plot(self, path: str | os.PathLike[str]) -> None:
        """Write a picture, PNG: bytes of each tier over time, what computed and what was copied. Needs matplotlib."""
        write_plot(self, Path(path))

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Write a page for a browser that shows the same and can be looked at more closely. It needs no network."""
        write_page(self, Path(path))

    def write_all(self, stem: str | os.PathLike[str]) -> list[Path]:
        """Write STEM.txt (the summary), STEM.json (the trace), STEM.html and, with matplotlib, STEM.png.

        Answers which files were written.
        """
        stem = Path(stem)
        suffixes = (".txt", ".json", ".html", ".png")
        text, trace, page, picture = (stem.with_name(stem.name + suffix) for suffix in suffixes)
        text.write_text(f"{self}\n", encoding="utf-8")
        self.write_trace(trace)
        self.write_page(page)
        if find_spec("matplotlib") is None:
            return [text, trace, page]
        self.write_plot(picture)
        return [text, trace, page, picture]

    def __str__(self) -> str:
        return str(self.summary())


__all__ = ["Profile"]
