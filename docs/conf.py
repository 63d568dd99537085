"""How Sphinx builds the documentation; `docs/build.py` runs it and stages its input."""

from __future__ import annotations

from rca_llm import __version__

project = "RCA-LLM"
author = "the RCA-LLM authors"
copyright = "the RCA-LLM authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"RCA-LLM {release}"
html_static_path: list[str] = []
exclude_patterns = ["_build"]

myst_heading_anchors = 4
# A skipped level of heading is a matter of taste, not of a broken page.
suppress_warnings = ["myst.header"]
myst_enable_extensions = ["fieldlist"]
# What blocks without a language hold are shells, layouts and diagrams.
highlight_language = "none"

# Docstrings here put code into single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
python_use_unqualified_type_names = True
nitpicky = False
