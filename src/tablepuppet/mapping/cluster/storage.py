"""Arrays in a folder that several machines reach, as Arrow files; mapped into memory where it is local."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
from numpy.typing import NDArray


class Storage:
    """A folder that several machines reach: a path, or a URI that Arrow knows."""

    def __init__(self, place: str) -> None:
        if "://" in place:
            self._files, self._folder = pyarrow.fs.FileSystem.from_uri(place)
        else:
            self._files, self._folder = pyarrow.fs.LocalFileSystem(use_mmap=True), str(Path(place).absolute())

    def write(self, name: str, columns: dict[str, NDArray[Any]], **facts: Any) -> None:
        """Arrays of one length, under a name; whole or not at all."""
        schema_facts = {"tablepuppet": json.dumps(facts)}
        table = pa.table({n: pa.array(a) for n, a in columns.items()}).replace_schema_metadata(schema_facts)
        path = f"{self._folder}/{name}.arrow"
        part = f"{path}.{uuid.uuid4().hex}"  # a worker that was given up may still be writing the same
        with self._files.open_output_stream(part) as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self._files.move(part, path)

    def read(self, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The arrays under a name, mapped from the disk where it is local, and the facts beside them."""
        source = self._files.open_input_file(f"{self._folder}/{name}.arrow")
        table = pa.ipc.open_file(source).read_all()
        columns = {n: _whole(table.column(n)) for n in table.column_names}
        return columns, json.loads(table.schema.metadata[b"tablepuppet"])

    def remove(self, name: str) -> None:
        """Forgets a name, if it is there."""
        path = f"{self._folder}/{name}.arrow"
        if self._files.get_file_info(path).type != pyarrow.fs.FileType.NotFound:
            self._files.delete_file(path)

    def create(self) -> None:
        """Makes the folder."""
        self._files.create_dir(self._folder, recursive=True)

    def clear(self) -> None:
        """Removes the folder and all that is in it."""
        self._files.delete_dir(self._folder)


def _whole(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as one array, without a copy where it lies in one chunk."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.asarray(array.to_numpy(zero_copy_only=False))
