"""The pages of docs/ are true: their commands run as they stand and print what is shown, links lead somewhere.

`sh` blocks run, a page's in order, in a copy of the tree; the `text` block after one is what they print. `bash` blocks
need other hosts, Slurm or minutes: their commands and options must exist. `python` blocks are saved where the text says
so.
"""

import re
import shlex
import subprocess

import pytest
from launching import ROOT
from pages import assert_prints, blocks, lines_of, run, small_clone

from hybridmpi.cli.main import COMMANDS, main
from hybridmpi.training.job import default_job
from hybridmpi.training.kinds import KINDS
from hybridmpi.training.reference import sections_of

PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
README = (ROOT / "README.md").read_text(encoding="utf-8")
LANGUAGES = {"sh", "bash", "text", "python", "toml"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return small_clone(tmp_path_factory.mktemp("pages") / "hybridmpi")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks(text, "sh")])
def test_commands_of_a_page(clone, page):
    text = PAGES[page]
    for name, program in re.findall(r"[Ss]ave this as `(\S+\.py)`[^`]*\n\n```python\n(.*?)^```$", text, re.S | re.M):
        (clone / name).write_text(program, encoding="utf-8")
    for block, shown in re.findall(r"^```sh\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, re.S | re.M):
        output = "".join(run(clone, line) for line in lines_of(block))
        assert_prints(shown, output)


def programs(line):
    """Yield the words of each program that a line of the shell starts."""
    words = []
    for word in [*shlex.shlex(line, posix=True, punctuation_chars=True), ";"]:
        if set(word) <= set("();<>|&"):
            yield words
            words = []
        else:
            words.append(word)


def check_command(words, capsys):
    """Check that the hybridmpi command in `words` exists, with the options that it is given."""
    place = next((n for n, word in enumerate(words) if re.fullmatch(r"(\S*/)?hybridmpi", word)), None)
    if place is None or words[:2] == ["pip", "install"]:
        return
    words, inner = words[place + 1 :], []
    if "--" in words:
        words, inner = words[: words.index("--")], words[words.index("--") + 1 :]
    assert words[0] in COMMANDS or words[0].startswith("--"), f"no command {words[0]}"
    options = [n for n, word in enumerate(words) if word.startswith("-")]
    with pytest.raises(SystemExit):
        main([*words[: options[0] if options else None], "--help"])
    shown = capsys.readouterr().out
    for option in options:
        assert words[option].split("=")[0] in re.split(r"[\s,\]]", shown), f"{words[0]} has no {words[option]}"
    if inner and inner[0] != "python":
        check_command(["hybridmpi", *inner], capsys)


def check_files(words):
    """Check that the files of the tree that are named exist."""
    for word in words:
        assert not re.match(r"(benchmarks|jobs|tests|docs)/", word) or (ROOT / word).exists(), f"no file {word}"


def check_target(words):
    """Check that what `make` is told to make can be made."""
    if words[:1] == ["make"]:
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in (word for word in words[1:] if "=" not in word):
            name = re.sub(r"^test-\d+$", "test-%", target)
            assert re.search(f"^{re.escape(name)}:", makefile, re.MULTILINE), f"no target {target}"


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks(text, "bash")])
def test_commands_that_are_not_run_could_be(page, capsys):
    for block in blocks(PAGES[page], "bash"):
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)
        for line in lines_of(block):
            for words in programs(line):
                check_command(words, capsys)
                check_files(words)
                check_target(words)


def test_commands_are_checked(capsys):
    check_command(shlex.split("x=3 .venv/bin/hybridmpi launch -n 3 -- train a.toml --set data.source=x"), capsys)
    for line in ("hybridmpi lunch", "hybridmpi train a --steps 3", "hybridmpi launch -n 3 -- train a --resum x"):
        with pytest.raises(AssertionError, match="no command lunch|train has no --"):
            check_command(shlex.split(line), capsys)
    with pytest.raises(AssertionError, match="no target doc"):
        check_target(["make", "doc"])


def test_programs_on_pages_are_python_and_languages_are_known():
    for page, text in PAGES.items():
        for program in blocks(text, "python"):
            compile(program, f"docs/{page}.md", "exec")
        unknown = set(re.findall(r"^```(.*)\n(?:.*\n)*?```$", text, re.MULTILINE)) - LANGUAGES
        assert not unknown, f"docs/{page}.md: say what each block is, one of {LANGUAGES}, not {unknown}"


def anchors(text):
    """Return what a forge calls the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)", text, re.M)}


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"
            if anchor:
                known = anchors((page.parent / target).read_text(encoding="utf-8") if target else text)
                assert anchor in known, f"{page.name} links to #{anchor} of {target or 'itself'}"


def test_what_is_added_to_pages_has_every_key_name_and_page(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import additions

    keys, names, order = additions.job_keys(), additions.names(), additions.order()
    for kind in KINDS:
        assert f'### kind = "{kind}"' in keys
        for _, section in sections_of(default_job(kind)):
            assert all(f"\n| `{key.name}` | " in keys for key in section if key.name != "kind")
    for name in ("run", "Trainer", "nn.Embedding", "optim.Adam", "autograd.cross_entropy", "errors.UsageError"):
        assert f":: hybridmpi.{name}\n" in names
    assert set(re.findall(r"^[a-z-]+$", order, re.MULTILINE)) == PAGES.keys() - {"index"}


def test_the_first_page_links_to_every_page():
    linked = set(re.findall(r"\]\((\S+)\.md\)", PAGES["index"]))
    assert linked == PAGES.keys() - {"index"}
