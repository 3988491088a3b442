"""Table 1 and the comparison of branching rules, against numbers computed by hand."""

from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from reports import Page, make_row, make_run, write_store

from surebound.evaluate.store import Row, Run, Store
from surebound.report.page import make_page
from surebound.report.paper import BRANCHING, TABLE1, PaperBranching, Quantity
from surebound.report.tables import METHODS, branching, branching_markdown, table1, table1_markdown


def _seed(seed: int, verified: int, *, method: str = "ibp-r", setting: str = "2/255", **changes: Any) -> Any:
    """A run of table 1 over 10 images: 1 misclassified, 1 attacked, 1 broken by the search unless verified, the others
    verified or undecided."""
    notes = {"experiment": "table1", "setting": setting, "method": method, "seed": seed, "scale": "cpu"}
    notes |= {"training_seconds": 100.0 + 10 * seed}
    run = make_run(eps=setting, model_sha256=f"{method}{seed}{changes}", images=tuple(range(10)), notes=notes | changes)
    rows = [make_row(0, "misclassified", "standard"), make_row(1, "attacked", "attack")]
    rows += [make_row(2 + k, "verified" if k < verified else "unknown", "search") for k in range(7)]
    rows += [make_row(9, "verified" if verified > 7 else "falsified", "search")]
    return run, rows


def test_table1_by_hand(tmp_path: Path) -> None:
    runs = [_seed(seed, verified) for seed, verified in enumerate((4, 5, 8))]
    runs += [_seed(0, 3, method="colt", setting="8/255", training_seconds="unknown"), _seed(0, 1, method="new")]
    runs += [(make_run(), [make_row(0, "verified", "ibp")])]  # of no experiment
    with Store(write_store(tmp_path / "r.sqlite", runs)) as store:
        rows = table1(store)
    assert [(r.setting, r.method, r.seeds, r.images) for r in rows] == [
        ("2/255", "ibp-r", 3, 10),
        ("2/255", "new", 1, 10),
        ("8/255", "colt", 1, 10),
    ]
    ibp_r, new, colt = rows
    assert (ibp_r.standard, ibp_r.withstood) == (Quantity(90.0, 0.0), Quantity(80.0, 0.0))
    assert ibp_r.robust.mean == pytest.approx((70 + 70 + 80) / 3)
    # 40, 50, 80: mean 170/3, squared distances (50² + 20² + 70²)/9 over n − 1 = 2
    assert ibp_r.verified.mean == pytest.approx(170 / 3)
    assert ibp_r.verified.deviation == pytest.approx(sqrt((2500 + 400 + 4900) / 9 / 2))
    assert ibp_r.undecided.mean == pytest.approx(50 / 3)
    assert ibp_r.training_seconds == Quantity(110.0, 10.0)
    assert ibp_r.paper[0].verified == Quantity(61.97, 0.18)
    assert new.paper == () and new.verified == Quantity(10.0, None)
    assert colt.training_seconds is None and [p.name for p in colt.paper] == ["COLT, their own run", "Balunovic 2020"]
    assert table1_markdown(rows).splitlines()[2] == (
        "| 2/255 | IBP-R | 3 | 10 | 90.00 ± 0.00 | 80.00 ± 0.00 | 73.33 ± 5.77 | 56.67 ± 20.82 | 16.67 ± 15.28 "
        "| 110 ± 10 "
        "| IBP-R | 78.19 ± 0.52 | 66.39 ± 0.12 | 61.97 ± 0.18 | 9,340 ± 30 |"
    )
    lines = table1_markdown(rows).splitlines()
    assert len({line.count("|") for line in lines[:6]}) == 1
    assert lines[-1] == (
        "Withstood: right, and the first attack found nothing. Robust: right, and nothing that ran found a "
        "counterexample, the search included. Ours: digits at scale cpu, surebound's own search. Paper: De Palma "
        "et al. 2022, table 1, CIFAR-10."
    )


def test_the_last_run_of_a_seed_counts_and_missing_images_are_said(tmp_path: Path) -> None:
    old, (run, rows) = _seed(0, 1), _seed(0, 8, again=True)
    with Store(write_store(tmp_path / "r.sqlite", [old, (run, rows[:5])])) as store:
        (row,) = table1(store)
        assert "5 so far" in table1_markdown([row])
    assert (row.seeds, row.images, row.complete, row.verified) == (1, 5, False, Quantity(60.0))


def _rule(name: str, ends: str, seconds: list[float], subproblems: list[int]) -> tuple[Run, list[Row]]:
    """A run of a branching rule: v verified, f falsified, t timeout, u unknown, m misclassified."""
    notes = {"experiment": "branching", "setting": "2/255", "network": "ibp-r", "branching": name, "scale": "cpu"}
    words = {"v": "verified", "f": "falsified", "t": "timeout", "u": "unknown", "m": "misclassified"}
    rows: list[Any] = [
        make_row(k, words[end], "search", s, subproblems=n)  # type: ignore[arg-type]
        for k, (end, s, n) in enumerate(zip(ends, seconds, subproblems, strict=True))
    ]  # of three classes: two regions
    return make_run(options={"branching": name}, images=tuple(range(len(ends))), notes=notes), rows


RULES = [
    _rule("sr", "mvttvv", [0, 5, 60, 60, 7, 0.5], [0, 50, 900, 900, 70, 2]),
    _rule("upb", "mvvtfv", [0, 1, 2, 60, 3, 0.5], [0, 10, 2, 600, 30, 2]),
    _rule("fsb", "mvuvfv", [0, 2, 30, 40, 4, 0.5], [0, 12, 2, 400, 32, 2]),
]


def test_branching_by_hand(tmp_path: Path) -> None:
    with Store(write_store(tmp_path / "r.sqlite", RULES)) as store:
        rows = branching(store)
    assert [row.branching for row in rows] == ["upb", "fsb", "sr"]
    # Image 0 is misclassified; UPB times out on 3 and FSB on 2, which leaves 1, 4 and 5 for the subproblems.
    assert [(row.properties, row.counted) for row in rows] == [(5, 3)] * 3
    assert [row.seconds for row in rows] == pytest.approx([66.5 / 5, 76.5 / 5, 132.5 / 5])
    assert [row.subproblems for row in rows] == pytest.approx([42 / 3, 46 / 3, 122 / 3])
    # No rule splits image 5; UPB decides 2 and FSB leaves it open, both without a split, but SR splits it.
    assert [row.split for row in rows] == [4] * 3
    assert [row.split_seconds for row in rows] == [66 / 4, 76 / 4, 132 / 4]
    assert [row.split_subproblems for row in rows] == [20.0, 22.0, 60.0]
    assert [row.timeouts for row in rows] == [20.0, 20.0, 40.0]
    assert [row.decided_seconds for row in rows] == [(0.5, 1, 2, 3), (0.5, 2, 4, 40), (0.5, 5, 7)]
    assert rows[0].paper == PaperBranching(113.42, 930.83, 5.70)
    lines = branching_markdown(rows).splitlines()
    ours = "| IBP-R | 2/255 | UPB | 5 | 13.30 | 14.00 | 20.00 % | 4 | 16.50 | 20.00 |"
    assert lines[2] == f"{ours} 113.42 | 930.83 | 5.70 % |"
    assert len(lines) == 7 and "neither UPB nor FSB timed out on" in lines[-1]
    assert "A subproblem is another class with some splits that was bounded" in lines[-1]


def test_a_property_that_only_one_rule_left_open_was_not_settled_without_a_split(tmp_path: Path) -> None:
    runs = [_rule("upb", "vv", [1, 1], [2, 2]), _rule("fsb", "vt", [1, 9], [2, 2])]
    with Store(write_store(tmp_path / "r.sqlite", runs)) as store:
        rows = branching(store)
    assert [(row.split, row.split_seconds, row.split_subproblems) for row in rows] == [(1, 1.0, None), (1, 9.0, None)]


def test_a_single_rule_counts_what_it_decided(tmp_path: Path) -> None:
    with Store(write_store(tmp_path / "r.sqlite", RULES[1:2])) as store:
        (row,) = branching(store)
    assert (row.subproblems, row.counted) == (11.0, 4)
    nothing = _rule("upb", "mm", [0, 0], [0, 0])
    with Store(write_store(tmp_path / "none.sqlite", [nothing])) as store:
        (row,) = branching(store)
    assert (row.properties, row.subproblems, row.timeouts) == (0, None, 0.0)
    Page(make_page(tmp_path / "none.sqlite"))


def test_both_experiments_are_on_the_page(tmp_path: Path) -> None:
    runs = [_seed(seed, 4, method=method) for method in METHODS for seed in range(2)]
    page = Page(make_page(write_store(tmp_path / "r.sqlite", [*runs, *RULES])))
    for phrase in ("Table 1", "Branching rules", "paper: Zhang 2020", "paper: IBP-R w/ Masking", "78.19 ± 0.52"):
        assert phrase in page.text, phrase
    assert "Decided of 5 properties: UPB 4, FSB 4, SR 3; subproblems counted over 3." in page.text
    assert "Time of UPB over FSB 0.87" in page.text
    assert "A subproblem is another class with some splits that was bounded" in page.text
    assert page.text.count("Cactus plot of branching rules") == 1


def test_no_experiment_is_no_table(tmp_path: Path) -> None:
    with Store(write_store(tmp_path / "r.sqlite")) as store:
        assert table1(store) == [] and branching(store) == []
    assert table1_markdown([]).count("\n") == 4 and "no runs" in branching_markdown([])


def test_the_papers_numbers() -> None:
    """Sums over the paper's tables, added up from its LaTeX source, so that a slip of the finger shows."""
    rows = [row for rows in TABLE1.values() for row in rows]
    assert len(rows) == 14 and {method for _, method in TABLE1} == set(METHODS)
    assert sum(row.standard.mean for row in rows) == pytest.approx(863.70)
    assert sum(row.robust.mean for row in rows if row.robust) == pytest.approx(465.36)
    assert sum(row.verified.mean for row in rows) == pytest.approx(595.63)
    assert sum(row.seconds.mean for row in rows if row.seconds) == pytest.approx(263_690)
    assert len(BRANCHING) == 12
    assert sum(row.seconds for row in BRANCHING.values()) == pytest.approx(2193.70)
    assert sum(row.subproblems for row in BRANCHING.values()) == pytest.approx(49_049.42)
    assert sum(row.timeouts for row in BRANCHING.values()) == pytest.approx(111.58)
