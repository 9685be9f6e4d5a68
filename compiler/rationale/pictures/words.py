"""Token ids as words, from a tokenizer.json of Hugging Face's tokenizers or a text file, a token a line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rationale.distribution import install
from rationale.errors import InvalidOptionError

_SPACES = ("Ġ", "▁")  # marks of byte-level and Unigram tokenizers for the space before a word
_INSIDE = "##"  # mark of WordPiece for no space


@dataclass(frozen=True)
class Word:
    """The text of a token; `joined` if no space separates it from the token before."""

    text: str
    joined: bool


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of ids and their texts.

    Attributes:
        token: function from an id to its token, as the vocabulary spells it; None for an unknown id.
        text: function from an id and its token to readable text; byte-level tokens are not readable.
        spaced: True if tokens that begin a word start with the mark of a space.
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


NUMBERS = Vocabulary(lambda id_: str(id_), lambda _, token: token, spaced=False)  # the default without a file


def vocabulary_of(tokens: Sequence[str]) -> Vocabulary:
    """Return a vocabulary whose n-th token, from 0, has id n."""
    return Vocabulary(
        lambda id_: tokens[id_] if 0 <= id_ < len(tokens) else None,
        lambda _, token: token.lstrip("".join(_SPACES)),
        any(token.startswith(_SPACES) for token in tokens),
    )


def read_vocabulary(path: Path, option: str = "--tokenizer") -> Vocabulary:
    """Read a tokenizer.json, or a text file whose n-th line (from 0) is the token of id n.

    Args:
        option: name of the file's option in errors.

    Raises:
        InvalidOptionError: if the file cannot be read, or the package that reads it is not installed.
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
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the package raises nothing narrower
        raise InvalidOptionError(
            f"{option} {path}: no tokenizer.json: {str(error).splitlines()[0]}. Give the file that "
            "`tokenizer.save` of Hugging Face's tokenizers wrote, or a text file with a token a line."
        ) from error
    return Vocabulary(
        lambda id_: tokenizer.id_to_token(id_) if id_ >= 0 else None,
        lambda id_, _: str(tokenizer.decode([id_], skip_special_tokens=False)),
        any(token.startswith(_SPACES) for token in tokenizer.get_vocab()),
    )
