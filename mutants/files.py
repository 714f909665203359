"""Files that must survive a crash of the machine: blobs, the archive, the spool."""

from __future__ import annotations

from mutants.mutant import Mutant

_DURABLE = "tests/retention/test_durability.py"
_SPOOL_FILE = "tests/retention/test_spool_file.py"
_WHOLE = f"{_DURABLE}::test_a_blob_is_there_whole_or_not_at_all"
_RELIES = f"{_DURABLE}::test_who_relies_on_what_another_made_waits_for_it"
_BLOBS = "blobs/files.py"

_SYNCED = (
    Mutant(
        name="a blob is named before its bytes are on the disk",
        file=_BLOBS,
        old="            os.fsync(file.fileno())\n",
        new="",
        test=_WHOLE,
    ),
    Mutant(
        name="a blob is synced before its bytes have left the program",
        file=_BLOBS,
        old="            file.flush()\n",
        new="",
        test=_WHOLE,
    ),
    Mutant(
        name="a blob is written under its own name",
        file=_BLOBS,
        old="""            self._write(part, body)
            part.rename(path)
""",
        new="""            self._write(path, body)
""",
        test=_WHOLE,
    ),
    Mutant(
        name="a blob is safe before its name is",
        file=_BLOBS,
        old="            part.rename(path)\n            sync_folder(path.parent)\n",
        new="            part.rename(path)\n",
        test=_WHOLE,
    ),
    Mutant(
        name="what is created is safe before its name is",
        file=_BLOBS,
        old="                part.unlink()\n                sync_folder(path.parent)\n",
        new="                part.unlink()\n",
        test=_WHOLE,
    ),
    Mutant(
        name="a folder is not waited for",
        file=_BLOBS,
        old="            sync_folder(folder.parent)\n",
        new="            pass\n",
        test=_WHOLE,
    ),
    Mutant(
        name="no folder is waited for",
        file="domain/disk.py",
        old="        os.fsync(handle)\n",
        new="        pass\n",
        test=_WHOLE,
    ),
    Mutant(
        name="a folder that another process has made is taken to be safe",
        file=_BLOBS,
        old="if there and folder in self._waited:",
        new="if there:",
        test=_RELIES,
    ),
    Mutant(
        name="what was deleted may come back",
        file=_BLOBS,
        old="                sync_folder(path.parent)  # what was erased does not come back\n",
        new="                pass\n",
        test=f"{_DURABLE}::test_what_was_deleted_does_not_come_back",
    ),
    Mutant(
        name="files go because of an entry that may be lost",
        file=_BLOBS,
        old="                sync_folder(Path(parent))  # what is removed",
        new="                # what is removed",
        test=f"{_DURABLE}::test_one_that_dies_while_it_erases_endangers_nothing",
    ),
)
"""Each wait for the disk, and each order of write, sync and rename."""

_REFERRED = (
    Mutant(
        name="the archive names a file that is not written yet",
        file="retention/archive.py",
        old="""        self._store.put(name, data)
        return ArchiveFile(place, edition, name, hashlib.sha256(data).hexdigest(), len(seqs), first, last)
""",
        new="""        written = ArchiveFile(place, edition, name, hashlib.sha256(data).hexdigest(), len(seqs), first, last)
        self._publish(written)
        self._store.put(name, data)
        return written
""",
        test=f"{_DURABLE}::test_an_archive_has_all_of_a_file_or_nothing",
    ),
    Mutant(
        name="what was erased stays in the edition before",
        file="retention/archive.py",
        old="            if edition < known or (edition > known and written < young):",
        new="            if edition > known and written < young:",
        test=f"{_DURABLE}::test_erasing_from_an_archive_loses_nothing_and_leaves_nothing",
    ),
    Mutant(
        name="the edition before goes while the next one has no entry",
        file="retention/archive.py",
        old="        if self._publish(written):\n            return found\n",
        new="        self._store.delete(file.name)\n        if self._publish(written):\n            return found\n",
        test=f"{_DURABLE}::test_erasing_from_an_archive_loses_nothing_and_leaves_nothing",
    ),
    Mutant(
        name="collecting removes what a row refers to",
        file="steps/blob.py",
        old="        for name in sorted(set(names) - referred):",
        new="        for name in sorted(set(names)):",
        test=f"{_DURABLE}::test_what_a_row_refers_to_is_on_the_disk",
        store="sqlite",
    ),
)
"""What may be removed, and when."""

_SPOOL, _PROCESSES = "runtime/spool.py", "tests/retention/test_spool_processes.py"
_SPOOLED = (
    Mutant(
        name="the spool does not wait for the disk",
        file=_SPOOL,
        old="PRAGMA synchronous = FULL",
        new="PRAGMA synchronous = NORMAL",
        test=f"{_PROCESSES}::test_every_connection_waits_for_the_disk",
    ),
    Mutant(
        name="the spool is written without WAL",
        file=_SPOOL,
        old="PRAGMA journal_mode = WAL",
        new="PRAGMA journal_mode = TRUNCATE",
        test=f"{_PROCESSES}::test_every_connection_waits_for_the_disk",
    ),
    Mutant(
        name="the name of the spool is not waited for",
        file=_SPOOL,
        old="        sync_folder(path.parent)  # also where",
        new="        # also where",
        test=f"{_PROCESSES}::test_the_name_of_the_file_is_on_the_disk_before_anything_is_in_it",
    ),
    Mutant(
        name="the name of a spool that is there is taken to be safe",
        file=_SPOOL,
        old="""            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        sync""",
        new="""            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            sync""",
        test=f"{_PROCESSES}::test_the_name_of_the_file_is_on_the_disk_before_anything_is_in_it",
    ),
    Mutant(
        name="a thread opens the spool while another makes it",
        file=_SPOOL,
        old="    with _making:\n",
        new="    with threading.Lock():\n",
        test=f"{_PROCESSES}::test_no_thread_opens_the_file_while_another_makes_it",
    ),
    Mutant(
        name="an append does not wait for that of another process",
        file=_SPOOL,
        old="timeout=BUSY_SECONDS",
        new="timeout=0",
        test=f"{_PROCESSES}::test_an_append_waits_for_that_of_another_process",
    ),
    Mutant(
        name="a look into the spool waits for an append",
        file=_SPOOL,
        old="if version == 0 else []), *_SETTINGS):",
        new="if version >= 0 else []), *_SETTINGS):",
        test=f"{_PROCESSES}::test_an_append_waits_for_that_of_another_process",
    ),
    Mutant(
        name="two processes drain the spool at once",
        file=_SPOOL,
        old='lock.execute("BEGIN EXCLUSIVE")',
        new='lock.execute("BEGIN")',
        test=f"{_SPOOL_FILE}::test_one_drains_at_a_time",
    ),
    Mutant(
        name="a message leaves the spool before it is in the database",
        file="runtime/spooling.py",
        old="                found = self._refused(batch)\n",
        new="                spool.settle([one.number for one in batch], {})\n                found = self._refused(batch)\n",
        test=f"{_PROCESSES}::test_a_drain_that_is_killed_loses_and_doubles_nothing",
        store="sqlite",
    ),
)
"""A table in a SQLite file: SQLite waits for the disk if it is told so, and two processes are one too many to drain."""

FILES: tuple[Mutant, ...] = (*_SYNCED, *_REFERRED, *_SPOOLED)
