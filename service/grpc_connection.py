"""A connection of the gRPC end: its calls, from their heads to their statuses."""

import asyncio

from h2 import events
from h2.errors import ErrorCodes

from service.eager import begin
from service.errors import DeadlineError, MalformedError, NotReadyError, ServiceError, SlowBodyError
from service.grpc_call import refusal_of
from service.grpc_rpc import SLOW, Host, Rpc
from service.grpc_wire import (
    ANSWER,
    OK,
    PREFIX,
    Head,
    Headers,
    NotGrpcError,
    framed,
    read_head,
    trailers_of,
)
from service.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_SENT,
    MAX_STREAMS,
    RST,
    STREAM_WINDOW,
    WINDOW,
    Http2Connection,
)
from service.plain_calls import PlainCalls, retold, whole_message

_RST_SIZE = 4
_GRACE_S = 0.05  # the data plane's own word about a deadline tells more than the connection's


class GrpcConnection(Http2Connection):
    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host
        self._calls: dict[int, Rpc] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._plain = PlainCalls(self.http2, host.is_stream)
        self.on |= {
            events.RequestReceived: self._on_request,
            events.DataReceived: self._on_data,
            events.StreamEnded: self._on_end,
            events.StreamReset: lambda event: self._on_reset(event.stream_id),
            events.RemoteSettingsChanged: self._on_settings,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.host.connections.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.host.connections.discard(self)
        super().connection_lost(exc)

    def read(self, data: bytes) -> None:
        super().read(data)
        for stream_id in list(self._plain.half):
            self._adopt(stream_id)

    def lost(self) -> None:
        self._plain.half.clear()
        self._plain.windows.clear()
        for rpc in list(self._calls.values()):
            self._drop(rpc)

    def _on_settings(self, _: events.RemoteSettingsChanged) -> None:
        self._plain.first_window = self.http2.remote_settings.initial_window_size
        self.flush()  # the peer goes by its settings once they are acknowledged, not before
        self.more_room()

    # --- a plain request -------------------------------------------------------------------------------

    def take(self, kind: int, flags: int, stream_id: int, data: bytes, start: int, end: int) -> bool:
        plain = self._plain
        if kind == WINDOW and plain.widen(stream_id, data[start:end]):
            self.more_room()
            return True
        if kind == HEADERS:
            return self._take_headers(flags, stream_id, data[start:end])
        if stream_id not in plain.windows:
            return False
        if kind == RST and end - start == _RST_SIZE:
            self.was_reset(stream_id)
            plain.drop(stream_id)
            self._on_reset(stream_id)
            return True
        if kind == DATA and flags == END_STREAM and stream_id in plain.half:
            message = whole_message(data, start, end)
            if message is not None and len(message) <= self.host.limit:
                self._begin_plain(stream_id, message)
                return True
        self._adopt(stream_id)
        return False

    def _take_headers(self, flags: int, stream_id: int, block: bytes) -> bool:
        is_next = stream_id & 1 and stream_id > self.http2.highest_inbound_stream_id > 0
        if flags != END_HEADERS or not is_next or not self._has_place():
            self._plain.forget_table()
            if stream_id in self._plain.windows:
                self._adopt(stream_id)
            return False
        self.let_say_more()
        head, headers = self._plain.decode(block)
        if head is None:
            self.tell(retold(stream_id, headers))
        else:
            self._plain.open(stream_id, head)
        return True

    def _begin_plain(self, stream_id: int, message: bytes) -> None:
        head = self._plain.half.pop(stream_id)
        rpc = Rpc(self, stream_id, head)
        rpc.asked = True
        self._calls[stream_id] = rpc
        update = self._plain.received(len(message) + PREFIX)
        if update:
            self.transport.write(update)
        if self._admit(rpc, head):
            self._set_timer(rpc, rpc.deadline_s)
            self._run(rpc, message)

    def _adopt(self, stream_id: int) -> None:
        """Leaves a plain stream to h2."""
        head = self._plain.adopt(stream_id)
        if head is not None:
            self._open(stream_id, head, asked=False)

    # --- a request comes -------------------------------------------------------------------------------

    def _has_place(self) -> bool:
        under_way = len(self._calls) + len(self._plain.half)
        return under_way < MAX_STREAMS and len(self.tasks) < 2 * MAX_STREAMS

    def _on_request(self, event: events.RequestReceived) -> None:
        stream_id = event.stream_id
        if not self._has_place():
            self.came_to_nothing()
            self.http2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        try:
            head = read_head(event.headers)
        except NotGrpcError as error:
            self.http2.send_headers(stream_id, [(b":status", error.status)], end_stream=True)
            if event.stream_ended is None:
                self.http2.reset_stream(stream_id)
            return
        self._open(stream_id, head, asked=event.stream_ended is not None)

    def _open(self, stream_id: int, head: Head, *, asked: bool) -> None:
        rpc = Rpc(self, stream_id, head)
        rpc.asked = asked
        self._calls[stream_id] = rpc
        if not self._admit(rpc, head):
            return
        rpc.messages = self.host.messages(head)
        rpc.patience_s = self.host.patience_s()
        patient_s = rpc.began_s + rpc.patience_s
        if rpc.is_stream:
            self._set_timer(rpc, rpc.deadline_s)
            self._run(rpc, None)
        elif rpc.deadline_s is not None and rpc.deadline_s < patient_s:
            self._set_timer(rpc, rpc.deadline_s)
        else:
            rpc.timer = self.loop.call_at(patient_s, self._too_slow, rpc)

    def _admit(self, rpc: Rpc, head: Head) -> bool:
        """Finds a call's handler; or answers why there is none for it."""
        try:
            rpc.handler = self.host.enter(rpc)
            if head.wrong is not None:
                self.host.refused(rpc, head.wrong)
                raise head.wrong
            if self._leaving:
                stopping = NotReadyError("the server is stopping")
                self.host.refused(rpc, stopping)
                raise stopping
        except ServiceError as error:
            self._end(rpc, trailers_of(error))
            return False
        return True

    def _on_data(self, event: events.DataReceived) -> None:
        size = event.flow_controlled_length
        self.received(size)
        rpc = self._calls.get(event.stream_id)
        if rpc is None or rpc.messages is None:
            return
        rpc.untaken += size
        rpc.asked = event.stream_ended is not None
        try:
            rpc.messages.add(event.data)
            if not rpc.is_stream and rpc.messages.more_than_one:
                raise MalformedError("a call of this kind has one message")
        except ServiceError as error:
            self._refuse(rpc, error)
            return
        if event.stream_ended is None and not rpc.messages.ready:
            self.taken(rpc)
        rpc.arrived()

    def _on_end(self, event: events.StreamEnded) -> None:
        rpc = self._calls.get(event.stream_id)
        if rpc is None or rpc.messages is None:
            return
        rpc.asked = True
        if rpc.is_stream:
            rpc.arrived()
            return
        try:
            if not rpc.messages.ready:
                raise MalformedError("the request ends before its message does")
            message = rpc.messages.take()
        except ServiceError as error:
            self._refuse(rpc, error)
            return
        rpc.stop_timer()
        self._set_timer(rpc, rpc.deadline_s)
        self._run(rpc, message)

    def taken(self, rpc: Rpc) -> None:
        """Gives a stream's window back, once half of it is used."""
        assert rpc.messages is not None  # noqa: S101  # an open call has them
        if rpc.untaken < STREAM_WINDOW // 2 or rpc.messages.ready or rpc.asked or rpc.over:
            return
        self.http2.increment_flow_control_window(rpc.untaken, rpc.stream_id)
        rpc.untaken = 0
        self.flush()

    def _on_reset(self, stream_id: int) -> None:
        rpc = self._calls.get(stream_id)
        if rpc is not None:
            self._drop(rpc)
        self._close_if_done()

    def began_s(self, stream_id: int) -> float | None:
        rpc = self._calls.get(stream_id)
        return rpc.began_s if rpc is not None else self.loop.time() if stream_id in self._plain.half else None

    # --- a call runs -----------------------------------------------------------------------------------

    def _run(self, rpc: Rpc, message: bytes | None) -> None:
        work = self._answer(rpc, message)
        rpc.task = self.loop.create_task(work) if rpc.is_stream else begin(self.loop, work)
        if rpc.task is not None:
            self.tasks.add(rpc.task)
            rpc.task.add_done_callback(self.tasks.discard)

    async def _answer(self, rpc: Rpc, message: bytes | None) -> None:
        assert rpc.handler is not None  # noqa: S101  # an admitted call has one
        try:
            if message is None:
                await rpc.handler.run(rpc)
            else:
                answer = await rpc.handler.run(rpc, message)
                if self._answer_at_once(rpc, answer):
                    return
                await self.send(rpc, answer)
            self._end(rpc, OK)
        except ServiceError as error:
            self._end(rpc, trailers_of(error))
        except Exception as error:  # whatever it is, the caller gets a status, and no inner text
            self._end(rpc, trailers_of(refusal_of(error, rpc.path)))
        except asyncio.CancelledError:  # where nobody has ended the call, its caller is owed a word
            self._end(rpc, trailers_of(NotReadyError("the work was given up")))
            raise

    def _answer_at_once(self, rpc: Rpc, message: bytes) -> bool:
        """Sends a whole answer in one go; False where that is not possible."""
        if rpc.over:
            return True
        if rpc.stream_id in self._plain.windows:
            frames = self._plain.answer(rpc.stream_id, message, rpc.trailing) if self.may_write else None
            if frames is not None:
                self._over(rpc, frames)
                return True
            self._adopt(rpc.stream_id)
        http2 = self.http2
        size = len(message) + PREFIX
        room = min(http2.local_flow_control_window(rpc.stream_id), http2.max_outbound_frame_size)
        if size > min(room, LARGEST_SENT) or not self.may_write:
            return False
        http2.send_headers(rpc.stream_id, ANSWER)
        rpc.answering = True
        http2.send_data(rpc.stream_id, framed(message))
        self._end(rpc, OK)
        return True

    async def send(self, rpc: Rpc, message: bytes) -> None:
        data = memoryview(framed(message))
        if not rpc.over and not rpc.answering:
            self.http2.send_headers(rpc.stream_id, ANSWER)
            rpc.answering = True
        moved_s = self.loop.time()
        while data and not rpc.over:
            room = self.http2.local_flow_control_window(rpc.stream_id)
            size = min(room, self.http2.max_outbound_frame_size, LARGEST_SENT, len(data))
            if size <= 0 or not self.may_write:
                await self.wait_for_room(moved_s)
                continue
            self.http2.send_data(rpc.stream_id, data[:size].tobytes())
            data = data[size:]
            moved_s = self.loop.time()
            self.let_say_more()
            self.flush()

    # --- a call ends -----------------------------------------------------------------------------------

    def _end(self, rpc: Rpc, status: Headers) -> None:
        """Sends the status, and with it that the rest of the request is not wanted."""
        if rpc.over:
            return
        if rpc.stream_id in self._plain.windows:
            frames = self._plain.refusal(rpc.stream_id, (*status, *rpc.trailing))
            if frames is not None:
                self._over(rpc, frames)
                return
            self._adopt(rpc.stream_id)
        trailers = [*(() if rpc.answering else ANSWER), *status, *rpc.trailing]
        self.http2.send_headers(rpc.stream_id, trailers, end_stream=True)
        if not rpc.asked:
            self.http2.reset_stream(rpc.stream_id)
        self._over(rpc, self.http2.data_to_send())

    def _over(self, rpc: Rpc, last: bytes) -> None:
        """Writes the last that is to be said of a call."""
        self._forget(rpc)
        if not self.transport.is_closing():
            self.transport.write(last)
        self._close_if_done()

    def _drop(self, rpc: Rpc) -> None:
        """The caller is gone: nothing more can be said, and nobody waits for the work."""
        self._forget(rpc)
        if rpc.task is not None:
            rpc.task.cancel()
        self._close_if_done()

    def _forget(self, rpc: Rpc) -> None:
        rpc.over = True
        self._calls.pop(rpc.stream_id, None)
        self._plain.drop(rpc.stream_id)
        rpc.stop_timer()
        if rpc.messages is not None:
            rpc.messages.close()

    def _refuse(self, rpc: Rpc, error: ServiceError) -> None:
        """Ends a call from the outside, whether or not its handler runs."""
        if rpc.over:
            return
        if rpc.task is None:
            self.host.refused(rpc, error)
        self._end(rpc, trailers_of(error))
        if rpc.task is not None:
            rpc.task.cancel()

    def _set_timer(self, rpc: Rpc, when_s: float | None) -> None:
        if when_s is not None:
            rpc.timer = self.loop.call_at(when_s + _GRACE_S, self._too_late, rpc)

    def _too_late(self, rpc: Rpc) -> None:
        self._refuse(rpc, DeadlineError("the call's deadline has passed"))

    def _too_slow(self, rpc: Rpc) -> None:
        self._refuse(rpc, SlowBodyError(SLOW))

    # --- the server stops ------------------------------------------------------------------------------

    def leave(self) -> None:
        """Takes no more calls, and closes when those that run are answered."""
        for stream_id in list(self._plain.half):
            self._adopt(stream_id)
        self._leaving = True
        self._close_if_done()

    def stop(self) -> None:
        """Tells the peer to go, and leaves."""
        if not self.transport.is_closing():
            self.say_goaway(ErrorCodes.NO_ERROR)
        self.leave()

    def give_up(self) -> None:
        """Ends what runs, and closes."""
        for rpc in list(self._calls.values()):
            self._refuse(rpc, NotReadyError("the server is stopping"))
        self.transport.close()

    def _close_if_done(self) -> None:
        if self._leaving and not self._calls and not self._plain.half:
            self.close_soon()
