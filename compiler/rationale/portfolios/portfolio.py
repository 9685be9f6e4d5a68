"""`rationale explain` of many parquet files: a file of explanations for each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rationale.portfolios.answered_files import RowFile, answer_files
from rationale.portfolios.arrow import batches_schema, explain_streams
from rationale.schema.request import Progress, silent


def explain_portfolio(
    entry: Path,
    rows: str,
    save: str,
    keep: Sequence[str] = (),
    threads: int | None = None,
    progress: Progress = silent,
) -> str:
    """Explain the rows of parquet files with `answer_files`; return a line about the files.

    Args:
        entry: the entry's folder.
        keep: columns to copy unchanged.

    Raises:
        InvalidOptionError, InvalidReferencesError, RepositoryError: if it fails; the message names a remedy.
    """
    return str(answer_files(rows, save, _RowExplainer(entry, tuple(keep), threads), progress))


@dataclass(frozen=True)
class _RowExplainer:
    entry: Path
    keep: tuple[str, ...]
    threads: int | None
    stage: str = "explaining"
    batch_rows: int = 65_536

    def schema(self, rows_schema: Any) -> Any:
        return batches_schema(self.entry, rows_schema, self.keep)

    def answers(self, files: Iterator[tuple[RowFile, Iterator[Any]]]) -> Iterator[Any]:
        streams = (batches for _, batches in files)
        return explain_streams(self.entry, streams, self.keep, self.threads)
