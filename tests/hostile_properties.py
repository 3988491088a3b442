"""Properties that ask for more than there is, or are none."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commands import write_tiny
from hostile_case import BOX, REFUSED, Case, bomb


def text(
    name: str, why: str, content: Callable[[], str | bytes], says: str, *, file: str = "prop.vnnlib", **options: Any
) -> Case:
    """A property of a small, good network."""

    def write(folder: Path) -> list[str]:
        write_tiny(folder)
        made = content()
        (folder / file).write_bytes(made.encode() if isinstance(made, str) else made)
        return ["verify", "tiny.onnx", file]

    return Case(name=f"property-{name}", why=why, write=write, says=says, **options)


def asserted(name: str, why: str, formula: Callable[[], str], says: str = "", **options: Any) -> Case:
    """The box [-1, 1]² and a formula."""
    return text(name, why, lambda: f"{BOX}(assert {formula()})\n", says, **options)


ANY = ("sat", "timeout", "unknown")

M = 10**6


def _bound(n: int) -> str:
    return "".join(f"(declare-const X_{k} Real)\n" for k in range(n))


HEAD = "(vnnlib-version <2.0>)\n(declare-network N (declare-input X float32 [{}]) (declare-output Y float32 [{}]))\n"

SIDES = "".join(f"(assert (>= X[0,{i}] -1.0))(assert (<= X[0,{i}] 1.0))\n" for i in (0, 1))


def second(name: str, why: str, formula: Callable[[], str], says: str = "", **options: Any) -> Case:
    return text(f"2-{name}", why, lambda: f"{HEAD.format('1,2', '1,2')}{SIDES}(assert {formula()})\n", says, **options)


CASES = [
    # ---- files
    text(
        "gzip-bomb",
        "10 MB that unpack to 10 GB",
        lambda: bomb(b"", b" " * 2**26, 160),
        "MiB",
        file="prop.vnnlib.gz",
        slow=True,
    ),
    text("gzip-cut", "half a gzip file", lambda: gzip.compress(os.urandom(999))[:500], "damaged or cut short"),
    text("spaces", "200 MB of spaces", lambda: bomb(b"", b" " * 2**20, 200), "no variable", slow=True),
    text(
        "comments", "200 MB of comments", lambda: bomb(b"", b";" * 2**19 + b"\n" * 2**19, 200), "no variable", slow=True
    ),
    text("one-token", "a word of 200 MB", lambda: bomb(b"(assert ", b"x" * 2**20, 200), "xxx", slow=True),
    text(
        "open",
        "200 million open parentheses",
        lambda: bomb(BOX.encode() + b"(assert ", b"(" * 2**20, 200),
        "operator",
        slow=True,
    ),
    text("binary", "zero bytes", lambda: BOX.encode() + b"\0\0", "binary"),
    text("utf-16", "another encoding", lambda: BOX.encode("utf-16"), "binary"),
    text("utf-8", "bytes that are no text", lambda: b"(assert \xff\xfe\xc0\x80)", "expected"),
    text("words", "a word instead of a property", lambda: "hello", "expected '('"),
    text(
        "control",
        "a word that colours the terminal",
        lambda: BOX + "(assert (<= X_0 \x1b[31m\u202eevil))",
        r"\x1b[31m\u202eevil",
    ),
    text("cut", "a file that ends early", lambda: BOX + "(assert (<= X_0", "end of the file"),
    text(
        "index",
        "a variable X_999999999 alone",
        lambda: "(declare-const X_999999999 Real)\n(declare-const Y_0 Real)",
        "X_0 is not",
    ),
    text(
        "variables",
        "five million variables",
        lambda: bomb(b"", _bound(5 * M).encode(), 1, b"(declare-const Y_0 Real)(assert (<= Y_0 0))"),
        "bound",
        ends=(REFUSED, "timeout"),
        slow=True,
    ),
    text("twice", "a variable declared twice", lambda: BOX + "(declare-const X_0 Real)", "declared twice"),
    # ---- formulas
    asserted("sum", "a sum of two million terms", lambda: "(<= (+ " + "X_0 " * (2 * M) + ") Y_0)", ends=ANY, slow=True),
    asserted(
        "sum-decimals",
        "a sum of 200,000 numbers of 1,000 digits",
        lambda: "(<= (+ Y_0 " + "".join(f"0.{k:06d}{'7' * 990}{k % 10} " for k in range(200_000)) + ") Y_1)",
        "bits",
        ends=("unsat", "timeout", REFUSED),  # they add up to some 20,000
        slow=True,
    ),
    asserted(
        "sum-numbers",
        "a sum of forty million ones",
        lambda: "(<= (+ Y_0 " + "1 " * (40 * M) + ") Y_1)",
        ends=ANY,
        slow=True,
    ),
    asserted("product", "a product of a million twos", lambda: "(<= (* Y_0 " + "2 " * M + ") Y_1)", "bits", slow=True),
    asserted(
        "quotient", "a quotient by a million threes", lambda: "(<= (/ Y_0 " + "3.0 " * M + ") Y_1)", "bits", slow=True
    ),
    asserted(
        "powers", "a number squared 30 times", lambda: "(<= Y_0 " + "(* 1.5 " * 30 + "1" + ")" * 30 + ")", ends=ANY
    ),
    asserted(
        "chain",
        "a comparison of a million numbers",
        lambda: "(<= " + "Y_0 " * M + ")",
        ends=(*ANY, REFUSED),
        says="rows",
        slow=True,
    ),
    asserted(
        "nested", "100,000 nested parentheses", lambda: "(and " * 100_000 + "(<= Y_0 0)" + ")" * 100_000, "nested"
    ),
    asserted(
        "nested-sum",
        "100,000 nested sums",
        lambda: "(<= " + "(+ 1 " * 100_000 + "Y_0" + ")" * 100_000 + " 0)",
        "nested",
    ),
    asserted("nested-not", "999 negations", lambda: "(not " * 999 + "(<= Y_0 0)" + ")" * 999, ends=ANY),
    asserted("explosion", "2^40 cases", lambda: "(and " + "(or (<= Y_0 0) (<= Y_1 0)) " * 40 + ")", "rows"),
    asserted(
        "explosion-not",
        "the same by De Morgan",
        lambda: "(not (or " + "(and (<= Y_0 0) (<= Y_1 0)) " * 40 + "))",
        "rows",
    ),
    asserted(
        "explosion-nested",
        "the same, one level a time",
        lambda: "(and (or (<= Y_0 0) (<= Y_1 0)) " * 40 + "true" + ")" * 40,
        "rows",
    ),
    asserted("explosion-equal", "cases by inequality", lambda: "(and " + "(not (= Y_0 Y_1)) " * 40 + ")", "rows"),
    asserted(
        "cases",
        "400,000 cases",
        lambda: "(or " + "".join(f"(<= Y_0 -{k}.5) " for k in range(400_000)) + ")",
        ends=ANY,
        slow=True,
    ),
    asserted(
        "cases-many",
        "ten million cases",
        lambda: "(or " + "(<= Y_0 0)" * (10 * M) + ")",
        "rows",
        ends=(REFUSED, "timeout"),
        slow=True,
    ),
    asserted(
        "boxes",
        "300,000 different boxes",
        lambda: "(or " + "".join(f"(and (<= X_0 0.{k:06d}) (<= Y_0 -9)) " for k in range(300_000)) + ")",
        ends=(*ANY, REFUSED),
        says="numbers",
        slow=True,
    ),
    text(
        "asserts",
        "a million assertions on outputs",
        lambda: BOX + "(assert (<= Y_0 Y_1))\n" * M,
        "rows",
        ends=(*ANY, REFUSED),
        slow=True,
    ),
    text(
        "asserts-many",
        "eight million assertions",
        lambda: bomb(BOX.encode(), b"(assert (<= (+ Y_0 X_0) Y_1))\n" * 2**15, 256),
        "rows",
        ends=(REFUSED, "timeout"),
        slow=True,
    ),
    text(
        "asserts-or",
        "a million choices of one",
        lambda: BOX + "(assert (or (<= Y_0 Y_1)))\n" * M,
        "rows",
        ends=(*ANY, REFUSED),
        slow=True,
    ),
    # ---- numbers
    *(
        asserted(f"number-{name}", f"the number {number[:20]}", lambda n=number: f"(<= Y_0 {n})", says)
        for name, number, says in (
            ("exponent", "1e999999999", "range of float64"),
            ("exponent-long", "1e" + "9" * 10_000, "digits"),
            ("exponent-small", "1e-999999999", "range of float64"),
            ("digits", "9" * 100_000, "digits"),
            ("digits-after", "0." + "9" * 100_000, "digits"),
            ("nan", "nan", "expected a number"),
            ("infinity", "inf", "expected a number"),
            ("hex", "0x1p3", "expected a number"),
            ("underscores", "1_000", "expected a number"),
            ("arabic", "\u0661\u0662", "expected a number"),
        )
    ),
    asserted("zero", "a division by zero", lambda: "(<= (/ Y_0 0.0) 1)", "division by zero"),
    asserted("square", "a product of variables", lambda: "(<= (* Y_0 Y_1) 1)", "linear"),
    asserted("number-alone", "a number instead of a formula", lambda: "1.0", "formula"),
    text(
        "unbounded",
        "an input without an end",
        lambda: BOX.replace("(assert (<= X_1 1.0))", "") + "(assert (<= Y_0 0))",
        "upper bound",
    ),
    text(
        "inverted", "a box from 1 to -1", lambda: BOX + "(assert (<= X_0 -2.0))(assert (<= Y_0 0))", "", ends=("unsat",)
    ),
    # ---- version 2.0
    second(
        "sum",
        "a sum of two million terms",
        lambda: "(<= (+ " + "X[0,0] " * (2 * M) + ") Y[0,0])",
        ends=(*ANY, REFUSED),
        says="MiB",
        slow=True,
    ),
    second(
        "nested", "100,000 nested parentheses", lambda: "(and " * 100_000 + "(<= Y[0,0] 0.0)" + ")" * 100_000, "nested"
    ),
    second("explosion", "2^40 cases", lambda: "(and " + "(or (<= Y[0,0] 0.0) (<= Y[0,1] 0.0)) " * 40 + ")", "rows"),
    second("index", "an index of 2^70", lambda: f"(<= Y[0,{2**70}] 0.0)", "cannot read it"),
    second(
        "cases",
        "a million cases",
        lambda: "(or " + "(<= Y[0,0] 0.0) " * M + ")",
        "rows",
        ends=(*ANY, REFUSED),
        slow=True,
    ),
    text("2-shape", "2^60 variables", lambda: HEAD.format(2**60, 1) + "(assert (<= Y[0] 0.0))", "variables"),
    text(
        "2-shape-wrap",
        "2^64 x 2^64 variables",
        lambda: HEAD.format(f"{2**64},{2**64}", 1) + "(assert (<= Y[0] 0.0))",
        "vnnlib",
    ),
    text(
        "2-large",
        "100 MB of assertions",
        lambda: bomb((HEAD.format("1,2", "1,2") + SIDES).encode(), b"(assert (<= Y[0,0] Y[0,1]))\n" * 2**15, 110),
        "MiB",
        slow=True,
    ),
    text("2-alone", "a version and nothing else", lambda: "(vnnlib-version <2.0>)", "expected"),
]
