"""The site: `sphinx-build -W docs build/site`. `pages.py` generates pages from the code."""

import inspect
import os
import re
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import kerasbert.models  # noqa: E402  Before Keras imports TensorFlow: see kerasbert/base/host.py.

# isort: split
from sphinx.search import languages  # noqa: E402
from sphinx.search.en import SearchEnglish  # noqa: E402

import pages  # noqa: E402

project = "kerasbert"
author = "the authors of kerasbert"
copyright = "the authors of kerasbert, Apache-2.0"
version = release = kerasbert.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["generated"]
templates_path = ["_templates"]
# Notebooks are rendered as stored.
nb_execution_mode = "off"
nb_merge_streams = True
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["toc.empty_glob"]  # A language may have no lessons yet.
nitpicky = False
default_role = "py:obj"
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "pydata_sphinx_theme"
html_title = "kerasbert"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 9,
    "navbar_end": ["theme-switcher"],
    "show_nav_level": 1,
    "navigation_depth": 2,
    "collapse_navigation": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
_ALONE = ("index", "start", "presets", "figures", "how_it_works", "support", "search")
html_sidebars = {name: [] for name in _ALONE}

# Scripts that write without spaces between words, or that join particles to them.
_CJK = "\u3005\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"


class Search(SearchEnglish):
    """Index English by stems, and Korean, Japanese and Chinese by single letters and adjacent
    pairs.

    So a word is found inside others, such as the one before a particle, without a dictionary.
    """

    lang = "kerasbert"
    language_name = "English"  # The script has the stemmer of this name.
    js_splitter_code = f"""
function splitQuery(query) {{
  const found = [];
  for (const [word] of query.matchAll(/[{_CJK}]+|[^\\W_]+|[\\p{{L}}\\p{{N}}_]+/gu)) {{
    for (const part of word.match(/[{_CJK}]+|[^{_CJK}]+/gu)) {{
      if (!/[{_CJK}]/u.test(part) || part.length === 1) found.push(part);
      else for (let i = 0; i + 1 < part.length; i++) found.push(part.slice(i, i + 2));
    }}
  }}
  return found;
}}
"""

    def split(self, input):
        found = []
        for word in self._word_re.findall(input):
            for part in re.findall(f"[{_CJK}]+|[^{_CJK}]+", word):
                found.append(part)
                if re.match(f"[{_CJK}]", part):
                    found += part
                    found += [part[i : i + 2] for i in range(len(part) - 1)]
        return found


languages[Search.lang] = Search
html_search_language = Search.lang


def _skip_member(app, what, name, obj, skip, options):
    """Leave out members that Keras and KerasHub define, because those packages document them."""
    function = getattr(obj, "fget", None) or getattr(obj, "__func__", obj)
    module = getattr(function, "__module__", None) or ""
    return True if not module.startswith("kerasbert") else skip


def _find_by_last_name(app, env, node, contnode):
    """Link a name that a docstring gives without its module, if only one object has this name."""
    if node.get("refdomain") != "py":
        return None
    domain, target = env.domains["py"], node["reftarget"].lstrip(".")
    if not re.fullmatch(r"[\w.]+", target):
        return None
    found = [name for name in domain.objects if name.endswith(f".{target}")]
    whole = [name for name in found if not name.rpartition(f".{target}")[0].count(".") > 1]
    if len(whole) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", whole[0], node, contnode)


def _language(app, pagename, templatename, context, doctree):
    """Set the language in a page's HTML."""
    first = pagename.split("/")[0]
    context["language"] = first if first in ("ko", "ja") else "en"


def _read_docstring(app, what, name, obj, options, lines):
    """Mark text that is indented below a paragraph as code; join the lines of argument lists."""
    found, paragraph = [], ""
    for line in lines:
        if found and re.match(r"    [\w, ]+,$", found[-1]) and re.match(r" {8}[\w, ]+: ", line):
            found[-1] += " " + line.strip()
            continue
        is_block = line.startswith("    ") and found and not found[-1]
        if is_block and not re.fullmatch(r"[A-Z]\w+:", paragraph):
            found += [".. code-block:: python", ""]
            paragraph = "Code:"
        if line and not line.startswith(" "):
            paragraph = line
        found.append(re.sub(r"^( +[\w, ]+, )\*\*", r"\1\\*\\*", line))
    lines[:] = found


def _signature(app, what, name, obj, options, signature, returned):
    """Return the arguments of a class's constructor; Keras' `__new__` has `*args, **kwargs`."""
    if what == "class" and signature and signature.startswith("(*args"):
        constructor = inspect.signature(obj.__init__)
        plain = [one.replace(annotation=one.empty) for one in constructor.parameters.values()]
        arguments = [one for one in plain if one.name != "self"]
        return str(inspect.Signature(arguments)), returned
    return None


def _links(app, docname, source):
    """Change links to the benchmarks' notes, as a checkout has them, to their pages on the site.

    Notebooks get links to their file, to other languages and to the next lesson.
    """
    text = re.sub(r"\]\((?:\.\./)+benchmarks/notes/", "](/notes/", source[0])
    source[0] = pages.with_links(docname, text, app.config.repository)


def setup(app):
    # "owner/name" on GitHub, if the repository is public there: lessons then link to Colab.
    app.add_config_value("repository", "", "env", types=(str,))
    app.connect("source-read", _links)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _read_docstring, priority=400)  # Before napoleon.
    app.connect("config-inited", lambda *_: pages.write(HERE))
    app.connect("autodoc-skip-member", _skip_member)
    app.connect("missing-reference", _find_by_last_name)
    app.connect("html-page-context", _language)
