"""How Sphinx builds these pages: `make docs`."""

import mojolearn

project = "mojolearn"
author = "mojolearn developers"
release = mojolearn.__version__

extensions = ["myst_parser"]
myst_heading_anchors = 2
exclude_patterns = ["_build"]
html_theme = "pydata_sphinx_theme"
nitpicky = True
