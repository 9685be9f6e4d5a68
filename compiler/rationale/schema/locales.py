"""The machine's locales, by which ONNX Runtime's StringNormalizer changes the case of texts."""

import re

DEFAULT = "en_US.UTF-8"  # for a StringNormalizer that names none; images leave it out
EVERYWHERE = "C.UTF-8"  # a part of glibc, and of every Debian and Ubuntu; its letters are the same
_LACKING = re.compile(r"Failed to construct locale with name:([^:\s]*)")


def locale_advice(reason: str) -> str:
    """Return advice if ONNX Runtime cannot load a model for want of a locale; else an empty text."""
    match = _LACKING.search(reason)
    if match is None:
        return ""
    language, _, encoding = match[1].partition(".")
    return (
        f"Its StringNormalizer needs the locale {match[1]}, which the machine lacks. On Debian and Ubuntu "
        f"(in an image, too): apt-get install locales && localedef -i {language} -f {encoding or 'UTF-8'} "
        f"{match[1]}; or export the model with the locale {EVERYWHERE}"
    )
