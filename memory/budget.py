"""Limits on the bytes of each tier that may be in use."""

from __future__ import annotations

from ctrlgrad.records import record


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


__all__ = ["Budget"]
