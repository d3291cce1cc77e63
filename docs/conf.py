"""Sphinx's configuration for `make docs`. The pages are Markdown that GitHub renders as well."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import fastcni

project = "fastcni"
author = "The fastcni authors"
release = fastcni.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"fastcni {release}"
html_show_copyright = False
myst_heading_anchors = 4            # GitHub's anchors
default_role = "literal"            # `name` in a docstring
autodoc_member_order = "bysource"
suppress_warnings = ["ref.python"]  # CniError is a name of several modules


def as_text(_app, _what, _name, _obj, _options, lines):
    """Let a docstring mean what it says: columns and indented lines stay as they are, and no character is a mark."""
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    found = []
    for paragraph in paragraphs:
        if re.search(r"^\s|^\S.*\S {2,}\S", paragraph, re.MULTILINE):
            found.append("::\n\n" + re.sub("^", "    ", paragraph, flags=re.MULTILINE))
        else:
            found.append(re.sub(r"([*|\\]|_(?!\w))", r"\\\1", paragraph))
    lines[:] = "\n\n".join([*found, ""]).split("\n")


def setup(app):
    app.connect("autodoc-process-docstring", as_text)
