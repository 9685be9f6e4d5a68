"""The state: resources made over the API that outlive a process. Every process is a replica of it."""

from collections.abc import Mapping
from typing import Any

Change = tuple[str, str, Mapping[str, Any] | None]  # kind, key and the record, or None to delete it
