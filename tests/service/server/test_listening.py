"""New connections do not wait for many turns of a busy event loop."""

import asyncio
import contextlib
import socket
import struct
import time

import uvloop
from fastapi import FastAPI

from rationale_service.process.listening import listen, several
from rationale_service.protocols.rest.server import HttpServer

COUNT = 12


def test_connections_wait_in_one_queue() -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(listen("127.0.0.1", 0))
        listeners = [stack.enter_context(each) for each in several(first)]
        assert len({each.fileno() for each in listeners}) == len(listeners) > COUNT
        callers = [stack.enter_context(socket.create_connection(first.getsockname())) for _ in listeners]
        met = {stack.enter_context(each.accept()[0]).getpeername() for each in listeners}
        assert met == {each.getsockname() for each in callers}


def waiting(listener: socket.socket) -> int:
    """Connections that nobody has accepted: of a listening socket, what TCP_INFO calls unacknowledged."""
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
    return int(struct.unpack_from("I", info, 24)[0])


def test_many_connections_are_taken_in_one_turn_of_the_loop() -> None:
    async def connections() -> int:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(listen("127.0.0.1", 0))
            end = HttpServer(FastAPI(), listener, None, lifespan=False)
            await end.started()
            for _ in range(COUNT):
                stack.enter_context(socket.create_connection(listener.getsockname()))
            for _ in range(1000):  # a caller may be through before the kernel has queued it here
                if waiting(listener) == COUNT:
                    break
                time.sleep(0.001)
            await asyncio.sleep(0)  # what is ready is looked for at the end of a turn
            await asyncio.sleep(0)
            actual = len(end._server.server_state.connections)
        await end.stop(0)
        return actual

    assert uvloop.run(connections()) == COUNT
