"""Files that are whole or absent, never half written."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` under a temporary name, force it to disk and rename it to `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove what `write_atomic` leaves anywhere below a folder when its process is killed. Nobody may be writing."""
    for path in list(folder.rglob(".*.tmp")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write sorted, indented JSON atomically; a number that is not finite is an error."""
    text = json.dumps(content, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False)
    write_atomic(path, (text + "\n").encode())
