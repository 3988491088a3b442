"""What single sentences of VNN-LIB mean."""

from fractions import Fraction

import pytest

from surebound.check.vnnlib import Property, read_property

HEAD = "(declare-const X_0 Real)(declare-const Y_0 Real)(declare-const Y_1 Real)"
BOX = "(assert (>= X_0 -1))(assert (<= X_0 1))"


def read(text: str, box: str = BOX) -> Property:
    return read_property((HEAD + box + text).encode())


def test_comments_end_where_lines_end() -> None:
    for end in ("\n", "\r", "\r\n"):
        assert len(read(f"; a comment{end}(assert (or (<= Y_0 1) (<= Y_1 2)))").regions) == 2


@pytest.mark.parametrize(
    ("formula", "regions"),
    [
        ("true", 1),
        ("false", 0),
        ("(<= 0 0)", 1),
        ("(>= 0 0)", 1),
        ("(< 0 0)", 0),
        ("(> 0 0)", 0),
        ("(< 0 1)", 1),
        ("(> 0 1)", 0),
        ("(<= (* 0 Y_0) -1)", 0),
        ("(or false true)", 1),
        ("(and true false)", 0),
    ],
)
def test_what_is_decided_at_once(formula: str, regions: int) -> None:
    found = read(f"(assert {formula})").regions
    assert len(found) == regions
    assert all(region.rows == () for region in found)


def test_terms_of_one_variable_are_added_up() -> None:
    (row,) = read("(assert (<= (+ Y_0 (* 2 Y_0) (- Y_1 Y_1) 0.5) (* 0.25 Y_0)))").regions[0].rows
    assert (row.terms, row.constant) == ({-1: Fraction(11, 4)}, Fraction(1, 2))


def test_bounds_of_scaled_inputs() -> None:
    found = read("", "(assert (<= (* 4 X_0) 3))(assert (<= (* -4 X_0) 2))(assert (>= (* -2 X_0) -1))")
    assert found.boxes[0].tolist() == [[-0.5], [0.5]]


def test_the_tightest_of_several_bounds_counts() -> None:
    ends = ["(<= X_0 0.25)", "(<= X_0 0.75)", "(>= X_0 -0.25)", "(>= X_0 -0.75)"]
    found = [read("".join(f"(assert {end})" for end in order)).boxes[0].tolist() for order in (ends, ends[::-1])]
    assert found == [[[-0.25], [0.25]]] * 2


def test_a_box_is_empty_by_its_exact_ends() -> None:
    """0.1 and a number below it that float64 does not tell apart: rounded outward, a point is left between them."""
    tenth, less = "(>= X_0 0.1)", "(<= X_0 0.09999999999999999999)"
    for order in (f"{tenth} {less}", f"{less} {tenth}"):
        found = read(f"(assert (or (and {order}) (<= Y_0 1)))")
        assert [region.empty for region in found.regions] == [True, False]
        assert (found.boxes[0][0] < found.boxes[0][1]).all()
    shared = read(f"(assert {tenth})(assert {less})(assert (or (<= Y_0 1) (<= Y_1 1)))")
    assert [region.empty for region in shared.regions] == [True, True]
    mixed = read(f"(assert {tenth})(assert (or (and {less} (<= Y_0 1)) (<= X_0 0.1)))")
    assert [region.empty for region in mixed.regions] == [True, False]
