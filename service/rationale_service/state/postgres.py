"""Connections to a PostgreSQL that give up what takes too long, whether or not the server is still alive.

A machine that is cut off shows in TCP (`tcp_user_timeout`), a statement that waits for a lock in the server
(`statement_timeout`). A server that is frozen shows in neither: its kernel goes on acknowledging.
"""

import time
from collections.abc import Generator
from typing import Any, Literal

from psycopg import Connection, OperationalError


class LimitedConnection(Connection[Any]):
    """A connection that is closed if the server does not answer in `limit_s`."""

    limit_s = 0.0  # no limit

    def limit(self, seconds: float, scope: Literal["SESSION", "LOCAL"] = "SESSION") -> None:
        """Limit each answer from here on, and tell the server.

        The server also ends a transaction whose client asks nothing for as long: what it locks is free then.

        Args:
            scope: LOCAL is for the server until the transaction ends.
        """
        self.limit_s = seconds
        names = ("statement_timeout", "idle_in_transaction_session_timeout")
        self.execute("; ".join(f"SET {scope} {name} = {int(seconds * 1e3)}" for name in names))
        if scope == "SESSION":
            self.commit()

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(self._limited(gen) if self.limit_s else gen, *args, **kwargs)

    def _limited(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Hand on what psycopg waits for. Raise OperationalError if that takes too long."""
        end_s = time.monotonic() + self.limit_s
        try:
            wanted = next(gen)
            while True:
                is_ready = yield wanted  # 0 after each interval without news
                if not is_ready and time.monotonic() > end_s:
                    self.pgconn.finish()
                    raise OperationalError(f"the server has not answered within {self.limit_s:g} s")
                wanted = gen.send(is_ready)
        except StopIteration as ended:
            return ended.value
