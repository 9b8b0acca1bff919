"""Makes a model that is converted or pre-trained here, before any cell is timed or measured.

python -m bench.worker.prepare CELL.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.errors import UserError
from bench.spec import Cell
from bench.store import read_record
from bench.worker.__main__ import die_with_parent


def main(argv: list[str]) -> int:
    """Exit code 0 when the model is there; else one line on stderr."""
    die_with_parent()
    from bench.worker import weights

    cell = read_record(Cell, Path(argv[0]))
    assert cell is not None
    try:
        weights.locate(cell.model)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
