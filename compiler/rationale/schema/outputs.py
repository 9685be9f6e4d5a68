"""Kinds of outputs of an explanation: the one registry for manifest, files, tables, APIs and pages.

A new kind takes a row here, and a method that names it in `further_outputs` and emits it. The manifest and
all code that writes answers loop over these rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class OutputKind:
    """A kind of output.

    Attributes:
        name: the name in the manifest, and the end of the output's own name; of a value also in answers and
            tables.
        axes: one number for each row and target (NT), for each of its features or groups too (NTF), or for
            each pair of features (NTFF).
        meaning: a description for the API's schema and the docs.
        member: name of the object in an explanation's JSON that holds the numbers by feature.
        suffix: the suffix of a feature's name in a table's column of this kind.
        in_tables: whether tables have columns of it.
    """

    name: str
    axes: Literal["NT", "NTF", "NTFF"]
    meaning: str
    member: str = ""
    suffix: str = ""
    in_tables: bool = True


OUTPUT_KINDS: Mapping[str, OutputKind] = {
    kind.name: kind
    for kind in (
        OutputKind("explained_value", "NT", "the model's output at the target"),
        OutputKind("base_value", "NT", "the mean of the model's output over the references"),
        OutputKind("completeness_gap", "NT", "explained - base - sum of attributions"),
        OutputKind(
            "completeness_gap_standard_error",
            "NT",
            "standard error of a gap that comes from sampling; a gap of several standard errors is a fault",
        ),
        OutputKind(
            "score_margin",
            "NT",
            "the decision's score is the Sigmoid of this margin; present if a threshold of space 'output' is "
            "near 0 or 1",
            in_tables=False,
        ),
        OutputKind(
            "attributions",
            "NTF",
            "by name of the feature or group, or nested lists by input name",
            "attributions",
        ),
        OutputKind(
            "standard_error",
            "NTF",
            "standard errors of the attributions, if they are means and the entry was compiled for them",
            "standard_errors",
            "_standard_error",
        ),
        OutputKind("interactions", "NTFF", "interaction of each two features", in_tables=False),
    )
}
VALUES = tuple(kind for kind in OUTPUT_KINDS.values() if kind.axes == "NT")
BY_FEATURE = tuple(kind for kind in OUTPUT_KINDS.values() if kind.axes == "NTF")
WHOLE = ""
"""Stands for the tensor where an output has one number for each row and target."""
