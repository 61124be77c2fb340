"""The documentation site: `make docs` builds it from these pages into build/site (docs/adr/0095)."""

from __future__ import annotations

from taihu import __version__

project = "taihu"
author = "The taihu authors"
copyright = "The taihu authors"  # noqa: A001 - the name that Sphinx reads
release = __version__

extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["from_code"]
# Decisions hang on adr/README.md alone; tests/site/test_page_links.py finds each page from the front page.
suppress_warnings = ["toc.not_included"]
myst_heading_anchors = 4
highlight_language = "none"  # blocks without a language are output

html_theme = "furo"
html_title = "taihu"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
