"""Seeded mistakes: small faults of hybridmpi's code, each with a test that must see it. `run.py` puts them in.

Each chapter has a file CHAPTER.toml beside this one, with entries

    [[mistake]]
    name = "folder-not-synced"                     # unique; the command's --only takes it
    file = "src/hybridmpi/checkpoint/files.py"
    old = '''        sync(path.parent)\\n'''          # occurs exactly once in the file
    new = ""                                       # what stands there instead; must still be Python
    seen_by = "tests/single/test_durability.py::test_a_saved_generation_survives"
    why = "after a crash the file has its old name, or none"

`seen_by` is a pytest node id, as narrow as it gets: `file.py::test_name[case]`; or checks under mpirun: the number of
ranks, then what tests/parallel/runner.py is given: "3 checks_sparse check_odd_shapes". A test that ends in an error, or
not at all, has seen the mistake. A new wait, order, invariant, or piece of state that is saved, comes with an entry.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


@dataclass(frozen=True)
class Mistake:
    """One entry; `chapter` is the name of its file."""

    chapter: str
    name: str
    file: str
    old: str
    new: str
    seen_by: str
    why: str

    def text(self, root: Path) -> str:
        """Return the text of the file below `root` with the mistake in it; ValueError where it does not fit."""
        right = (root / self.file).read_text(encoding="utf-8")
        found = right.count(self.old) if self.old else 0
        if found != 1:
            raise ValueError(f"{self.name}: its old text occurs {found} times in {self.file}, expected once")
        wrong = right.replace(self.old, self.new)
        ast.parse(wrong, self.file)
        return wrong

    @property
    def ranks(self) -> int:
        """On how many ranks its test runs under mpirun; 0: by pytest."""
        first = self.seen_by.split()[0]
        return int(first) if first.isdigit() else 0


def catalogue(folder: Path = FOLDER) -> list[Mistake]:
    """Return all entries, chapter by chapter."""
    return [
        Mistake(path.stem, **entry)
        for path in sorted(folder.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mistake"]
    ]


def missing_test(mistake: Mistake, root: Path = ROOT) -> str:
    """Return what of the test that an entry names does not exist; "" if all does."""
    if mistake.ranks:
        wanted = [word for word in mistake.seen_by.split() if word.startswith(("checks_", "check_"))]
        modules = [root / "tests" / "parallel" / f"{name}.py" for name in wanted if name.startswith("checks_")]
        names = {name for name in wanted if name.startswith("check_")}
    else:
        file, _, rest = mistake.seen_by.partition("::")
        modules, names = [root / file], {rest.partition("[")[0]} - {""}
    gone = [str(module.relative_to(root)) for module in modules if not module.is_file()]
    defined = {
        node.name
        for module in modules
        if module.is_file()
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    return ", ".join([*(["no test at all"] if not modules else []), *gone, *sorted(names - defined)])
