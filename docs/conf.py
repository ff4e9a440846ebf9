"""How `make docs` builds these pages with Sphinx.

Pages are markdown that reads as it stands. What it cannot say itself is added while building: the order of the pages,
the keys of job files (of the dataclasses), and the names of the library (of their docstrings).
"""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from additions import ADDITIONS, clean_docstring, clean_signature

project = "hybridmpi"
release = metadata.version("hybridmpi")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"hybridmpi {release}"
html_show_copyright = html_show_sphinx = html_copy_source = False

myst_heading_anchors = 3
myst_links_external_new_tab = False
smartquotes = False  # quotes are those that one types
default_role = "code"  # `name` in docstrings
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_display_short_literal_types = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
# Types in signatures are names of numpy, mpi4py and of inner modules, which have no pages here.
nitpick_ignore_regex = [("py:.*", ".*")]


def add(app, name, source):
    """Add to a page what is generated."""
    if name in ADDITIONS:
        source[0] += "\n" + ADDITIONS[name]()


def setup(app):
    """Tell Sphinx what is done on the way."""
    app.connect("source-read", add)
    app.connect("autodoc-process-docstring", clean_docstring)
    app.connect("autodoc-process-signature", clean_signature)
