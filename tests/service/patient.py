"""httpx's calls, by a client that waits for a busy machine: httpx itself gives up after five seconds."""

from functools import partial

import httpx

SECONDS = 60
# The one place that may name them: the rule sends everyone else here.
get, post, put, delete = (
    partial(call, timeout=SECONDS)
    for call in (httpx.get, httpx.post, httpx.put, httpx.delete)  # noqa: TID251
)
