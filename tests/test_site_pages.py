"""The site's pages: Python and bash blocks run, and commands in `sh` blocks have their options."""

import pytest

from kerasbert.checkpoints import hub
from tests.pages import ROOT, blocks, check_options, run

PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in (".", "guides", "ko", "ja")
    for path in (ROOT / "docs" / folder).glob("*.md")
)
# It needs several machines.
SHOWN = "docs/several_machines.md"


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_the_options_that_are_shown(page):
    check_options(page)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != SHOWN and blocks(page, "python", "bash")]
)
def test_blocks_run(page, tmp_path, monkeypatch):
    """Offline, with the packaged presets."""
    for name in ("_huggingface", "_kaggle"):
        monkeypatch.setattr(hub, name, None)
    run(tmp_path, monkeypatch, page, "python", "bash")
