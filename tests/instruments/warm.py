"""Programs in processes that begin with ctrlgrad imported: a server imports it once, and forks a process for each.

To start Python and to import takes most of the time of a small program. A launcher, such as `mpirun`, starts a relay in
the program's place (`command`). It hands its arguments, environment, folder and standard files to the server, and ends
as the program does, by its exit code or by its signal. SIGTERM and SIGINT at the relay reach the program; when the
relay is killed, so is the program.

All programs of a server have one seed of hashes: what must not depend on it needs processes of its own. Run as a
script, this module is the server or a relay; for the sake of relays it imports little at its top.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PASSED_ON = (signal.SIGTERM, signal.SIGINT)


def command(address: str, program: str, *arguments: str) -> list[str]:
    """Runner of a program in a process of the server at an address."""
    return [sys.executable, "-I", "-S", __file__, "relay", address, program, *arguments]


@contextmanager
def server(*modules: str) -> Iterator[str]:
    """The address of a server that has imported these modules."""
    import subprocess
    import tempfile

    ours, theirs = socket.socketpair()
    with tempfile.TemporaryDirectory() as folder:
        address = os.path.join(folder, "server")
        given = [sys.executable, "-P", __file__, "server", address, str(theirs.fileno()), *modules]
        files = {"pass_fds": [theirs.fileno()], "stdin": subprocess.DEVNULL}
        with subprocess.Popen(given, start_new_session=True, **files), ours:
            theirs.close()
            ours.settimeout(120)
            assert ours.recv(1), "the server has not started"
            yield address


def relay(address: str, argv: list[str]) -> None:
    """Have a program run, and end as it does."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    given = repr((argv, os.getcwd(), dict(os.environ))).encode()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    socket.send_fds(server, [len(given).to_bytes(8, "little")], [0, 1, 2])
    server.sendall(given)
    program = _number(server)

    def pass_on(number: int, frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(program, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = _number(server)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) in PASSED_ON:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _number(connection: socket.socket) -> int:
    return int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")


def serve(address: str, starter: socket.socket) -> list[str]:
    """Fork a process for each relay, until the process that started the server closes its end.

    Returns in those processes alone, with the arguments of the program.
    """
    import gc
    import select

    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        starter.sendall(b"R")
        while listening in select.select([listening, starter], [], [])[0]:
            relayed, _ = listening.accept()
            with relayed:
                if os.fork() == 0:
                    starter.close()
                    return _begin(relayed.dup())
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    os._exit(0)


def _begin(relayed: socket.socket) -> list[str]:
    """Returns in the program's process; the one that has forked it waits for its end, and for that of the relay."""
    import ast
    import threading

    length, files, _, _ = socket.recv_fds(relayed, 8, 3)
    given = relayed.recv(int.from_bytes(length, "little"), socket.MSG_WAITALL)
    program = os.fork()
    if program:

        def end_with_the_relay() -> None:
            relayed.recv(1)
            os.kill(program, signal.SIGKILL)

        relayed.sendall(program.to_bytes(8, "little"))
        for file in files:
            os.close(file)
        threading.Thread(target=end_with_the_relay, daemon=True).start()
        status = os.waitpid(program, 0)[1]
        with suppress(OSError):
            relayed.sendall(status.to_bytes(8, "little"))
        os._exit(0)
    relayed.close()
    argv, folder, environment = ast.literal_eval(given.decode())
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return list(argv)


if __name__ == "__main__":
    kind, place, *rest = sys.argv[1:]
    if kind == "relay":
        relay(place, rest)
    import importlib
    import runpy

    for name in rest[1:]:
        importlib.import_module(name)
    sys.argv = serve(place, socket.socket(fileno=int(rest[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
