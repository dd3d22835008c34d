"""Sizes of memory as people write them, in whole pages and the like, and limits on the bytes in use.

>>> parse_size("64 MiB"), parse_size("2GiB"), parse_size(1000), parse_size(None)
(67108864, 2147483648, 1000, None)
>>> show_size(67108864)
'64.0 MiB'
"""

from __future__ import annotations

import re

from ctrlgrad.errors import UserInputError
from ctrlgrad.records import record
from ctrlgrad.source import here

UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
# Largest offset into memory or into a file.
MOST = (1 << 63) - 1
SHOWN = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def parse_size(size: str | int | None) -> int | None:
    """Bytes of a size such as "64 MiB", "2GiB", "1.5 GB" or 1000; None, no limit, stays None.

    Raises `UserInputError` for what is no size, for a negative one, and for one of 2**63 bytes or more.
    """
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise _no_size(size)
    if isinstance(size, int):
        nbytes = size
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", size)
        if match is None or match[2].lower() not in UNITS:
            raise _no_size(size)
        number = float(match[1]) * UNITS[match[2].lower()]
        nbytes = int(number) if number <= MOST else MOST + 1  # infinity, too
    if nbytes < 0:
        raise _no_size(size)
    if nbytes > MOST:
        raise UserInputError(
            "memory: a size that no memory has",
            source=here(),
            expected=f"less than {(MOST + 1) >> 60} EiB, or None for no limit",
            got=_shortened(size),
            hint="None, or leaving it out, is no limit",
        )
    return nbytes


def rounded_up(nbytes: int, granule: int) -> int:
    """The next multiple of `granule`, at least one.

    >>> rounded_up(4097, 4096), rounded_up(4096, 4096), rounded_up(0, 4096)
    (8192, 4096, 4096)
    """
    return max(-(-nbytes // granule), 1) * granule


def _no_size(size: object) -> UserInputError:
    return UserInputError(
        "memory: not a size",
        expected='a number of bytes, or a text such as "64 MiB", "2GiB", "500 MB"',
        got=_shortened(size),
        source=here(),
        hint="int(n) makes bytes of a float; None, or leaving it out, is no limit",
    )


def _shortened(size: object) -> str:
    """As in the user's program, but not thousands of digits of it (more of them than Python itself would write)."""
    if isinstance(size, int) and size.bit_length() > 200:
        return f"an int of {size.bit_length()} bits"
    text = repr(size)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


def show_size(nbytes: int | None) -> str:
    """A number of bytes for people; None is "no limit"."""
    if nbytes is None:
        return "no limit"
    for unit, name in SHOWN:
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"


def show_exactly(nbytes: int) -> str:
    """A number of bytes for people, and the number itself.

    >>> show_exactly(2097152), show_exactly(80)
    ('2.0 MiB (2097152 bytes)', '80 bytes')
    """
    return show_size(nbytes) + (f" ({nbytes} bytes)" if nbytes >= 1 << 10 else "")


@record
class Budget:
    """Limits in bytes; None is no limit. `disk` is the folder of spill files; None leaves it to the device.

    >>> Budget(device=1 << 20).limit("device"), Budget().limit("host")
    (1048576, None)
    """

    device: int | None = None
    host: int | None = None
    disk: str | None = None

    def limit(self, tier: str) -> int | None:
        """The limit of a tier by its name. A disk has no limit of ours: it refuses when it is full."""
        return {"device": self.device, "host": self.host}.get(tier)
