"""Duration of a loop under a budget: the manager's rules on a model of chunks, copies and two clocks.

The manager is measured against it: where it waits longer than its rules demand, the two differ. The model has one loop
whose chunks are alike, on a device whose copies run beside the computation. It follows the rules of
`ctrlgrad.memory.residency` (the oldest chunk that can go leaves), `ctrlgrad.memory.residency` (copies
and fetches ahead) and `ctrlgrad.memory.schedule` (groups that are run again), chunk by chunk: the same
decisions with the same times give the same end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ctrlgrad.memory.planner import ChunkTimes, copied_share, uncopied_bytes
from ctrlgrad.memory.schedule import most_state_bytes, plan_recovery


@dataclass(frozen=True)
class Setting:
    """A loop and its budget. `device_bytes` is what blocks and states may take; `share` is the share of chunks that are
    copied, None for the best one; sizes in bytes."""

    chunks: int
    chunk_bytes: int
    state_bytes: int
    device_bytes: int
    times: ChunkTimes
    share: float | None = None


@dataclass(frozen=True)
class Forecast:
    """Seconds from the first chunk's begin to the end of the last chunk's backward pass, and what they hold."""

    seconds: float
    stalled_forward: float
    stalled_backward: float
    copied: int
    run_again: int


@dataclass(eq=False)
class _Model:
    setting: Setting
    share: float
    now: float = 0.0
    out_free: float = 0.0
    in_free: float = 0.0
    debt: float = 0.0
    stalled: float = 0.0
    copied: int = 0
    run_again: int = 0
    # Chunks on the device, the oldest first, and when each is whole there.
    here: dict[int, float] = field(default_factory=dict)
    # When a chunk's backup is whole.
    backups: dict[int, float] = field(default_factory=dict)
    # Chunks that are to be run again.
    again: set[int] = field(default_factory=set)
    states: list[int] = field(default_factory=list)
    distance: int = 1

    @property
    def used(self) -> int:
        return len(self.here) * self.setting.chunk_bytes + len(self.states) * self.setting.state_bytes

    def stall(self, until: float) -> None:
        self.stalled += max(0.0, until - self.now)
        self.now = max(self.now, until)

    # Forward.

    def forward(self) -> None:
        for index in range(self.setting.chunks):
            if self.share < 1 and index % self.distance == 0:
                self.make_room(self.setting.state_bytes)
                self.states.append(index)
            self.make_room(self.setting.chunk_bytes)
            self.now += self.setting.times.forward
            self.here[index] = self.now
            self.thin()
            self.leave_early()

    def thin(self) -> None:
        setting, is_mixed = self.setting, self.share > 0
        most = most_state_bytes(setting.device_bytes, 0, setting.state_bytes, setting.chunk_bytes)
        if is_mixed and len(self.states) * setting.state_bytes > most:
            self.states = [i for i in self.states if i == 0 or i not in self.backups]
        if len(self.states) > 1 and len(self.states) * setting.state_bytes > most:
            self.distance *= 2
            self.states = [i for i in self.states if i % self.distance == 0]

    def make_room(self, nbytes: int) -> None:
        while self.used + nbytes > self.setting.device_bytes and self.leave():
            pass

    def leave(self) -> bool:
        for index in self.here:
            if index in self.again or self.backups.get(index, float("inf")) <= self.now:
                del self.here[index]
                return True
        for index in self.here:
            if index in self.backups:
                self.stall(self.backups[index])
                return True
        for index in self.here:
            self.decide(index)
            return True
        return False

    def leave_early(self) -> None:
        if self.used + self.setting.chunk_bytes <= self.setting.device_bytes // 2:
            return
        waiting = [i for i in self.here if i not in self.backups and i not in self.again]
        total = len(waiting) * self.setting.chunk_bytes
        for index in waiting:
            if total <= uncopied_bytes(self.setting.device_bytes, self.setting.chunk_bytes):
                break
            self.decide(index)
            total -= self.setting.chunk_bytes

    def decide(self, index: int) -> None:
        self.debt += self.share
        if self.debt < 1 - 1e-9:
            self.again.add(index)
            return
        self.debt -= 1
        self.out_free = max(self.out_free, self.now) + self.setting.times.out
        self.backups[index] = self.out_free
        self.copied += 1

    # Backward.

    def backward(self) -> None:
        for index in reversed(range(self.setting.chunks)):
            if index not in self.here:
                if index in self.backups:
                    self.fetch(index)
                else:
                    self.recover(index)
            self.stall(self.here[index])
            self.fetch_ahead(index)
            self.now += self.setting.times.backward
            del self.here[index]
            self.states = [i for i in self.states if i < index]
            self.fetch_ahead(index)

    def fetch(self, index: int) -> None:
        self.in_free = max(self.in_free, self.now) + self.setting.times.into
        self.here[index] = self.in_free

    def fetch_ahead(self, current: int) -> None:
        free = self.setting.device_bytes - self.used
        spare = 0
        for index in reversed(range(current)):
            if index in self.here:
                continue
            if index not in self.backups:
                again = self.setting.chunk_bytes + 2 * self.setting.state_bytes
                free -= max(0, again - spare)
                spare = max(spare, again)
            elif self.setting.chunk_bytes <= free:
                self.fetch(index)
                free -= self.setting.chunk_bytes
            else:
                return
            if free <= 0:
                return

    def recover(self, index: int) -> None:
        setting = self.setting
        base = max(i for i in self.states if i <= index)
        room = setting.device_bytes - (len(self.states) + 2) * setting.state_bytes
        recovery = plan_recovery(index - base + 1, setting.chunk_bytes, setting.state_bytes, room, None)
        self.now += recovery.length * setting.times.forward
        self.run_again += recovery.length
        self.states = sorted({*self.states, *(base + step for step in recovery.states)})
        for chunk in range(base + recovery.first_kept, index + 1):
            if chunk not in self.here:
                while self.used + setting.chunk_bytes > setting.device_bytes and len(self.here) > 1:
                    del self.here[min(self.here)]
                self.here[chunk] = self.now


def forecast(setting: Setting) -> Forecast:
    """Forecast of a run of a loop."""
    share = copied_share(setting.times) if setting.share is None else setting.share
    model = _Model(setting, share)
    model.forward()
    before = model.stalled
    model.backward()
    return Forecast(model.now, before, model.stalled - before, model.copied, model.run_again)


__all__ = ["Forecast", "Setting", "forecast"]
