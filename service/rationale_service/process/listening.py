"""Listening sockets, and advice for an address that cannot be used."""

import contextlib
import errno
import socket

from rationale.errors import RationaleError
from rationale_service.settings import PREFIX

_BACKLOG = 2048
_ACCEPTED_AT_ONCE = 16


class CannotListenError(RationaleError):
    """An address that is taken, not this machine's, or not allowed."""


def listen(host: str, port: int, flag: str = "--port", *, shared: bool = False) -> socket.socket:
    """Return a listening socket, IPv4 or IPv6.

    Args:
        shared: True to share the address with other processes that do so too. The socket listens only once
            this process serves; until then the kernel sends callers to the others.

    Raises CannotListenError, which names the setting to change.
    """
    listener = _bind(host, port, flag, shared=shared)
    if not shared:
        listener.listen(_BACKLOG)
    return listener


def reserve(host: str, port: int, flag: str) -> socket.socket:
    """Reserve a port for processes that share it, without listening. Raises as `listen`."""
    with _bind(host, port, flag, shared=False) as alone:  # no other process may share it
        port = port_of(alone)
    return _bind(host, port, flag, shared=True)


def _bind(host: str, port: int, flag: str, *, shared: bool) -> socket.socket:
    with contextlib.ExitStack() as on_failure:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = on_failure.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
        except OSError as error:
            raise CannotListenError(_hint(error, host, port, flag)) from error
        on_failure.pop_all()
    return listener


def several(listener: socket.socket) -> list[socket.socket]:
    """Return the listener and duplicates of it, which accept connections from the same queue.

    uvloop accepts one connection from each listener per turn. If overload makes turns long, new connections
    and their requests would wait for seconds.
    """
    return [listener, *(listener.dup() for _ in range(1, _ACCEPTED_AT_ONCE))]


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def address_of(listener: socket.socket) -> str:
    """Return `host:port` in the form of a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hint(error: OSError, host: str, port: int, flag: str) -> str:
    setting = f"{flag} or {PREFIX}{flag.removeprefix('--').replace('-', '_').upper()}"
    return {
        errno.EADDRINUSE: f"port {port} is taken, perhaps by another gateway: choose one with {setting} "
        "(0 takes a free one)",
        errno.EACCES: f"port {port} needs more rights: choose one above 1023 with {setting}",
    }.get(error.errno or 0, f"cannot listen on {host}: {error.strerror}")
