"""The page in a real browser: no complaints, plots that are there to see, tables that sort.

Chromium runs without a window; a script added to a copy of the page tries it out and leaves what it saw behind.
"""

import base64
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from reports import ROWS, make_row, make_run, write_store, write_training

from surebound.report.page import make_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]

PROBE = """
const seen = {};
for (const details of document.querySelectorAll("details")) details.open = true;
const boxes = (selector) => [...document.querySelectorAll(selector)].map((e) => {
  const box = e.getBoundingClientRect();
  return [box.width, box.height];
});
seen.plots = boxes("svg.plot");
seen.curves = boxes("svg .curve, svg .fill");
seen.pictures = boxes(".gallery img");
seen.loaded = [...document.images].every((image) => image.complete && image.naturalWidth > 0);
seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
seen.outside = [...document.querySelectorAll("svg text")].filter((text) => {
  const inner = text.getBoundingClientRect(), outer = text.ownerSVGElement.getBoundingClientRect();
  return inner.left < outer.left || inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1;
}).map((text) => text.textContent);
const cut = (table) => table.scrollWidth > table.parentElement.clientWidth + 1;
seen.cut = [...document.querySelectorAll("table")].filter(cut).map((table) => table.caption.textContent);
seen.ground = getComputedStyle(document.body).backgroundColor;
const table = [...document.querySelectorAll("table.sortable")].at(-1);
const column = (name) => [...table.tHead.rows[0].cells].findIndex((cell) => cell.dataset.column === name);
const press = (name) => {
  const at = column(name), head = table.tHead.rows[0].cells[at];
  head.querySelector("button").click();
  const cells = [...table.tBodies[0].rows].map((row) => row.cells[at].textContent);
  return [head.getAttribute("aria-sort"), cells, table.querySelectorAll("[aria-sort=none]").length];
};
seen.sorted = table && {
  up: press("Seconds"), down: press("Seconds"), words: press("Outcome"), bounds: press("Lower bound"),
  reachable: table.tHead.querySelectorAll("button").length,
};
const out = document.createElement("pre");
out.id = "seen";
out.textContent = JSON.stringify(seen);
document.body.append(out);
"""


def _browse(page: str, folder: Path, *options: str) -> tuple[str, list[str]]:
    """The document after loading, and what the browser wrote to its console."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    command = [
        str(CHROMIUM),
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
        *("--disable-extensions", "--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}"),
        *options,
        "--dump-dom",
        file.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def _probe(page: str, folder: Path, *options: str) -> dict[str, Any]:
    """What the probe saw; the page's policy is told to let it run."""
    digest = base64.b64encode(hashlib.sha256(PROBE.encode()).digest()).decode()
    allowed = page.replace("script-src ", f"script-src &#x27;sha256-{digest}&#x27; ", 1)
    probed = allowed.replace("</body>", f"<script>{PROBE}</script></body>")
    document, console = _browse(probed, folder, *options)
    assert console == []
    text = document.split('<pre id="seen">')[1].split("</pre>")[0]
    seen: dict[str, Any] = json.loads(text.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
    return seen


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    write_training(folder / "small")
    write_store(folder / "r.sqlite", [(make_run(), ROWS)])
    return make_page(folder)


def test_the_page_loads_without_complaints(page: str, tmp_path: Path) -> None:
    document, console = _browse(page, tmp_path)
    assert console == []
    assert "</html>" in document and 'aria-sort="none"' in document  # the script ran, under the page's own policy


def test_plots_are_visible_and_tables_sort(page: str, tmp_path: Path) -> None:
    seen = _probe(page, tmp_path, "--window-size=1200,900")
    assert len(seen["plots"]) == 7 and all(wide > 300 and high > 40 for wide, high in seen["plots"])
    assert len(seen["curves"]) > 20 and all(wide > 0 or high > 0 for wide, high in seen["curves"])
    assert len(seen["pictures"]) == 6 and all(wide > 40 and high > 40 for wide, high in seen["pictures"])
    assert seen["loaded"] and seen["wide"] <= 0 and seen["outside"] == []
    done = seen["sorted"]
    seconds = [f"{row.seconds:.3f}" for row in sorted(ROWS, key=lambda row: row.seconds)]
    assert done["up"] == ["ascending", seconds, done["reachable"] - 1]
    assert done["down"] == ["descending", seconds[::-1], done["reachable"] - 1]
    assert done["words"][1] == sorted(row.outcome for row in ROWS)
    assert done["bounds"][1] == ["-0.2", "1e-05", "0.1", "0.7", "", "", "", ""]


def test_wide_letters_are_not_cut_off_and_runs_fit_a_window(tmp_path: Path) -> None:
    short = [make_row(0, "verified", "crown", phases={"ibp": 0.1, "crown": 0.2})]
    wide = [make_row(0, "verified", "crown", phases={"W" * 30: 0.1, "\u6f22" * 30: 0.2})]
    options = ({"norm": "2"}, {"search": "paper", "norm": "1"})
    runs = [make_run(eps=f"{k}/255", options=options[k]) for k in range(2)]
    page = make_page(write_store(tmp_path / "r.sqlite", zip(runs, (short, wide), strict=True)))
    seen = _probe(page, tmp_path, "--window-size=1100,900")
    assert seen["outside"] == [] and seen["cut"] == []


def test_the_page_fits_a_telephone_and_has_a_dark_theme(page: str, tmp_path: Path) -> None:
    light = _probe(page, tmp_path, "--window-size=500,900")
    assert light["wide"] <= 0 and light["ground"] == "rgb(255, 255, 255)"
    dark = _probe(page, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert dark["ground"] == "rgb(20, 23, 28)"


def test_the_page_prints(page: str, tmp_path: Path) -> None:
    sheet = tmp_path / "page.pdf"
    _browse(page, tmp_path, f"--print-to-pdf={sheet}", "--no-pdf-header-footer")
    data = sheet.read_bytes()
    assert data.startswith(b"%PDF") and 1 <= data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") <= 8
