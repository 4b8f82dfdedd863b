"""The documentation site: `make docs` builds it, offline; every warning is an error."""

from importlib.metadata import version as version_of

project = "memloc"
release = version = version_of("memloc")
copyright = ""

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "memloc"
html_show_copyright = html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
