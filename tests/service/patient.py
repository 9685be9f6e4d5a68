"""httpx's calls, by a client that waits for a busy machine: httpx itself gives up after five seconds."""

import ssl
from functools import partial

import httpx

SECONDS = 60
_CONTEXT = ssl.create_default_context()  # each call would read the certificates of all authorities again
# The one place that may name them: the rule sends everyone else here.
get, post, put, delete = (
    partial(call, timeout=SECONDS, verify=_CONTEXT)
    for call in (httpx.get, httpx.post, httpx.put, httpx.delete)  # noqa: TID251
)
