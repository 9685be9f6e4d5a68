"""Check of raw messages before parsing, since a field of 2 bytes may become an object of 90."""

from rationale_service.engine.large_requests import SMALL
from rationale_service.errors import TooLargeError

_MOST_FIELDS = 30_000  # per message: inputs, outputs and raw tensors, as many as in JSON
_RAW_TENSORS = 7  # field of ModelInferRequest that is not parsed
_TYPED_SHARE = 4  # of JSON's limit: each byte may be a number; parsing 4 MiB takes 60 ms
_MOST_SHIFT = 63


def check_message(body: bytes, most_json_bytes: int) -> None:
    """Limit the memory of a parsed message. Up to 1 MiB needs no limit.

    It only reads the outermost fields, one by one. Their content takes at most 45 times its bytes.

    Raises:
        TooLargeError: if there are too many fields, or too many bytes outside of `raw_input_contents`.
    """
    if len(body) <= SMALL:
        return
    most, typed, position = most_json_bytes // _TYPED_SHARE, 0, 0
    for _ in range(_MOST_FIELDS):
        if position >= len(body):
            return
        tag, position = _varint(body, position)
        began = position
        match tag & 7:
            case 0:  # a number
                _, position = _varint(body, position)
            case 1:  # one of 8 bytes
                position += 8
            case 2:  # its size, and so many bytes
                size, position = _varint(body, position)
                position += size
            case 5:  # a number of 4 bytes
                position += 4
            case _:
                return  # no message: its parser reports it
        if position > len(body):
            return  # cut off: its parser reports it
        typed += 0 if tag >> 3 == _RAW_TENSORS else position - began
        if typed > most:
            raise TooLargeError(
                f"the message has more than {most} bytes outside raw_input_contents: send tensors in these"
            )
    raise TooLargeError(f"the message has more than {_MOST_FIELDS} fields")


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position after it; the body's end if it is cut off or too long."""
    number = shift = 0
    while position < len(body) and shift <= _MOST_SHIFT:
        byte = body[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
        shift += 7
    return 0, len(body)
