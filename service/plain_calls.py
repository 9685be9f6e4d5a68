"""The common call past h2: one message there, one back, on a connection that h2 has opened.

h2's machinery for a stream costs a small call more than its work. What is taken here is a strict part of
HTTP/2: headers in one frame, then one frame with one whole message, which ends the request; windows of either
kind; a reset. All else is h2's: a stream that was begun here is told to it as if it had just come.

What both must agree on stays in h2: the decoder's table, the highest stream, the windows of the connection.
Answers are written without the encoder's table.
"""

import re
from collections.abc import Callable, Iterable

from h2.exceptions import DenialOfServiceError, ProtocolError
from hpack import Encoder, HPACKError, NeverIndexedHeaderTuple, OversizedHeaderListError

from service.grpc_wire import ANSWER, OK, PREFIX, Head, Headers, NotGrpcError, read_head
from service.http2 import (
    CONNECTION_WINDOW,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_SENT,
    MAX_FRAME,
    WINDOW,
    Http2,
)

_LARGEST_WINDOW = (1 << 31) - 1
_MOST_HEADS = 32
_INDEXED = re.compile(rb"[\x81-\xfe]+")  # fields that stand in the tables, each in one byte
_PSEUDO = (b":method", b":scheme", b":path", b":authority")
_NAME = re.compile(rb"[a-z0-9_.-]+")
_VALUE = re.compile(rb"[!-~]([ -~]*[!-~])?")
# What HTTP/2 forbids, or h2 keeps account of.
_NOT_PLAIN = frozenset(
    b"connection proxy-connection keep-alive transfer-encoding upgrade host content-length cookie".split()
)
_ANY_CALL: Headers = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"-"))


class PlainCalls:
    """Those of one connection.

    Attributes:
        windows: of the streams that h2 does not know, what was added to the window of each.
        half: of these the ones whose message is still to come.
        first_window: of every stream, as the peer has set it.
    """

    def __init__(self, http2: Http2, is_stream: Callable[[str], bool]) -> None:
        """`is_stream`: of a path, whether its calls may have several messages."""
        self.windows: dict[int, int] = {}
        self.half: dict[int, Head] = {}
        self.first_window = http2.remote_settings.initial_window_size
        self._http2 = http2
        self._is_stream = is_stream
        self._heads: dict[bytes, Head] = {}
        self._untaken = 0

    # --- what comes ------------------------------------------------------------------------------------

    def forget_table(self) -> None:
        """h2 reads a block, and may change the table that `_heads` were read by."""
        self._heads.clear()

    def decode(self, block: bytes) -> tuple[Head | None, Headers]:
        """A plain call's head; None, and all headers, for any other. Raises ProtocolError."""
        head = self._heads.get(block)
        if head is not None:
            return head, ()
        if not _INDEXED.fullmatch(block):
            self._heads.clear()
        try:
            headers = [
                (bytes(name), bytes(value)) for name, value in self._http2.decoder.decode(block, raw=True)
            ]
        except OversizedHeaderListError as error:
            raise DenialOfServiceError from error
        except HPACKError as error:
            raise ProtocolError from error
        head = plain_head(headers)
        if head is None or self._is_stream(head.path):
            return None, headers
        if _INDEXED.fullmatch(block) and len(self._heads) < _MOST_HEADS:
            self._heads[block] = head
        return head, headers

    def open(self, stream_id: int, head: Head) -> None:
        self._http2.highest_inbound_stream_id = stream_id
        self.half[stream_id] = head
        self.windows[stream_id] = 0

    def widen(self, stream_id: int, body: bytes) -> bool:
        """Takes a WINDOW_UPDATE; False for one that is h2's, or wrong."""
        added = int.from_bytes(body) & _LARGEST_WINDOW
        if len(body) != 4 or not added:
            return False
        if stream_id == 0:
            window = self._http2.outbound_flow_control_window + added
            if window > _LARGEST_WINDOW:
                return False
            self._http2.outbound_flow_control_window = window
            return True
        if stream_id not in self.windows:
            return False
        window = self.windows[stream_id] + added
        if self.first_window + window > _LARGEST_WINDOW:
            return False
        self.windows[stream_id] = window
        return True

    def received(self, size: int) -> bytes:
        """The frame that gives back what of the connection's window was used, if it is time for one."""
        self._untaken += size
        if self._untaken < CONNECTION_WINDOW // 2:
            return b""
        added, self._untaken = self._untaken, 0
        return frame(WINDOW, 0, 0, added.to_bytes(4))

    def drop(self, stream_id: int) -> None:
        self.windows.pop(stream_id, None)
        self.half.pop(stream_id, None)

    # --- to h2 -----------------------------------------------------------------------------------------

    def adopt(self, stream_id: int) -> Head | None:
        """Makes a stream h2's, as far as it has come. Gives its head where its message has not."""
        added = self.windows.pop(stream_id)
        head = self.half.pop(stream_id, None)
        highest = self._http2.highest_inbound_stream_id
        self._http2.highest_inbound_stream_id = stream_id - 2
        self._http2.receive_data(retold(stream_id, _ANY_CALL, END_STREAM if head is None else 0))
        self._http2.highest_inbound_stream_id = highest
        if added:
            self._http2.receive_data(frame(WINDOW, 0, stream_id, added.to_bytes(4)))
        return head

    # --- answers ---------------------------------------------------------------------------------------

    def answer(self, stream_id: int, message: bytes, trailing: Headers) -> bytes | None:
        """The frames of a whole answer; None where the windows are too small for it."""
        http2 = self._http2
        size = len(message) + PREFIX
        if size > LARGEST_SENT or size > http2.max_outbound_frame_size or http2.encoder.table_size_changes:
            return None
        room = self.first_window + self.windows[stream_id]
        if size > room or size > http2.outbound_flow_control_window:
            return None
        http2.outbound_flow_control_window -= size
        trailers = _OK_BLOCK + block_of(trailing)
        stream = stream_id.to_bytes(4)
        parts = (
            _ANSWER_START, stream, _ANSWER_BLOCK,
            size.to_bytes(3), b"\0\0", stream, b"\0", len(message).to_bytes(4), message,
            len(trailers).to_bytes(3), b"\1\5", stream, trailers,
        )  # fmt: skip
        return b"".join(parts)

    def refusal(self, stream_id: int, status: Headers) -> bytes | None:
        """The frame of an answer without a message; None where h2 has something to say first."""
        if self._http2.encoder.table_size_changes:
            return None
        return frame(HEADERS, END_HEADERS | END_STREAM, stream_id, _ANSWER_BLOCK + block_of(status))


def plain_head(headers: Headers) -> Head | None:
    """That of a call whose headers nothing can be wrong with; None leaves it to h2 to say."""
    names = [name for name, _ in headers]
    if sorted(names[:4]) != sorted(_PSEUDO) or not _NOT_PLAIN.isdisjoint(names):
        return None
    if not all(map(_NAME.fullmatch, names[4:])) or not all(_VALUE.fullmatch(value) for _, value in headers):
        return None
    if any(value != b"trailers" for name, value in headers if name == b"te"):
        return None
    try:
        head = read_head(headers)
    except NotGrpcError:
        return None
    return head if head.wrong is None else None


def whole_message(data: bytes, start: int, end: int) -> bytes | None:
    """The message of which a frame has all, and nothing else; None for anything compressed or in pieces."""
    if (
        end - start < PREFIX
        or data[start]
        or int.from_bytes(data[start + 1 : start + PREFIX]) != end - start - PREFIX
    ):
        return None
    return data[start + PREFIX : end]


def retold(stream_id: int, headers: Headers, flags: int = 0) -> bytes:
    """Headers that were read already, so that h2 reads them again and no table changes."""
    never = [NeverIndexedHeaderTuple(name, value) for name, value in headers]
    block = Encoder().encode(never, huffman=False)  # longer than it was, perhaps than a frame may be
    first, *more = (block[at : at + MAX_FRAME] for at in range(0, len(block), MAX_FRAME))
    if not more:
        return frame(HEADERS, END_HEADERS | flags, stream_id, first)
    frames = [frame(HEADERS, flags, stream_id, first)]
    frames += [frame(CONTINUATION, 0, stream_id, piece) for piece in more[:-1]]
    return b"".join((*frames, frame(CONTINUATION, END_HEADERS, stream_id, more[-1])))


def frame(kind: int, flags: int, stream_id: int, body: bytes) -> bytes:
    return len(body).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + body


def block_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Literals that no table takes up. Of RFC 7541, 6.2.2."""
    return b"".join(b"\0" + _length(name) + name + _length(value) + value for name, value in headers)


def _length(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes((size,))
    rest, digits = size - 127, [127]
    while rest > 127:
        digits.append(rest & 127 | 128)
        rest >>= 7
    return bytes((*digits, rest))


_ANSWER_BLOCK = b"\x88" + block_of(ANSWER[1:])  # :status 200 stands in the table of all
_OK_BLOCK = block_of(OK)
_ANSWER_START = len(_ANSWER_BLOCK).to_bytes(3) + bytes((HEADERS, END_HEADERS))
