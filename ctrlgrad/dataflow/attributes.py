"""What the primitives say besides their operands, declared as `ctrlgrad.ir.attributes` declares it of ordinary ops."""

from __future__ import annotations

from ctrlgrad.ir import Node
from ctrlgrad.ir.attributes import Attributes
from ctrlgrad.records import record


@record(kw_only=True)
class Enter(Attributes):
    frame: str
    # Whether the value is in all iterations of the frame, not in the first alone.
    constant: bool
    # How many iterations of the frame may be in flight.
    parallel_iterations: int
    # Whether the value is the number of iterations of a reversed loop.
    count: bool = False
    # Whether it opens a loop that only controls what a device has in the frame.
    control: bool = False


@record(kw_only=True)
class LoopCond(Attributes):
    # The loop that the frame was lowered from; errors name it.
    loop: Node | None = None
    maximum_iterations: int | None = None


@record(kw_only=True)
class Message(Attributes):
    # The number of an edge of the partition.
    edge: int


@record(kw_only=True)
class Send(Message):
    receiver: str


@record(kw_only=True)
class Recv(Message):
    sender: str


@record(kw_only=True)
class Cluster(Attributes):
    # Whether its last operand and result are effect tokens.
    effect: bool


__all__ = ["Cluster", "Enter", "LoopCond", "Message", "Recv", "Send"]
