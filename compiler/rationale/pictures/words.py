"""Token ids as words: by a tokenizer.json of Hugging Face's tokenizers, or a text file, a token a line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rationale.distribution import install
from rationale.errors import InvalidOptionError

_SPACES = ("Ġ", "▁")  # how byte-level and Unigram tokenizers write the space before a word
_INSIDE = "##"  # how WordPiece writes that there is none


@dataclass(frozen=True)
class Word:
    """The text of a token, and whether it goes on from the one before without a space."""

    text: str
    joined: bool


@dataclass(frozen=True)
class Vocabulary:
    """What ids stand for.

    Attributes:
        token: of an id, as the vocabulary spells it; None for an unknown one.
        text: of a token that is no special spelling: byte-level ones are no text by themselves.
        spaced: whether a token of a new word begins with the mark of a space.
    """

    token: Callable[[int], str | None]
    text: Callable[[int, str], str]
    spaced: bool

    def words(self, ids: Sequence[int]) -> list[Word]:
        return [self._word(id_, first=i == 0) for i, id_ in enumerate(ids)]

    def _word(self, id_: int, first: bool) -> Word:
        token = self.token(id_)
        if token is None:
            return Word(f"[{id_}]", False)
        if token.startswith(_INSIDE) and len(token) > len(_INSIDE):
            return Word(token.removeprefix(_INSIDE), not first)
        joined = self.spaced and not token.startswith(_SPACES) and not first
        return Word(self.text(id_, token).strip() or "␣", joined)


NUMBERS = Vocabulary(lambda id_: str(id_), lambda _, token: token, spaced=False)  # where no file is given


def vocabulary_of(tokens: Sequence[str]) -> Vocabulary:
    """Return what ids stand for where the n-th token, from 0, is that of id n."""
    return Vocabulary(
        lambda id_: tokens[id_] if 0 <= id_ < len(tokens) else None,
        lambda _, token: token.lstrip("".join(_SPACES)),
        any(token.startswith(_SPACES) for token in tokens),
    )


def read_vocabulary(path: Path, option: str = "--tokenizer") -> Vocabulary:
    """Read a tokenizer.json, or a text file whose n-th line (from 0) is the token of id n.

    Args:
        option: what an error calls the file.

    Raises:
        InvalidOptionError: it cannot be read, or the package that reads it is not installed.
    """
    try:
        return _tokenizer(path, option) if path.suffix.lower() == ".json" else _lines(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InvalidOptionError(f"{option} {path}: cannot be read: {reason}.") from error


def _lines(path: Path) -> Vocabulary:
    tokens = path.read_text(encoding="utf-8").split("\n")
    return vocabulary_of([token.removesuffix("\r") for token in tokens])


def _tokenizer(path: Path, option: str) -> Vocabulary:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise InvalidOptionError(
            f"{option} {path}: reading it needs the tokenizers package: {install('tokens')}, "
            "or give a text file with a token a line."
        ) from error
    content = path.read_text(encoding="utf-8")
    try:
        found = Tokenizer.from_str(content)
    except Exception as error:  # the package raises nothing narrower
        raise InvalidOptionError(
            f"{option} {path}: no tokenizer.json: {str(error).splitlines()[0]}. Give the file that "
            "`tokenizer.save` of Hugging Face's tokenizers wrote, or a text file with a token a line."
        ) from error
    return Vocabulary(
        lambda id_: found.id_to_token(id_) if id_ >= 0 else None,
        lambda id_, _: str(found.decode([id_], skip_special_tokens=False)),
        any(token.startswith(_SPACES) for token in found.get_vocab()),
    )
