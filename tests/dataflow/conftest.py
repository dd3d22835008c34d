"""Puts this folder on the path, whose tests share `agreement`, and that of the stand-in for a card."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (str(HERE), str(HERE.parent / "cuda")):
    if folder not in sys.path:
        sys.path.append(folder)
