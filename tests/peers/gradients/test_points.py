"""The figures of docs/methods come from `tests.peers.gradients.points`."""

from rationale import IntegratedGradients
from tests.peers.gradients.points import NETWORKS, gap, table


def test_a_row_for_each_number_of_steps() -> None:
    header, _, few, many = table("steps", (2, 30), lambda _, steps: IntegratedGradients(steps=steps)).split(
        "\n"
    )
    assert all(name in header for name in NETWORKS.values())
    cells = [[float(cell) for cell in row.strip("| ").split(" | ")] for row in (few, many)]
    assert [row[0] for row in cells] == [2, 30]
    assert all(more < less for less, more in zip(cells[0][1:], cells[1][1:], strict=True))


def test_a_gap_is_a_share_of_the_difference() -> None:
    assert 1e-3 < gap("tanh_3", IntegratedGradients(steps=1)) < 10
