"""Number of ranks that were started together, and joining them.

The number is read from the environment that the launcher set: asking MPI would start it. Of these variables the
first one that is there counts, so that an `mpirun` inside of a SLURM step goes before the step:

    OMPI_COMM_WORLD_SIZE, ..._RANK            Open MPI's mpirun
    MV2_COMM_WORLD_SIZE, ..._RANK             MVAPICH's
    PMI_SIZE, PMI_RANK                        MPICH's and Intel's; `srun --mpi=pmi2`
    FLUX_JOB_SIZE, FLUX_TASK_RANK             flux run
    SLURM_STEP_NUM_TASKS, SLURM_PROCID        srun, whatever its --mpi
    PMIX_RANK                                 any other launcher with PMIx, as prun; it does not say how many there are

A batch script of SLURM has a SLURM_PROCID and a SLURM_NTASKS too, and is one process; it has no SLURM_STEP_NUM_TASKS.
Sources: the manuals of these launchers, sections on environment variables.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ctrlgrad.errors import CtrlgradError, ExecutionError, UserInputError
from ctrlgrad.records import record

# A common end of all ranks: a rank that dies, fails or is interrupted ends all ranks, and rank 0 prints the reason.
#
# Every rank keeps one TCP connection to rank 0, and one thread that waits on it. When a process dies, however it
# dies, its kernel closes its connections: rank 0 sees that at once and tells the other ranks. If rank 0 dies, they
# see it themselves, and rank 1 says so. No heartbeat is sent, so a rank that computes for minutes is never taken for
# dead. A machine that vanishes closes nothing; the kernels notice that by keepalive probes, after `PROBES + 1`
# seconds.
#
# A process stopped by a debugger or by SIGSTOP is not dead, and the other ranks wait for it.
#
# Ctrl-C at `mpirun` reaches the ranks as SIGTERM, with a quarter of a second until SIGKILL; `mpirun` then drops what
# they print, and ends with its own exit code 1 (Open MPI 5). So rank 0 says why on the terminal itself too. A
# signal's handler in C wakes the thread through a descriptor, so it acts while the main thread is inside MPI. A
# native call that holds Python's lock for longer than that leaves no time to act; what is on disk is whole all the
# same. SIGINT at any one rank has none of these limits.


FAILED, STOPPED = 1, 130
# Seconds: to connect at the start, between keepalive probes, and for rank 0 to answer a failure.
CONNECT, PROBE, ANSWER = 30.0, 1, 5.0
PROBES = 3
_TOKEN = 16
# Header of a packet: a kind, an exit code (or a rank, or a signal), and the lengths of two texts that follow.
_HEADER = struct.Struct("<cBII")
_READY, _FAILED, _INTERRUPTED, _END, _GOODBYE, _LEFT = b"R", b"F", b"I", b"E", b"G", b"L"


@record
class Ending:
    """Why all ranks end: a word for the kind, the text, and the exit code."""

    title: str
    text: str
    code: int


def _interrupted() -> Ending:
    return Ending("Stopped", "by Ctrl-C; what was written before is as it was", STOPPED)


def print_ending(ending: Ending) -> None:
    print(f"{ending.title}: {ending.text}", file=sys.stderr, flush=True)


class Watch:
    """Watches from `start` to `close`; in between, `fail` ends all ranks.

    `show` prints an ending; it is called once, in rank 0 (in rank 1, where rank 0 has died). `on_interruption` is asked
    in rank 0, in the watching thread, what to do and to say when any rank gets SIGINT or SIGTERM. `gone` says which
    ranks have closed their watch, as far as this one has heard.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.show: Callable[[Ending], None] = print_ending
        # The ranks that have said goodbye.
        self.gone: set[int] = set()
        self.on_interruption: Callable[[], Ending] = _interrupted
        # Advice after a rank has died.
        self.advice = "start the program again"
        self._peers: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._wakes, self._woken = socket.socketpair()
        # Held by the thread that ends the process; never released.
        self._ending = threading.Lock()
        self._closing = threading.Event()
        self._handlers: dict[signal.Signals, Any] = {}

    # Set-up.

    def start(self, broadcast: Callable[[bytes | None], bytes], is_one_host: bool) -> None:
        """Connect all ranks, and begin to watch. `broadcast` gives every rank the bytes of rank 0.

        Raises:
            UserInputError: a rank cannot reach rank 0.
            ExecutionError: a rank ended before all were connected.
        """
        try:
            if self.rank == 0:
                self._accept(broadcast, "127.0.0.1" if is_one_host else "")
            else:
                self._connect(broadcast(None))
        except CtrlgradError:
            self._close_all()
            raise
        for rank, peer in self._peers.items():
            _probe(peer)
            self._selector.register(peer, selectors.EVENT_READ, rank)
        self._woken.setblocking(False)
        self._wakes.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        os.register_at_fork(after_in_child=self._close_all)
        threading.Thread(target=self._watch, name="ctrlgrad watch", daemon=True).start()

    def _accept(self, broadcast: Callable[[bytes | None], bytes], interface: str) -> None:
        token = secrets.token_bytes(_TOKEN)
        with socket.create_server((interface, 0), backlog=self.size) as server:
            host = interface or socket.gethostname()
            broadcast(token + f"{host} {server.getsockname()[1]}".encode())
            deadline = time.monotonic() + CONNECT
            while len(self._peers) < self.size - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    missing = [str(r) for r in range(1, self.size) if r not in self._peers]
                    raise _unreachable(f"rank {', '.join(missing)}", f"no connection to {host}") from None
                # A peer that does not know the token is not one of the ranks.
                peer.settimeout(CONNECT)
                hello = _read(peer, _TOKEN + 4)
                if hello is None or not secrets.compare_digest(hello[:_TOKEN], token):
                    peer.close()
                    continue
                self._peers[int.from_bytes(hello[_TOKEN:], "little")] = peer
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                _send(peer, _READY, Ending("", "", 0))

    def _connect(self, told: bytes) -> None:
        token, address = told[:_TOKEN], told[_TOKEN:].decode()
        host, port = address.split(" ")
        try:
            peer = socket.create_connection((host, int(port)), timeout=CONNECT)
        except OSError as error:
            raise _unreachable(f"rank {self.rank}", f"{host}: {error}") from None
        self._peers[0] = peer
        with contextlib.suppress(OSError):
            peer.sendall(token + self.rank.to_bytes(4, "little"))
        # Rank 0 may end before that because another rank has, which it does not know yet.
        peer.settimeout(2 * CONNECT)
        if _receive(peer) is None:
            raise ExecutionError(
                "a rank ended before all ranks were connected",
                expected=f"{self.size} ranks that start alike",
                got=f"rank 0 closed its connection to rank {self.rank}",
                hint="the launcher says which rank ended first",
            )

    def catch_signals(self) -> None:
        """Let SIGINT and SIGTERM end all ranks as an interruption. For a program of its own; main thread only."""
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, _ignore)

    # Ends.

    def fail(self, ending: Ending) -> NoReturn:
        """End all ranks because of what has happened in this one. Called in any thread; does not return."""
        if self.rank == 0:
            self._end(ending)
        with contextlib.suppress(OSError):
            _send(self._peers[0], _FAILED, ending)
            # Rank 0 answers with the end, which the watching thread obeys.
            time.sleep(ANSWER)
        self._exit(ending.code)

    def close(self) -> None:
        """The end of a run that went well: say goodbye, so that the end of this process is not taken for its death.

        Rank 0 waits for the goodbyes of all ranks and answers them, so all ranks call this.
        """
        if self.rank == 0:
            self._closing.wait()
            for peer in self._peers.values():
                with contextlib.suppress(OSError):
                    _send(peer, _GOODBYE, Ending("", "", 0))
        else:
            with contextlib.suppress(OSError):
                _send(self._peers[0], _GOODBYE, Ending("", "", 0))
            self._closing.wait()
        if self._handlers:
            signal.set_wakeup_fd(-1)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        self._close_all()

    def _close_all(self) -> None:
        """Close all connections, in a forked child too: one kept there would outlive this rank, and hide its death."""
        self._selector.close()
        for end in (*self._peers.values(), self._wakes, self._woken):
            end.close()

    def _end(self, ending: Ending, *, shown: bool = True) -> NoReturn:
        """Say why, once, tell all, and end this process."""
        self._ending.acquire()
        if shown:
            # Whatever goes wrong with the text, the ranks end.
            with contextlib.suppress(Exception):
                self.show(ending)
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                _send(peer, _END, Ending("", "", ending.code))
        self._exit(ending.code)

    def _exit(self, code: int) -> NoReturn:
        # No clean-up: MPI's own end waits for all ranks, and some of them may be gone.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)

    # The watching thread.

    def _watch(self) -> None:
        said_goodbye: set[int] = set()
        while len(said_goodbye) < len(self._peers):
            signals: set[int] = set()
            # A death closes its connection before the launcher sends a signal because of it, so it is found first.
            for key, _ in self._selector.select():
                if key.data is None:
                    signals.update({signal.SIGINT, signal.SIGTERM} & set(self._woken.recv(64)))
                elif self._heard(key.data):
                    said_goodbye.add(key.data)
                    self._selector.unregister(key.fileobj)
            if signals:
                for rank in [r for r in self._peers if r not in said_goodbye and self._has_died(r)]:
                    self._lost(rank)
                self._interrupt(max(signals))
        self._closing.set()

    def _heard(self, rank: int) -> bool:
        """Act on what a rank sends; whether it was its goodbye."""
        message = _receive(self._peers[rank])
        if message is None:
            self._lost(rank)
        kind, ending = message
        if kind == _FAILED:
            self._end(Ending(ending.title, f"on rank {rank}: {ending.text}", ending.code))
        elif kind == _INTERRUPTED:
            self._interrupt(ending.code)
        elif kind == _END:
            self._exit(ending.code)
        elif kind == _LEFT:
            self.gone.add(ending.code)
        elif kind == _GOODBYE:
            self.gone.add(rank)
            for other in self._peers.keys() - self.gone:
                with contextlib.suppress(OSError):
                    _send(self._peers[other], _LEFT, Ending("", "", rank))
        return kind == _GOODBYE

    def _has_died(self, rank: int) -> bool:
        try:
            return self._peers[rank].recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _lost(self, rank: int) -> NoReturn:
        text = f"rank {rank} of {self.size} has died; all ranks stop\n  try: {self.advice}"
        self._end(Ending("Error", text, FAILED), shown=self.rank == (0 if rank else 1))

    def _interrupt(self, number: int) -> None:
        """Act on a signal that this rank, or another one, has got."""
        if self.rank == 0:
            ending = self.on_interruption()
            if number == signal.SIGTERM and not sys.stderr.isatty():
                # Print the ending on the terminal of `mpirun`.
                with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
                    terminal.write(f"\n{ending.title}: {ending.text}\n")
            self._end(ending)
        with contextlib.suppress(OSError):
            _send(self._peers[0], _INTERRUPTED, Ending("", "", number))


def _ignore(number: int, frame: FrameType | None) -> None:
    """The work is done by the watching thread, which the signal has woken."""


def _probe(peer: socket.socket) -> None:
    """Have the kernel probe whether the other machine is alive."""
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Options that macOS does not have keep their defaults.
    for name, value in (("TCP_KEEPIDLE", PROBE), ("TCP_KEEPINTVL", PROBE), ("TCP_KEEPCNT", PROBES), ("TCP_NODELAY", 1)):
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _send(peer: socket.socket, kind: bytes, ending: Ending) -> None:
    title, text = ending.title.encode(), ending.text.encode()
    peer.sendall(_HEADER.pack(kind, ending.code, len(title), len(text)) + title + text)


def _receive(peer: socket.socket) -> tuple[bytes, Ending] | None:
    """Receive a packet of a rank; None where its connection is closed."""
    header = _read(peer, _HEADER.size)
    if header is None:
        return None
    kind, code, title, text = _HEADER.unpack(header)
    words = _read(peer, title + text)
    if words is None:
        return None
    return kind, Ending(words[:title].decode(), words[title:].decode(), code)


def _read(peer: socket.socket, count: int) -> bytes | None:
    """So many bytes; None where the connection ends before."""
    data = b""
    with contextlib.suppress(OSError):
        while len(data) < count:
            part = peer.recv(count - len(data))
            if not part:
                return None
            data += part
        return data
    return None


def _unreachable(who: str, got: str) -> UserInputError:
    return UserInputError(
        f"{who} cannot reach rank 0",
        expected="a TCP connection from every machine to that of rank 0, by its host name",
        got=got,
        hint="open the ports between the machines, and check that their host names resolve",
    )


if TYPE_CHECKING:
    from ctrlgrad.mpi.world import World

# The number of ranks, and this one's, by launcher.
_VARIABLES = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
_RANK_ALONE = "PMIX_RANK"


@record
class Launch:
    """Rank of this process among those that were started together; `size` is None where the launcher does not say."""

    rank: int
    size: int | None


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Rank and number of processes from the launcher; None for a process that was started by itself, or as the only
    one.

    >>> launched({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1"})
    Launch(rank=1, size=3)
    >>> launched({}) is None
    True
    """
    for size, rank in _VARIABLES:
        if size in environment and rank in environment:
            found = Launch(int(environment[rank]), int(environment[size]))
            return None if found.size == 1 else found
    return Launch(int(environment[_RANK_ALONE]), None) if _RANK_ALONE in environment else None


def number_of_ranks() -> int:
    """Number of processes; asks MPI where the launcher does not say.

    Raises:
        UserInputError: as of `join`.
    """
    launch = launched()
    if launch is None:
        return 1
    return join().world.size if launch.size is None else launch.size


@record
class Joined:
    """State of a process that has joined the other ranks: the means of exchange, and the watch for their end."""

    world: World
    watch: Watch


@cache
def join() -> Joined:
    """Start MPI in this process, and watch the other ranks from now on; called again, gives the same.

    All ranks call this. A rank that then ends while another one waits for it, by its death or by an uncaught error,
    ends all ranks. One that ends well before that keeps the other ranks waiting: MPI starts on all ranks or on none.

    Raises:
        UserInputError: mpi4py is not installed, or the launcher belongs to another MPI.
    """
    launch = launched()
    size = 1 if launch is None else launch.size
    # Start MPI, and return the ranks' means of exchange.
    try:
        from ctrlgrad.mpi.world import World  # loads mpi4py, an extra, and starts MPI
    except (ImportError, RuntimeError) as error:
        raise UserInputError(
            "this process is one of several that were started together, and MPI cannot be used",
            expected="mpi4py, and the MPI library whose mpirun is used",
            got=str(error),
            hint="pip install -e '.[mpi]', or start one process, without mpirun",
        ) from None
    world = World()
    if size is not None and world.size != size:
        raise UserInputError(
            "the launcher and mpi4py belong to different MPI libraries",
            expected=f"{size} ranks, as the launcher says",
            got=f"{world.size}, as mpi4py says",
            hint="use the mpirun that `pip install -e '.[mpi]'` puts beside python; with srun, the --mpi of that "
            "MPI library (srun --mpi=list shows which there are)",
        )
    watch = Watch(world.rank, world.size)
    watch.start(world.broadcast, world.is_one_host())
    # Runs before mpi4py ends MPI, which waits for all ranks.
    atexit.register(_leave, watch, _Uncaught())
    return Joined(world, watch)


class _Uncaught:
    """The error that ends the program, if one does: what Python hands to `sys.excepthook`.

    At a prompt it hands over every error, and goes on: those do not count. `sys.exit` is no error.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._hook = sys.excepthook
        sys.excepthook = self._take

    def _take(self, kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if not hasattr(sys, "ps1"):
            self.error = error
        self._hook(kind, error, where)


def _leave(watch: Watch, uncaught: _Uncaught) -> None:
    """End this process, whose program has ended well or with an uncaught error."""
    if uncaught.error is not None:
        # Python has printed it.
        watch.fail(Ending("Error", f"{type(uncaught.error).__name__}; all ranks stop", FAILED))
    watch.close()
