"""What is made over the API and outlives a process: one state, of which every process is a replica."""

from collections.abc import Mapping
from typing import Any

Change = tuple[str, str, Mapping[str, Any] | None]  # kind, key and the record, or None to delete it
