"""What is added to pages while they are built: their order, the keys of job files, the names of the library."""

import re
from collections import Counter
from dataclasses import fields
from importlib import import_module
from types import ModuleType

from hybridmpi.optim import OPTIMIZERS
from hybridmpi.training.job import Job, default_job
from hybridmpi.training.kinds import KINDS, task_of
from hybridmpi.training.reference import keys_of, sections_of, toml

PAGES = {
    "First steps": ["quick-start", "concepts", "writing-a-model"],
    "Running jobs": ["jobs", "mpi", "slurm", "gpu", "checkpoints", "watching", "doctor"],
    "Reference": ["api", "sharp-bits", "performance"],
    "Inside": ["design", "developing"],
}

# Modules whose public names the page of names shows, each with its own order: that of __all__.
MODULES = ("hybridmpi.nn", "hybridmpi.optim", "hybridmpi.autograd", "hybridmpi.dynamic", "hybridmpi.graphs")
FIRST = ("run", "World", "Trainer")
MODULES += ("hybridmpi.data", "hybridmpi.checkpoint", "hybridmpi.errors")


def order():
    """Return the tables of contents of the first page."""
    return "".join(
        "\n".join([f"```{{toctree}}\n:hidden:\n:caption: {caption}\n", *pages, "```\n\n"])
        for caption, pages in PAGES.items()
    )


def table(keys, defaults=None):
    """Return a table of keys; `defaults`: the text of a key's default by name, where it is not that of the key."""
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key in keys:
        cells = (f"`{key.name}`", key.expected, (defaults or {}).get(key.name, f"`{toml(key.default)}`"), key.meaning)
        lines.append("| " + " | ".join(markdown(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def markdown(text):
    """Return a text with what markdown would take for something else escaped, but for code."""
    return "".join(
        part if part.startswith("`") else re.sub(r"([|<>*\[\]_])", r"\\\1", part)
        for part in re.split(r"(`[^`]*`)", text)
    )


def job_keys():
    """Return the keys of job files: sections that all kinds share, optimisers, and for each kind [model] and [data]."""
    jobs = {kind: dict(sections_of(default_job(kind))) for kind in KINDS}
    text = ["## All keys\n"]
    for field in fields(Job):
        name = field.name
        about = (getattr(type(getattr(default_job("lm"), name)), "__doc__", "") or "").partition("]: ")[2]
        if name in ("model", "data"):
            continue
        text.append(f"### [{name}]\n")
        if name == "modes":
            text.append(
                'No keys of its own: each is a pattern of names of parameters, such as `"output*"`, and its value one '
                "of those of `mode` in [sparse], from which it is an exception.\n"
            )
        elif name == "optimizer":
            default = default_job("lm").optimizer
            text.append(f"`kind` and the settings of that kind; without any, jobs are trained by {default.name}.\n")
            for kind, rule in OPTIMIZERS.items():
                text.append(f'**kind = "{kind}"**: {rule.__doc__.split(": ")[0].splitlines()[0]}\n')
                same = kind == default.name
                texts = differing(jobs, name) if same else {"rate": "none: give it"}
                text.append(table(keys_of(default if same else rule(rate=1)), texts))
        else:
            text.append(f"{about[:1].upper()}{about[1:]}\n")
            text.append(table(jobs["lm"][name], differing(jobs, name)))
    for kind in KINDS:
        text.append(f'### kind = "{kind}"\n\n{markdown(task_of(kind).about)}\n')
        for name in ("model", "data"):
            text.append(f"**[{name}]**\n\n" + table(jobs[kind][name]))
    return "\n".join(text)


def differing(jobs, section):
    """Return the texts of defaults that are not the same for all kinds."""
    texts = {}
    for place, key in enumerate(jobs["lm"][section]):  # all kinds begin with the same optimiser
        values = {kind: toml(job[section][place].default) for kind, job in jobs.items()}
        usual, count = Counter(values.values()).most_common(1)[0]
        if count < len(values):
            shown = [f"{kind}: `{value}`" for kind, value in values.items() if value != usual or count == 1]
            texts[key.name] = ", ".join(shown if count == 1 else [f"`{usual}`", *shown])
    return texts


def names():
    """Return the names that the library offers, with their docstrings."""
    text = [section("hybridmpi", "The top: `import hybridmpi as hm`", top_names())]
    for module in MODULES:
        text.append(section(module, f"`{module}`", public_names(module)))
    return "\n".join(text)


def top_names():
    """Return the names of hybridmpi that are no modules: what every program needs first."""
    package = import_module("hybridmpi")
    known = [name for name in package.__all__ if not isinstance(getattr(package, name), ModuleType)]
    return sorted(known, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def public_names(module):
    """Return the public names of a module that are no modules."""
    loaded = import_module(module)
    known = getattr(loaded, "__all__", None) or [n for n, v in vars(loaded).items() if isinstance(v, type)]
    return [name for name in known if callable(getattr(loaded, name))]


def section(module, title, known):
    """Return a section with the docstrings of names of a module."""
    loaded = import_module(module)
    lines = [f"## {title}\n", f"{loaded.__doc__.splitlines()[0]}\n" if module != "hybridmpi" else "", "```{eval-rst}"]
    for name in known:
        value = getattr(loaded, name)
        what = "autoclass" if isinstance(value, type) else "autofunction"
        lines.append(f".. {what}:: {module}.{name}")
        if what == "autoclass" and not issubclass(value, Exception):
            lines.append("   :members:")
        lines.append("")
    return "\n".join([*lines, "```\n"])


def clean_docstring(app, what, name, obj, options, lines):
    """Keep plain text from being read as reStructuredText; lines such as `rows: how many` become lists."""
    cleaned, within = [], False
    for place, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        text = "".join(part if part.startswith("`") else re.sub(r"(\*|\||_\b)", r"\\\1", part) for part in parts)
        begins = place == 0 or not lines[place - 1].strip()
        item = re.match(r"([a-z_]\w*(?:, [a-z_]\w*)*): (.+)", text) if begins or within else None
        within = bool(line.strip()) and (bool(item) or (within and not begins))
        if item and place:
            cleaned.append(f"* **{item[1]}**: {item[2]}")
        else:
            cleaned.append(f"  {text.strip()}" if within and place else text)
    lines[:] = cleaned


def clean_signature(app, what, name, obj, options, signature, returns):
    """Leave the meanings of keys out of signatures."""
    return re.sub(r"Annotated\[(\w+), (?:'[^']*'|\"[^\"]*\")\]", r"\1", signature or "") or None, returns


ADDITIONS = {"index": order, "jobs": job_keys, "api": names}
