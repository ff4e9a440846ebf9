"""The house keeps its order: packages are listed, imports go one way, files stay short, no machine shines through."""

import ast
import configparser
import re
import tomllib
from pathlib import Path

import pytest
from mistakes.catalogue import catalogue, missing_test

ROOT = Path(__file__).parents[2]
PACKAGE, KERNELS = ROOT / "src" / "hybridmpi", ROOT / "kernels"
CODE = sorted([*PACKAGE.rglob("*.py"), *KERNELS.rglob("*.py")])
FOLDERS = ("src", "kernels", "tests", "jobs", "docs", "benchmarks", ".ci")
FILES = ("README.md", "Makefile", "setup.cfg", "pyproject.toml", ".gitignore")
SUFFIXES = {".py", ".md", ".toml", ".cfg", ".sh", ".svg", ""}
TEXTS = sorted(
    path
    for path in [*(ROOT / name for name in FILES), *(p for name in FOLDERS for p in (ROOT / name).rglob("*"))]
    if path.is_file() and path.suffix in SUFFIXES and not {"__pycache__", "runs"} & set(path.parts)
)

# Chapters from the ground up: a module may import from its own chapter, and from those that stand before it here.
STOREYS = [
    ("errors", "wording"),
    ("environment", "mpi_implementations"),
    ("paths",),
    ("field_types", "pictures"),
    (
        "arrays",
        "children",
        "cores",
        "folders",
        "kernels",
        "large_counts",
        "memory",
        "mpi_files",
        "recording",
        "roles",
        "signals",
        "streams",
        "tags",
        "traffic",
        "waiting",
    ),
    ("inputs",),
    ("failures", "kernel_cache", "mpi_start", "shared_windows"),
    ("rendezvous",),
    ("singletons",),
    ("world",),
    ("graphs",),
    ("collectives", "optim", "checkpoint", "data"),
    ("inspection", "sparse"),
    ("autograd",),
    ("nn",),
    ("dynamic",),
    ("models", "planning"),
    ("training",),
    ("bench", "doctor", "slurm", "watching"),
    ("cli",),
]
# The steps up: a server rank serves when its world closes, so that every program of a World works on all ranks; and
# failures names the type of what it ends.
UPWARDS = {("hybridmpi.world", "hybridmpi.sparse.service"), ("hybridmpi.failures", "hybridmpi.world")}
LONGEST = 500


def chapter_of(module):
    """Return the chapter of a dotted module name: hybridmpi.sparse.client -> sparse."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def module_of(path):
    if path.is_relative_to(KERNELS):
        parts = ("hybridmpi", "kernels", *path.relative_to(KERNELS).with_suffix("").parts)
    else:
        parts = ("hybridmpi", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def imports(path):
    """Yield the hybridmpi modules that a file imports anywhere, in functions and for type checkers too."""
    names = {module_of(p) for p in CODE}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "hybridmpi")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            if node.module.split(".")[0] == "hybridmpi":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in names else node.module


def test_setup_lists_the_packages_there_are():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    found = {module_of(path) for path in CODE if path.name == "__init__.py"}
    assert listed == sorted(found)
    folders = {path.parent for path in CODE}
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_metadata_is_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project) == {"build-system", "tool"} and set(project["tool"]) == {"ruff"}


def test_every_chapter_has_its_storey():
    chapters = {chapter_of(module_of(path)) for path in CODE} - {"", "__main__"}
    assert chapters == {chapter for storey in STOREYS for chapter in storey}


@pytest.mark.parametrize("path", CODE, ids=lambda path: module_of(path).removeprefix("hybridmpi."))
def test_imports_go_one_way(path):
    chapter = chapter_of(module_of(path))
    if chapter in ("", "__main__"):
        return  # the package itself and its entry point name everything
    storey = next(number for number, chapters in enumerate(STOREYS) if chapter in chapters)
    below = {name for chapters in STOREYS[: storey + 1] for name in chapters}
    below -= {name for name in STOREYS[storey] if name != chapter}
    for module in imports(path):
        allowed = chapter_of(module) in below or (module_of(path), module) in UPWARDS
        assert allowed, f"{module_of(path)} imports {module}, which stands above or beside it"
        assert chapter != "kernels" or module.startswith("hybridmpi.kernels"), f"{path}: kernels stand alone"


def test_files_stay_short():
    for path in TEXTS:
        if path.suffix == ".py":
            lines = path.read_text(encoding="utf-8").count("\n")
            assert lines <= LONGEST, f"{path.relative_to(ROOT)} has {lines} lines: split it by ideas"


def test_nothing_is_tied_to_one_machine():
    # In pieces, so that this file does not find itself.
    forbidden = {
        "an absolute path": r"(?<![\w.$~])/(tm" "p|wor" "k|roo" r"t|hom" r"e)/\w",
        "a registry's host": r"py" r"pi\.org|python" r"hosted\.org|deb\.deb" r"ian|npm" r"js\.",
    }
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        for what, pattern in forbidden.items():
            found = re.search(pattern, text)
            assert not found, f"{path.relative_to(ROOT)} holds {what}: {found[0]}"


def test_public_functions_say_what_they_do():
    """Of kernels, the registry's tests look after those that are public."""
    for path in CODE:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree) or not tree.body, f"{module_of(path)} has no docstring"
        if path.is_relative_to(KERNELS):
            continue
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{module_of(path)}.{node.name} has no docstring"


def test_seeded_mistakes_fit_the_code_and_have_their_tests():
    """Code that changes takes its entries along: the old text is what stands there now."""
    mistakes, wrong = catalogue(), []
    for mistake in mistakes:
        try:
            mistake.text(ROOT)
        except (OSError, SyntaxError, ValueError) as error:
            wrong.append(f"tests/mistakes/{mistake.chapter}.toml: {error}")
        if gone := missing_test(mistake):
            wrong.append(f"{mistake.name}: no such test: {gone}")
        if not mistake.why:
            wrong.append(f"{mistake.name}: why?")
    assert not wrong, "\n".join(wrong)
    names = [mistake.name for mistake in mistakes]
    assert sorted(names) == sorted(set(names))


# What all ranks do together, by the names of its methods; closing what is open on several ranks is, too.
COLLECTIVE = {"barrier", "broadcast", "gather", "from_root", "together", "meet", "settle", "allgather", "allreduce"}
COLLECTIVE |= {"Barrier", "Bcast", "Allreduce", "Allgather", "Allgatherv", "Split", "Dup"}
OPEN_TOGETHER = {"world", "service", "trainer", "exchange"}


def test_nothing_collective_stands_where_an_error_passes():
    """Other ranks do not have the error: one that has it would join whatever they are in."""
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Try):
                continue
            passed = [*node.finalbody, *(line for handler in node.handlers for line in handler.body)]
            for call in (inner for line in passed for inner in ast.walk(line)):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                    owner = ast.unparse(call.func.value).split(".")[-1]
                    closes = call.func.attr in ("close", "Free") and owner in OPEN_TOGETHER
                    found = f"{module_of(path)}, line {call.lineno}: {ast.unparse(call.func)}"
                    assert not (closes or call.func.attr in COLLECTIVE), found
