"""`rationale explain --plot`: the first rows of a file, drawn as an entry explains them."""

from pathlib import Path

from rationale.artifact.entry import open_entry, read_inputs
from rationale.artifact.folder import write
from rationale.errors import InvalidOptionError
from rationale.pictures.drawings import (
    MOST_BARS,
    MOST_PANELS,
    PICTURES,
    fitting,
    matplotlib_or_advice,
    picture,
)
from rationale.pictures.panels import Panel, panels_of
from rationale.pictures.words import NUMBERS, read_vocabulary
from rationale.portfolios.explain import batches


def draw_file(repository: Path, name: str, file: Path, out: Path, top: int, tokenizer: Path | None) -> str:
    """Draw the first rows of a file as an entry explains them, and say what was drawn.

    Args:
        out: .png, .svg or .pdf.
        top: features of a row that have a bar of their own.
        tokenizer: see `read_vocabulary`; without one token ids are drawn as numbers.

    Raises:
        InvalidOptionError, InvalidReferencesError, RepositoryError: with what to do.
    """
    kind, top = out.suffix.lower(), min(top, MOST_BARS)
    if kind == ".html":
        raise InvalidOptionError(f"--plot {out}: a page is written by --html {out}.")
    if kind not in PICTURES:
        raise InvalidOptionError(f"--plot {out}: choose {', '.join(PICTURES)}, or --html FILE for a page.")
    matplotlib_or_advice()
    vocabulary = NUMBERS if tokenizer is None else read_vocabulary(tokenizer)
    compiled = open_entry(repository, name)
    inputs = read_inputs(compiled, file)
    rows = len(next(iter(inputs.values())))
    panels, drawn = list[Panel](), 0
    for answer in batches(compiled, inputs, min(rows, MOST_PANELS)):
        for i in range(len(answer[answer.manifest.explained_value])):
            if len(panels) < MOST_PANELS:
                drawn += 1
                panels += panels_of(answer, i, drawn, top, vocabulary)
    kept = fitting(panels)
    write(out.parent, {out.name: picture(kept, kind.removeprefix("."))}, "--plot")
    cut = f", {len(kept)} of their {len(panels)} panels" * (len(kept) < len(panels))
    return f"wrote {out}: {drawn} of {rows} row{'s' * (rows > 1)}{cut}"
