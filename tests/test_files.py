"""Files that several threads write at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stof_cupy.files import write_whole


def test_threads_may_write_one_file_at_a_time_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    texts = [bytes([letter]) * 100_000 for letter in b"abcdefgh"]
    write_whole(path, texts[0])

    def work(text: bytes) -> set[bytes]:
        found = set()
        for _ in range(20):
            write_whole(path, text)
            found.add(path.read_bytes())
        return found

    with ThreadPoolExecutor(len(texts)) as pool:
        found = set().union(*pool.map(work, texts))
    assert found <= {*texts} and [each.name for each in path.parent.iterdir()] == ["file.json"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError):
        write_whole(tmp_path / "file", b"text")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
