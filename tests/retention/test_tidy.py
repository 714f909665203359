"""What is in an archive's folder and not in its manifest: what may still get an entry stays, what cannot goes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from onceward.domain.archived import with_body
from onceward.retention.archive import GRACE, Archive, ArchiveFile

DAY, HOUR = GRACE.total_seconds(), 3600


def archived(folder: Path, *seqs: int) -> ArchiveFile:
    """A new file with these messages."""
    file = Archive(folder).add([with_body({"seq": seq, "headers": {}}, b"ann") for seq in seqs])
    assert file is not None
    return file


def beside(folder: Path, file: ArchiveFile, *, edition: int, age: float, copy: str = "0123abcd") -> Path:
    """Another file of its place that the manifest does not name, written so many seconds ago."""
    path = folder / "messages" / f"1-1-{file.place}.{edition:04}.{copy}.jsonl.gz"
    return aged(path, age)


def aged(path: Path, age: float) -> Path:
    path.write_bytes(b"")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_a_new_file_is_a_reason_to_tidy(tmp_path: Path) -> None:
    """What a process that died while it wrote has left goes after a day, from both folders."""
    file = archived(tmp_path, 1)
    for folder in ("messages", "manifest"):
        old, young = (aged(tmp_path / folder / f"{age}.part", age) for age in (DAY + HOUR, DAY - HOUR))
        archived(tmp_path, 2)
        assert (old.exists(), young.exists()) == (False, True)
    assert file in Archive(tmp_path).files()


def test_an_edition_that_may_get_its_entry_stays_for_a_day(tmp_path: Path) -> None:
    """It is newer than that of the manifest; one that is older than that has nothing to wait for."""
    file = archived(tmp_path, 1)
    late, soon = beside(tmp_path, file, edition=2, age=DAY + HOUR), beside(tmp_path, file, edition=3, age=DAY - HOUR)
    former = beside(tmp_path, file, edition=0, age=0)
    Archive(tmp_path).tidy()
    assert [one.exists() for one in (late, soon, former, tmp_path / file.name)] == [False, True, False, True]


def test_of_two_files_of_one_edition_the_one_that_the_manifest_names_stays(tmp_path: Path) -> None:
    file, other = archived(tmp_path, 1), archived(tmp_path, 2)
    second = beside(tmp_path, file, edition=1, age=0)
    Archive(tmp_path).tidy()
    assert not second.exists()
    assert Archive(tmp_path).files() == [file, other]
    assert [record["seq"] for record in Archive(tmp_path).read()] == [1, 2]


def test_a_file_that_never_got_an_entry_goes_after_a_day(tmp_path: Path) -> None:
    """Its messages are still in the database."""
    lost, open_ = archived(tmp_path, 1), archived(tmp_path, 2)
    for file, age in ((lost, DAY + HOUR), (open_, DAY - HOUR)):
        (tmp_path / file.entry).unlink()
        os.utime(tmp_path / file.name, (time.time() - age,) * 2)
    archived(tmp_path, 3)
    assert [(tmp_path / file.name).exists() for file in (lost, open_)] == [False, True]
    assert [record["seq"] for record in Archive(tmp_path).read()] == [3]
