"""Files are replaced whole or not at all, whoever writes them."""

import os
from pathlib import Path

import pytest

from surebound.cli.arguments import output_files, write_whole
from surebound.errors import UsageError
from surebound.files import replacing


def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "report"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(target) as partial:
        partial.write_text("half")
        assert target.read_text() == "old"
        raise ZeroDivisionError
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


def test_a_link_stays_a_link_and_the_mode_is_the_usual_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", "é")
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text(encoding="utf-8") == "é"
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_two_processes_may_write_the_same_file(tmp_path: Path) -> None:
    target = tmp_path / "report"
    with replacing(target, tag=".other") as partial:
        partial.write_text("other")
        write_whole(target, "whole")
        assert target.read_text() == "whole"
    assert target.read_text() == "other" and list(tmp_path.iterdir()) == [target]


def test_results_and_runs_fail_with_the_same_sentence(tmp_path: Path) -> None:
    sentence = r"cannot write '.*/absent/file' \(no such file or directory\); expected a file name in a folder"
    with pytest.raises(UsageError, match=sentence):
        write_whole(tmp_path / "absent" / "file", "x")
    with pytest.raises(UsageError, match=sentence), replacing(tmp_path / "absent" / "file") as partial:
        partial.write_text("x")


def test_a_pipe_takes_the_text_as_it_comes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "text")
    assert os.read(reader, 10) == b"text" and (tmp_path / "pipe").is_fifo()
    os.close(reader)


def test_a_pipe_or_device_never_becomes_a_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for target, kind in ((tmp_path / "pipe", "a pipe or a device"), (tmp_path, "a folder")):
        sentence = rf"cannot write '.*' \(it is {kind}\); expected the name of a plain file"
        with pytest.raises(UsageError, match=sentence), replacing(target) as partial:
            partial.write_text("x")
    with pytest.raises(UsageError, match=r"cannot write --proof '.*/pipe': it is a pipe or a device"):
        output_files(keep=(), proof=str(tmp_path / "pipe"))
    assert output_files(keep=(), json=str(tmp_path / "pipe")) == {"json": tmp_path / "pipe"}
    assert (tmp_path / "pipe").is_fifo() and list(tmp_path.iterdir()) == [tmp_path / "pipe"]
