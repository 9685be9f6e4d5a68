"""HTTP/2 on a connection: h2 speaks it, this bounds what a peer may make it hold or do.

h2 does no input or output and sets few limits. Frames are told apart here before it sees them, by their nine
bytes, and what it wants to say is written out after it.
"""

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Any, cast

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from service.errors import DeadlineError
from service.http2_allowance import Allowance

log = logging.getLogger(__name__)

MAX_STREAMS = 128  # of one connection at a time
STREAM_WINDOW = 1 << 18  # bytes that a peer may send on a stream before anybody takes them
CONNECTION_WINDOW = 1 << 20  # given back as bytes come: streams bound what is held
_FIRST_WINDOW = (1 << 16) - 1  # of every connection, before it is enlarged
MAX_FRAME = 1 << 14
_MAX_HEADERS = 1 << 16
LARGEST_SENT = 1 << 17  # bytes of a frame, however large a peer takes them: what is written is held
_MAX_UNSENT = 1 << 20  # bytes of answers to pings and the like that a peer does not read
_HELLO_S = 10.0  # until a peer has said that it speaks HTTP/2, and for a block of headers
_STALLED_S = 60.0  # for which a peer may take nothing of an answer
_LINGER_S = 0.1
_CLOSING_S = 5.0
_PREFACE = 24
_PER_CALL = 2  # small frames: some clients measure the way by a ping for each call or piece of an answer
_RAPID_S = 0.01  # a call that was begun earlier took its place: so many at a time bound those
_FRAME = struct.Struct(">HBBBL")
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 0x1, 0x4
_STREAM_ID = (1 << 31) - 1
_GO_AWAY = struct.Struct(">HBBBLLL")
_CONFIG = H2Configuration(
    client_side=False, validate_outbound_headers=False, normalize_outbound_headers=False
)


class _ViolationError(ProtocolError):
    def __init__(self, code: ErrorCodes) -> None:
        super().__init__()
        self.error_code = code


class Http2(H2Connection):
    MAX_CLOSED_STREAMS = 1024  # to tell late frames from wrong ones; 65536 by itself

    def __init__(self) -> None:
        super().__init__(_CONFIG)
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME,
                SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_HEADERS,
            },
        )


class Http2Connection(asyncio.Protocol):
    """Whoever derives from it fills `on`, what to do by h2's events, and defines `lost`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = self.loop.create_future()
        self.http2 = Http2()
        self.may_write = True
        self.on: dict[type[events.Event], Callable[[Any], None]] = {
            events.WindowUpdated: self.more_room,
            events.RemoteSettingsChanged: self.more_room,
        }
        self._failed = False
        self._rest = b""
        self._greeted = 0  # bytes of the preface that have come
        self._header_bytes = 0  # of a block whose end has not come
        self._in_block = False
        self._dropped = Allowance()
        self._small = Allowance()  # pings, settings and all else that is no call
        self._untaken = 0
        self._room = asyncio.Event()  # set whenever there may be more room to send
        self._timer: asyncio.TimerHandle | None = None

    def lost(self) -> None:
        """Ends all streams: nothing more can be said."""
        raise NotImplementedError

    def leave(self) -> None:
        """The peer opens no more streams."""
        raise NotImplementedError

    def take(self, kind: int, flags: int, stream_id: int, data: bytes, start: int, end: int) -> bool:
        """Whether a frame, whose body is `data[start:end]`, was meant for somebody else than h2."""
        raise NotImplementedError

    def began_s(self, stream_id: int) -> float | None:
        """When a call that is under way began, on the event loop's clock."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.http2.initiate_connection()
        self.http2.increment_flow_control_window(CONNECTION_WINDOW - _FIRST_WINDOW)
        self.flush()
        self._hurry()

    def connection_lost(self, _: Exception | None) -> None:
        self._stop_hurrying()
        self.lost()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self.may_write = False

    def resume_writing(self) -> None:
        self.may_write = True
        self._room.set()

    def data_received(self, data: bytes) -> None:
        if self._failed or self.transport.is_closing():
            return
        try:
            self.read(self._rest + data if self._rest else data)
        except ProtocolError as error:
            self._fail(error.error_code)
        except Exception:  # a fault of ours ends this connection, and no other
            log.exception("a connection by HTTP/2")
            self._fail(ErrorCodes.INTERNAL_ERROR)
        else:
            self.flush()
            if self.transport.get_write_buffer_size() > _MAX_UNSENT:
                self.transport.abort()

    # --- frames ----------------------------------------------------------------------------------------

    def read(self, data: bytes) -> None:
        """Raises ProtocolError."""
        at = 0
        if self._greeted < _PREFACE:
            at = min(len(data), _PREFACE - self._greeted)
            self._greeted += at
            self.http2.receive_data(data[:at])
        end = len(data)
        while end - at >= _FRAME.size:
            high, low, kind, flags, stream_id = _FRAME.unpack_from(data, at)
            size = high << 8 | low
            if size > MAX_FRAME:
                raise _ViolationError(ErrorCodes.FRAME_SIZE_ERROR)
            after = at + _FRAME.size + size
            if after > end:
                break
            in_block, start = self._in_block, at + _FRAME.size
            if in_block or not self.take(kind, flags, stream_id & _STREAM_ID, data, start, after):
                self._look(kind, flags, stream_id & _STREAM_ID, size)
                if kind == GOAWAY and not in_block:
                    self.leave()  # not h2's: it would not let running calls be answered
                else:
                    self.tell(data[at:after])
            at = after
        self._rest = data[at:]

    def tell(self, frames: bytes) -> None:
        """Has h2 read them. Raises ProtocolError."""
        for event in self.http2.receive_data(frames):
            handle = self.on.get(type(event))
            if handle is not None:
                handle(event)

    def _look(self, kind: int, flags: int, stream_id: int, size: int) -> None:
        """Raises ProtocolError where a peer asks for too much with too little."""
        if kind == WINDOW or (kind == DATA and size):
            return
        if kind in (HEADERS, CONTINUATION):
            self._header_bytes += size
            if self._header_bytes > _MAX_HEADERS:
                raise _ViolationError(ErrorCodes.ENHANCE_YOUR_CALM)
            if flags & END_HEADERS:
                self._header_bytes = 0
                self._in_block = False
                self._stop_hurrying()
            else:
                self._in_block = True
                self._hurry()
        elif kind == SETTINGS:
            self._stop_hurrying()
        if kind == HEADERS:
            self.let_say_more()
        elif kind == RST:
            self.was_reset(stream_id)
        else:
            self._said_little()

    def let_say_more(self) -> None:
        """To a peer that calls, or is being answered."""
        self._small.add(_PER_CALL)

    def was_reset(self, stream_id: int) -> None:
        """Tells a peer that drops its calls as fast as it makes them from one whose deadlines pass.

        Raises ProtocolError.
        """
        began_s = self.began_s(stream_id)
        if began_s is not None and self.loop.time() - began_s < _RAPID_S:
            self.came_to_nothing()
        else:
            self._said_little()

    def came_to_nothing(self) -> None:
        """A call that took no place, or had hardly taken it. Raises ProtocolError for too many."""
        if not self._dropped.take(self.loop.time()):
            raise _ViolationError(ErrorCodes.ENHANCE_YOUR_CALM)

    def _said_little(self) -> None:
        if not self._small.take(self.loop.time()):
            raise _ViolationError(ErrorCodes.ENHANCE_YOUR_CALM)

    def _fail(self, code: int) -> None:
        """Says why, ends all calls, and closes: a little later, or what is unread takes the word along."""
        self._stop_hurrying()
        if not self._failed and not self.transport.is_closing():
            self._failed = True
            self.flush()
            self.say_goaway(code)
            self.close_soon()
            self.loop.call_later(_CLOSING_S, self.transport.abort)
        self.lost()

    def close_soon(self) -> None:
        """Once the peer can have read that it is to go: what meets a closed socket takes the word along."""
        self.loop.call_later(_LINGER_S, self.transport.close)

    def warn(self) -> None:
        """Tells the peer to make its next calls elsewhere. Those that it still makes here are answered."""
        if not self.transport.is_closing():
            self.say_goaway(ErrorCodes.NO_ERROR, _STREAM_ID)

    def say_goaway(self, code: int, last: int | None = None) -> None:
        """`last` is the highest stream that is answered; those that have come, if it is not given."""
        # Not by h2, which would take nothing more from the peer then, nor say anything.
        if last is None:
            last = self.http2.highest_inbound_stream_id
        self.transport.write(_GO_AWAY.pack(0, 8, GOAWAY, 0, 0, last, code))

    def _hurry(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_HELLO_S, self._fail, ErrorCodes.NO_ERROR)

    def _stop_hurrying(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        self.transport.abort()

    def flush(self) -> None:
        data = self.http2.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    # --- flow control ----------------------------------------------------------------------------------

    def received(self, size: int) -> None:
        """Lets the peer send as much again, on other streams if not on this."""
        self._untaken += size
        if self._untaken >= CONNECTION_WINDOW // 2:
            self.http2.increment_flow_control_window(self._untaken)
            self._untaken = 0

    async def wait_for_room(self, moved_s: float) -> None:
        """Until more may be sent, perhaps. Raises DeadlineError where nothing was sent for too long.

        Args:
            moved_s: when something was, on the event loop's clock.
        """
        self.flush()
        self._room.clear()
        try:
            async with asyncio.timeout_at(moved_s + _STALLED_S):
                await self._room.wait()
        except TimeoutError as error:
            raise DeadlineError("the caller does not take its answer") from error

    def more_room(self, _: events.Event | None = None) -> None:
        self._room.set()
