"""One end for all ranks: a rank that dies, fails or is interrupted ends every other one, and rank 0 says why, once.

Every rank keeps one TCP connection to rank 0, and one thread that waits on it. When a process dies, however it dies,
its kernel closes its connections: rank 0 sees that at once and tells the other ranks. If rank 0 dies, they see it
themselves, and rank 1 says so. No heartbeat is sent, so a rank that computes for minutes is never taken for dead. A
machine that vanishes closes nothing; the kernels notice that by keepalive probes, after `PROBES + 1` seconds.

A process stopped by a debugger or by SIGSTOP is not dead, and the other ranks wait for it.

Ctrl-C at `mpirun` reaches the ranks as SIGTERM, with a quarter of a second until SIGKILL; `mpirun` then drops what they
print, and ends with its own exit code 1 (Open MPI 5). So rank 0 says why on the terminal itself too. A signal's handler
in C wakes the thread through a descriptor, so it acts while the main thread is inside MPI. A native call that holds
Python's lock for longer than that leaves no time to act; what is on disk is whole all the same. SIGINT at any one rank
has none of these limits.
"""

from __future__ import annotations

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
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from ctrlgrad.errors import CtrlgradError, ExecutionError, UserInputError
from ctrlgrad.records import record

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


def _show_on_terminal(ending: Ending) -> None:
    """For the user at the terminal from which `mpirun` was started, if there is one."""
    if not sys.stderr.isatty():
        with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
            terminal.write(f"\n{ending.title}: {ending.text}\n")


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
            if number == signal.SIGTERM:
                _show_on_terminal(ending)
            self._end(ending)
        with contextlib.suppress(OSError):
            _send(self._peers[0], _INTERRUPTED, Ending("", "", number))


def _ignore(number: int, frame: FrameType | None) -> None:
    """The work is done by the watching thread, which the signal has woken."""


def _probe(peer: socket.socket) -> None:
    """Let the kernel find out whether the other machine is there."""
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
