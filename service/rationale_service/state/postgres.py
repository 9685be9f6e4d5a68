"""PostgreSQL connections with a time limit, even if the server is dead or frozen.

TCP detects a machine that is cut off (`tcp_user_timeout`), and the server a statement that waits for a lock
(`statement_timeout`). Neither detects a frozen server, because its kernel still acknowledges packets.
"""

import time
from collections.abc import Generator
from typing import Any, Literal

from psycopg import Connection, OperationalError


class LimitedConnection(Connection[Any]):
    """A connection that closes if the server does not answer within `limit_s`."""

    limit_s = 0.0  # no limit

    def limit(self, seconds: float, scope: Literal["SESSION", "LOCAL"] = "SESSION") -> None:
        """Limit each answer from now on, and tell the server.

        The server also ends a transaction whose client is idle for that time, which frees its locks.

        Args:
            scope: SESSION, or LOCAL for a server limit that ends with the transaction.
        """
        self.limit_s = seconds
        names = ("statement_timeout", "idle_in_transaction_session_timeout")
        self.execute("; ".join(f"SET {scope} {name} = {int(seconds * 1e3)}" for name in names))
        if scope == "SESSION":
            self.commit()

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(self._with_time_limit(gen) if self.limit_s else gen, *args, **kwargs)

    def _with_time_limit(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Pass on the events that psycopg waits for. Raise OperationalError if one takes too long."""
        end_s = time.monotonic() + self.limit_s
        try:
            event = next(gen)
            while True:
                is_ready = yield event  # 0 after each interval without news
                if not is_ready and time.monotonic() > end_s:
                    self.pgconn.finish()
                    raise OperationalError(f"the server has not answered within {self.limit_s:g} s")
                event = gen.send(is_ready)
        except StopIteration as ended:
            return ended.value
