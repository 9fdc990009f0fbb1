"""Sphinx configuration."""

import harel

project = "harel"
author = "the harel authors"
version = release = harel.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "A FIFO queue partitioned into groups.", "fixed_sidebar": True}
napoleon_google_docstring = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_inherit_docstrings = True
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
