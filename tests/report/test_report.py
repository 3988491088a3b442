"""The report: what is read, what is on the page, and that nothing from a file can break it."""

import hashlib
import re
import struct
import subprocess
import sys
import zlib
from itertools import combinations
from math import isnan
from pathlib import Path
from shlex import split
from typing import Any

import numpy as np
import pytest
from commands import environment
from commands import surebound as command
from reports import (
    CONFIG,
    METRICS,
    ROWS,
    Page,
    epoch,
    make_counter,
    make_row,
    make_run,
    validation,
    write_store,
    write_training,
)

from surebound.cli.main import build_parser, main
from surebound.errors import MissingFileError, StoreError, UsageError
from surebound.evaluate.evidence import Evidence
from surebound.evaluate.store import Row, Run, Store
from surebound.report.charts import Axes, Bar, Curve, bar_chart, line_chart
from surebound.report.numbers import compact, linear_ticks, log_ticks
from surebound.report.page import default_output, make_page
from surebound.report.png import as_picture, encode, magnification, to_bytes
from surebound.report.repeat import certify_command
from surebound.report.results import gather, training_folders
from surebound.report.style import CSS, DARK, LIGHT, SERIES
from surebound.report.summaries import cactus, certified_curve, funnel, phase_seconds, standing_curve


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """A folder with a store and two training folders, one of which trained the store's network."""
    folder = tmp_path / "work"
    write_training(folder / "runs" / "small")
    write_training(folder / "runs" / "deep" / "a" / "b")
    digest = hashlib.sha256(b"a network").hexdigest()
    write_store(folder / "results.sqlite", [(make_run(model_sha256=digest), ROWS)])
    return folder


# ---- the page


def test_the_page_is_well_formed_and_asks_for_nothing(both: Path) -> None:
    text = make_page(both)
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>") and "://" not in text
    for _, attributes in page.elements:
        for key in ("src", "href"):
            value = attributes.get(key)
            assert value is None or value.startswith(("#", "data:")), value
    assert "@import" not in text and "url(" not in text
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {a["href"] for a in page.all("a")}
    assert {f"#{i}" for i in ids} >= targets and "#training-1" in targets
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv"))
    assert policy is not None and "default-src 'none'" in policy and "unsafe" not in policy


def test_the_page_is_the_same_each_time(both: Path) -> None:
    assert make_page(both) == make_page(both)


def test_the_page_is_accessible(both: Path) -> None:
    page = Page(make_page(both))
    assert page.all("html")[0]["lang"] == "en" and len(page.all("h1")) == 1
    images, plots = page.all("img"), page.all("svg")
    assert len(images) == 6 and all(image["alt"] for image in images)
    assert len(plots) == 3 + 2 * 4
    assert all(plot["role"] == "img" and len(plot["aria-label"] or "") > 20 for plot in plots)
    assert len(page.all("desc")) == len(plots)
    assert all(th["scope"] in ("col", "row", "colgroup") for th in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table")) > 0
    assert all(div["aria-label"] and div["tabindex"] == "0" for div in page.all("div") if div.get("role") == "region")


def test_the_page_says_what_the_store_holds(tmp_path: Path) -> None:
    text = Page(make_page(write_store(tmp_path / "r.sqlite"))).text
    for phrase in (
        "Standard accuracy 87.5 % 7 of 8 classified correctly",
        "Withstood the attack 75.0 % 6 of 8",
        "Robust accuracy 62.5 % 5 of 8",
        "Verified accuracy 37.5 % 3 of 8",
        "Undecided 25.0 % 2 of 8",
        "classified: 8 arrive, settled 1 misclassified; IBP: 7 arrive, settled 1 verified; CROWN: 6 arrive",
        "attack: 5 arrive, settled 1 attacked; α-CROWN: 4 arrive",
        "search: 4 arrive, settled 1 falsified, 1 verified, 1 timeout, 1 unknown",
        "3 images verified and 2 with a counterexample; mean 3.1 s, median 0.20 s, slowest 12.0 s.",
        "one → two",
        "difference ×100",
        "surebound certify runs/small --dataset digits --eps 2/255",
        "ab" * 32,
        make_run().key,
        "two cores",
        '{"timeout": 60}',
        "8: 0–7",
    ):
        assert phrase in text, phrase


def test_the_page_says_what_a_training_folder_holds(tmp_path: Path) -> None:
    folder = write_training(tmp_path / "small")
    text = Page(make_page(folder)).text
    for phrase in (
        "Accuracy, standard 85.0 % of 40 test images",
        "Training time 7.5 s 3 epochs",
        "Ambiguous neurons 10.5",
        "layer 1: 120 before, 7.5 after; layer 2: 60.5 before, 3 after",
        "before the first step after epoch 3",
        "3 in the first, 1 in the last",
        "ε up to 0.05, κ up to 1, learning rate up to 0.1",
        "κ from, to 0.0 → 1.0",
        f"surebound train --config {folder}/config.toml --out NEW_FOLDER",
        hashlib.sha256(b"a network").hexdigest(),
    ):
        assert phrase in text, phrase


def test_names_from_files_are_only_text(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>\ud800"
    run = make_run(
        model=evil, dataset=evil, classes=(evil,) * 3, eps=evil, options={evil: evil}, command=evil, machine=evil
    )
    notes = {"experiment": "table1", "method": evil, "setting": evil, "scale": evil, "seed": evil}
    rules = {"experiment": "branching", "network": evil, "branching": evil, "setting": evil, "scale": evil}
    rows = [make_row(0, "falsified", "search", reason=evil[:-1])]
    runs = [run, make_run(notes=notes, dataset=evil), make_run(notes=rules, options={}), make_run(eps="1", shape=(4,))]
    write_store(tmp_path / "r.sqlite", [(r, rows) for r in runs])
    metrics = [epoch(1, parts={evil: 1.0, "b": 2.0}), validation(1, [1.0])]
    config = CONFIG.replace("ibp-r", evil.replace('"', "'").replace("\ud800", ""))
    write_training(tmp_path / "<b>small", metrics, config)
    page = Page(make_page(tmp_path))
    make_page(tmp_path).encode()
    assert len(page.all("script")) == 1 and len(page.all("b")) == len(runs)
    assert all("onerror" not in attributes for _, attributes in page.elements)
    assert "<script>alert('x')</script>" in page.text and "<b>small" in page.text


def test_names_cannot_turn_the_page_around(tmp_path: Path) -> None:
    evil = "a\u202eb\x1b[31m\u2066\u200b\x9bc"
    run = make_run(model=evil, dataset=evil, classes=(evil,) * 3, options={evil: evil}, command=evil, machine=evil)
    write_store(tmp_path / "r.sqlite", [(run, [make_row(0, "falsified", "search", reason=evil)])])
    write_training(tmp_path / "\u202efolder", [epoch(1, parts={evil: 1.0})], CONFIG)
    page = make_page(tmp_path)
    assert all(c.isprintable() or c in "\n\t\xa0\u202f" for c in page)
    shown = Page(page).text
    assert r"a\u202eb\x1b[31m\u2066\u200b\x9bc" in shown and r"\u202efolder" in shown


def test_long_names_may_wrap(tmp_path: Path) -> None:
    wraps = {rule.split("{")[0] for rule in CSS.split("}") if "overflow-wrap:anywhere" in rule}
    chosen = {part.strip() for selectors in wraps for part in selectors.split(",")}
    assert {"h1", "h3", "p", "li", "a", "code", "pre", "tbody th", ".facts dt", ".facts dd", ".note"} <= chosen


def test_a_run_that_is_not_complete_has_no_intervals(tmp_path: Path) -> None:
    whole = Page(make_page(write_store(tmp_path / "whole.sqlite"))).text
    assert "7 of 8 classified correctly; 95 % interval" in whole
    part = Page(make_page(write_store(tmp_path / "part.sqlite", [(make_run(), ROWS[:5])]))).text
    assert "4 of 5 classified correctly" in part and "interval" not in part
    assert "3 of the 8 images asked for are not settled yet. Accuracies are those of the images" in part


def test_a_run_without_images_has_no_accuracies(tmp_path: Path) -> None:
    runs = [(make_run(), ROWS), (make_run(eps="1/5"), ROWS[:0])]
    page = Page(make_page(write_store(tmp_path / "r.sqlite", runs)))
    assert "nan" not in page.text.lower().split() and "87.50" in page.text


def test_radii_are_drawn_and_listed(tmp_path: Path) -> None:
    rows = [
        make_row(0, "verified", "search", certified_eps="1/255", attacked_eps="2/255"),
        make_row(1, "verified", "search", certified_eps="0.01"),
        make_row(2, "misclassified", "standard", certified_eps="1/255"),
        make_row(3, "verified", "ibp"),
    ]
    page = Page(make_page(write_store(tmp_path / "r.sqlite", [(make_run(images=(0, 1, 2, 3, 9)), rows)])))
    assert "Certified accuracy by radius" in page.text and "Proved ε" in page.text
    assert "1 of the 5 images asked for are not settled yet." in page.text
    assert certified_curve(rows)[0] == (0.0, 0.5) and certified_curve(rows)[-1] == (0.01, 0.0)
    assert standing_curve(rows) == [(0.0, 0.75), (2 / 255, 0.75), (2 / 255, 0.5)]


def test_proofs_are_summed_up_and_listed(tmp_path: Path) -> None:
    assert "Proofs" not in Page(make_page(write_store(tmp_path / "without.sqlite"))).text
    rows = [
        make_row(0, "verified", "ibp", proof=Evidence(bytes=400, checked=True, check_seconds=0.02)),
        make_row(1, "verified", "search", proof=Evidence(bytes=61_000, checked=True, check_seconds=4.0)),
        make_row(2, "verified", "search", proof=Evidence(bytes=53_400, checked=True, check_seconds=3.0)),
        make_row(3, "verified", "search"),
        make_row(4, "unknown", "search", reason="step 2", proof=Evidence(bytes=7, checked=False, check_seconds=1.0)),
    ]
    text = Page(make_page(write_store(tmp_path / "with.sqlite", [(make_run(notes={"proofs": "<p>"}), rows)]))).text
    assert "Proofs 3 of 4 verified images have a proof, for surebound check to follow, in <p>" in text
    assert "Accepted by the checker 3 of 4 that were checked" in text
    assert "1 refused, and these images count as undecided" in text
    assert "Size of a proof 53.4 kB in the median" in text and "Time to check one 3.0 s in the median" in text
    assert "61,000 accepted" in text and "7 refused step 2" in text


def test_proofs_that_were_not_checked_are_not_refused(tmp_path: Path) -> None:
    rows = [make_row(0, "verified", "ibp", proof=Evidence(bytes=400))]
    text = Page(make_page(write_store(tmp_path / "r.sqlite", [(make_run(), rows)]))).text
    assert "Accepted by the checker" not in text
    assert "Checks not made here surebound check NET.onnx image-N.vnnlib.gz image-N.proof checks one" in text


def test_runs_of_one_name_are_told_apart_by_their_options(tmp_path: Path) -> None:
    runs = [
        make_run(options={"branching": rule, "early_stop": stop}) for rule, stop in (("upb", True), ("auto", False))
    ]
    text = Page(make_page(write_store(tmp_path / "r.sqlite", [(run, ROWS) for run in runs]))).text
    for title in ("small/model.onnx, digits, ε = 2/255, branching upb, early stop", "branching auto, no early stop"):
        assert text.count(title) == 3, title  # in the overview, at the run, and under what repeats it
    other = [make_run(model_sha256=digest * 32) for digest in ("ab", "cd")]
    text = Page(make_page(write_store(tmp_path / "other.sqlite", [(run, ROWS) for run in other]))).text
    assert text.count("ε = 2/255, run 2 of other.sqlite") == 3


def test_a_sweep_is_reported_with_the_results_beside_each_network(tmp_path: Path) -> None:
    for method, share in (("colt", ROWS), ("ibp-r", ROWS[:5])):
        folder = write_training(tmp_path / "sweep" / method / "seed-0")
        write_store(folder / "certify.sqlite", [(make_run(model=f"sweep/{method}/seed-0"), share)])
    (tmp_path / "sweep" / "other").mkdir()
    write_store(tmp_path / "sweep" / "other" / "r.sqlite")  # beside no network
    text = Page(make_page(tmp_path / "sweep")).text
    assert "2 runs, 13 results" in text and "2 training folders" in text
    for method in ("colt", "ibp-r"):
        assert f"{method}/seed-0, digits, ε = 2/255" in text.replace("\u00a0", " ")
        assert f"number 1 of {method}/seed-0/certify.sqlite" in text


def test_what_was_done_in_python_can_be_repeated(tmp_path: Path) -> None:
    options = {"timeout": 2.5, "branching": "upb", "early_stop": False, "radius_search": True, "seed": 3}
    run = make_run(command="", model="my runs/model.onnx", images=(0, 5), options=options)
    expected = (
        "surebound certify 'my runs/model.onnx' --dataset digits --eps 2/255 --norm inf --indices 0,5 --timeout 2.5 "
        "--branching upb --seed 3 --no-early-stop --radius-search --store NEW.sqlite"
    )
    assert certify_command(run) == expected
    args = build_parser().parse_args(split(expected)[1:])
    assert (args.indices, args.branching, args.no_early_stop, args.radius_search) == ((0, 5), "upb", True, True)
    assert certify_command(make_run(dataset="mine", options={"early_stop": True})) == (
        "surebound.certify('runs/small/model.onnx', dataset, eps='2/255', store=\"NEW.sqlite\", images=range(8), "
        "norm='inf', early_stop=True)"
    )
    assert "images=range(0)" in certify_command(make_run(images=()))
    rows = [make_row(0, "verified", "ibp")]
    assert expected in Page(make_page(write_store(tmp_path / "r.sqlite", [(run, rows)]))).text


@pytest.mark.parametrize(
    ("old", "new", "given"),
    [
        ("fc-small", "own", "module=module"),
        ("digits", "mine", "dataset=dataset"),
        ("digits", "data/mine", None),
    ],
)
def test_trainings_of_ones_own_are_repeated_in_python(tmp_path: Path, old: str, new: str, given: str | None) -> None:
    folder = write_training(tmp_path / "a", config=CONFIG.replace(f'name = "{old}"', f'name = "{new}"'))
    text = Page(make_page(folder)).text
    if given is None:
        assert f"surebound train --config {folder}/config.toml --out NEW_FOLDER" in text
    else:
        assert f"surebound.train('{folder}/config.toml', out=\"NEW_FOLDER\", {given})" in text


def test_many_runs_fold_and_show_few_images(tmp_path: Path) -> None:
    rows = [make_row(i, "attacked", "attack", float(i)) for i in range(110)]
    runs = [(make_run(eps=f"{k}/255"), rows) for k in range(20)]
    page = Page(make_page(write_store(tmp_path / "r.sqlite", runs), most_rows=1000))
    assert "20 runs, 2,200 results" in page.text and "The 50 slowest of 110 images" in page.text
    assert len(page.all("img")) == 20 * 2 * 3 and "the first 2 of 110" in page.text
    assert all("open" not in details for details in page.all("details"))


def test_a_page_stays_small_however_many_runs_there_are(tmp_path: Path) -> None:
    rows = [make_row(i, "attacked", "attack", float(i)) for i in range(30)]
    sizes = []
    for count in (1, 100, 200):
        runs = [(make_run(eps=f"{k}/255"), rows) for k in range(count)]
        text = make_page(write_store(tmp_path / f"{count}.sqlite", runs), most_rows=400)
        page = Page(text)
        assert len(page.all("td")) < 8 * 400 + 25 * count  # of images, and of the run itself
        assert len(page.all("img")) <= 3 * 2 * 48
        sizes.append(len(text))
    assert (sizes[2] - sizes[1]) / 100 < 12_000  # bytes for another run: its plots and its commands


@pytest.mark.parametrize("runs", [[], [(make_run(), [])]], ids=["no run", "no row"])
def test_an_empty_store_has_a_page(tmp_path: Path, runs: list[tuple[Run, list[Row]]]) -> None:
    text = Page(make_page(write_store(tmp_path / "r.sqlite", runs))).text
    assert "no run yet" in text or "settled no image yet" in text


def test_inputs_that_are_no_pictures_are_described(tmp_path: Path) -> None:
    run, rows = make_run(shape=(6,)), [make_row(0, "attacked", "attack", counter=make_counter((6,)))]
    page = Page(make_page(write_store(tmp_path / "r.sqlite", [(run, rows)])))
    assert not page.all("img") and "no input changes by more than 0.004" in page.text


# ---- what training leaves behind


@pytest.mark.parametrize(
    ("metrics", "damaged"),
    [
        ([], 0),
        ([*METRICS[:3], '{"kind": "epoch", "epo'], 1),
        (["null", "[1]", "{}", "not JSON", "[" * 100_000, *METRICS], 5),
        ([epoch(1, loss=float("nan"), parts=None, eps="x", kappa=[], lr=None, seconds=None)], 0),
        ([validation(1, [], standard="high", ibp=None), validation(2, [float("nan")]), epoch(1, loss=-1.0)], 0),
        ([validation(1, [1.0]), epoch(1, epoch=10**400)], 1),
        ([{"kind": "validation", "epoch": 1}, {"kind": "epoch", "epoch": 1}], 0),
    ],
)
def test_damaged_metrics_still_make_a_page(tmp_path: Path, metrics: list[Any], damaged: int) -> None:
    page = Page(make_page(write_training(tmp_path / "a", metrics)))
    assert (f"{damaged} of the lines of metrics.jsonl could not be read" in page.text) == bool(damaged)


def test_other_damage_to_a_folder_still_makes_a_page(tmp_path: Path) -> None:
    folder = write_training(tmp_path / "a", config="this is no TOML")
    (folder / "metrics.jsonl").write_bytes(b'{"kind": "epoch", "epoch": 1, "loss": 1.0}\n\xff\xfe\n')
    (folder / "model.onnx").unlink()
    text = Page(make_page(folder)).text
    assert "config.toml" in text and "There is no model.onnx" in text


def test_folders_are_found_four_levels_down(tmp_path: Path) -> None:
    near, far = write_training(tmp_path / "a/b/c/d"), write_training(tmp_path / "a/b/c/x/e")
    write_training(tmp_path / ".hidden")
    assert training_folders(tmp_path) == [near] and training_folders(tmp_path / "a") == [near, far]


# ---- the command


def test_the_command_writes_beside_its_source_and_prints_the_path(both: Path) -> None:
    done = command("report", "results.sqlite", cwd=both)
    assert (done.returncode, done.stdout, done.stderr) == (0, "report.html\n", "")
    page = (both / "report.html").read_text(encoding="utf-8")
    assert page == make_page(both / "results.sqlite")
    done = command("report", both, "-o", both / "other.html")
    assert (done.returncode, done.stdout) == (0, f"{both / 'other.html'}\n")
    assert default_output(both) == both / "report.html"


def test_errors_are_one_sentence_and_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.sqlite").write_text("not a database, but long enough to look like one" * 50)
    store = write_store(tmp_path / "r.sqlite")
    cases = [
        ([tmp_path / "absent"], "there is no such file or folder"),
        ([tmp_path / "empty"], "holds no results; expected a store"),
        ([tmp_path / "text.sqlite"], "file is not a database"),
        ([store, "-o", tmp_path / "absent" / "r.html"], "expected a file name in an existing folder"),
        ([store, "-o", store], "it would overwrite"),
    ]
    before = sorted(p.name for p in tmp_path.iterdir())
    for arguments, message in cases:
        assert main(["report", *map(str, arguments)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and message in err and err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("r.sqlite-")) == before


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        gather(tmp_path / "absent")
    with pytest.raises(UsageError):
        gather(tmp_path)
    path = write_store(tmp_path / "r.sqlite")
    with Store(path) as store:
        store._db.execute("UPDATE runs SET record = '{}'")
    with pytest.raises(StoreError, match="is damaged"):
        gather(path)


def test_a_store_has_a_hash_once_nobody_writes_it(tmp_path: Path) -> None:
    path = write_store(tmp_path / "r.sqlite")
    assert gather(path).stores == {path: hashlib.sha256(path.read_bytes()).hexdigest()}
    with Store(path) as store:
        store.add(store.begin(make_run(eps="3/255")), ROWS[2])
        assert gather(path).stores == {path: None}
        assert "still open for writing" in make_page(path)


def test_the_report_needs_no_torch() -> None:
    program = (
        "import sys, surebound.report.page, surebound.report.tables, surebound.cli.report\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'onnx')))"
    )
    assert subprocess.run([sys.executable, "-c", program], env=environment(), check=False).returncode == 0


# ---- the parts


def test_the_funnel_counts_every_image_once() -> None:
    steps = funnel(ROWS)
    assert [(s.stage, s.arriving, s.going_on) for s in steps] == [
        ("standard", 8, 7),
        ("ibp", 7, 6),
        ("crown", 6, 5),
        ("attack", 5, 4),
        ("alpha-crown", 4, 4),
        ("search", 4, 0),
    ]
    assert steps[-1].settled == {"falsified": 1, "verified": 1, "timeout": 1, "unknown": 1}
    assert phase_seconds(ROWS)["search"] == pytest.approx(77.0)
    assert cactus([3.0, 0.0, 0.5]) == [(1, 1e-3), (2, 0.5), (3, 3.0)]


def test_pictures_are_valid_png() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    data = encode(pixels)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + size
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (4, 2, 8, 2, 0, 0, 0)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(2, 13)
    assert not lines[:, 0].any() and (lines[:, 1:].reshape(2, 4, 3) == pixels).all()


def test_shapes_of_pictures() -> None:
    values = np.arange(12, dtype=np.float32)
    first, last = as_picture(values, (3, 2, 2)), as_picture(values, (2, 2, 3))
    assert first is not None and first[0, 1].tolist() == [1, 5, 9]
    assert last is not None and last[0, 1].tolist() == [3, 4, 5]
    assert as_picture(values, (3, 4)) is not None
    assert [as_picture(values, shape) for shape in ((12,), (2, 3, 2), (5, 5))] == [None] * 3
    assert to_bytes(np.array([[-1.0, 0.5, 2.0, np.nan]])).tolist() == [[0, 128, 255, 0]]
    assert [magnification(np.array([d])) for d in (0.0, 2 / 255, 0.1, 0.9)] == [1, 50, 5, 1]


def test_plots_survive_odd_numbers() -> None:
    nan, inf = float("nan"), float("inf")
    for points in ([], [(1, nan)], [(1, 0.0)], [(1, 5.0)], [(0, 1e-300), (1, 1e300)], [(0, inf), (1, 1.0)]):
        for log in (False, True):
            axes = Axes(x="x", y="y", log=log)
            plot = line_chart("a", "b", axes, [Curve(label="c", points=points, colour="blue")])
            Page(plot)
            assert not re.search(r"nan|inf\b", plot)
    long = line_chart("a", "b", Axes(x="x", y="y"), [Curve(label="long " * 50, points=[(0, 0), (1, 1)], colour="blue")])
    assert all(float(x) > 0 for x in re.findall(r"[ML]([-\d.]+) ", long)) and "long long" in long and len(long) < 5000
    Page(bar_chart("a", "b", []))
    Page(bar_chart("a", "b", [Bar("none", [(0.0, "blue")], "0")]))


def test_ticks() -> None:
    assert linear_ticks(0, 102) == [0, 20, 40, 60, 80, 100]
    assert linear_ticks(3, 3) == [3]
    assert log_ticks(0.01, 1000) == [0.01, 0.1, 1, 10, 100, 1000]
    assert len(log_ticks(1e-12, 1e12)) < 10
    assert compact(float("nan")) == "–" and isnan(float("nan"))


def test_colours_can_be_read_and_told_apart() -> None:
    for theme in (LIGHT, DARK):
        for ground in ("ground", "raised"):
            for ink in ("ink", "muted", "accent", *SERIES):
                assert _contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        assert len({theme[name] for name in SERIES}) == len(SERIES)
        for a, b in combinations(SERIES, 2):
            assert np.abs(_channels(theme[a]) - _channels(theme[b])).sum() > 0.1, (a, b)


def _channels(colour: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])


def _contrast(a: str, b: str) -> float:
    """Of two colours, by WCAG 2.1."""

    def luminance(colour: str) -> float:
        c = _channels(colour)
        return float(np.where(c <= 0.03928, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)
