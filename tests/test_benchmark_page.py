"""Result files of the benchmarks, and README's tables, which are rendered from them."""

from types import SimpleNamespace

import page
import peers
import pytest

pytestmark = pytest.mark.backends("tensorflow")


def test_the_page_is_what_the_results_render_to():
    """`python benchmarks/page.py` renders it again."""
    assert (page.HERE / "README.md").read_text(encoding="utf-8") == page.page()


def test_every_result_is_on_the_page():
    names = [name for section in (page.SPEEDS | page.SCORES).values() for name in section]
    assert sorted(names) == sorted(path.stem for path in (page.HERE / "results").glob("*.json"))
    assert set(peers.areas(2)) <= set(names)


def test_every_note_is_linked():
    text = (page.HERE / "README.md").read_text(encoding="utf-8")
    for path in (page.HERE / "notes").glob("*.md"):
        assert f"(notes/{path.name}" in text, path.name


def child(spec, rate, memory=100.4):
    return SimpleNamespace(
        spec=spec,
        ready={},
        rounds=[{"texts": 1000, "others": 0.03}],
        median=lambda: 1000 / rate,
        memory_mb=memory,
    )


def figures(one):
    return {"embedding, float32": (one.rounds[0]["texts"] / one.median(), "texts/s")}


def test_rows_of_races_become_a_table(tmp_path, monkeypatch):
    first = [child("kerasbert/jax/float32", 90), child("transformers/torch/float32", 99.96)]
    second = [
        child("kerasbert/tensorflow/float32", 250, 300),
        child("kerasbert/tensorflow/float32/xla", 50),
        child("transformers/torch/float32", 200),
        child("keras_hub/jax/float32", 20),
    ]
    rows = peers.merged([peers.measured(race, figures) for race in (first, second)])
    assert len(rows) == 1 and rows[0]["memory_mb"]["kerasbert/tensorflow"] == 300
    times = {"kerasbert/jax": 0.9, "kerasbert/tensorflow": 1.25, "kerasbert/tensorflow/xla": 0.25}
    assert rows[0]["times_peer"] == times
    printed = peers.compare(rows)
    assert [row[1] for row in printed] == ["jax", "tensorflow", "tensorflow/xla"]
    assert printed[0][3:] == (
        *("100.0, 200 (transformers/torch)", "texts/s", "100 / 100", "[red]0.90[/red]"),
    )

    (tmp_path / "results").mkdir()
    monkeypatch.setattr(page, "HERE", tmp_path)
    facts = {"title": "Embedding", "about": "", "command": "python x.py", "date": "2026-11-29"}
    result = facts | {"machine": "a CPU", "versions": None, "note": "quiet", "rows": rows}
    page.save("embedding", result)
    assert page.read("embedding") == result
    monkeypatch.setattr(page, "SPEEDS", {"Inference": ("embedding",)})
    monkeypatch.setattr(page, "SCORES", {})
    (tmp_path / "README.md").write_text(f"# A\n\n{page.BEGIN}\nold\n{page.END}\n\nB\n")
    page.main()
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# A\n") and text.endswith("\nB\n") and "old" not in text
    assert (
        "| embedding, float32 | texts/s | 100.0, 200 transformers/torch | 250 (1.25) |"
        " 90.0 (**0.90**) | - | tensorflow/xla 50.0 (**0.25**) |"
    ) in text
    assert "`python x.py`; a CPU; versions not recorded; quiet." in text


def test_peers_save_what_they_measured(tmp_path, monkeypatch):
    known = page.read("embedding")
    (tmp_path / "results").mkdir()
    (tmp_path / "README.md").write_text(f"{page.BEGIN}\n{page.END}\n")
    monkeypatch.setattr(page, "HERE", tmp_path)
    page.save("embedding", known)
    monkeypatch.setattr(page, "SPEEDS", {"Inference": ("embedding",)})
    monkeypatch.setattr(page, "SCORES", {})
    area = peers.Area([["kerasbert/jax/float32", "transformers/torch/float32"]], {}, figures)
    monkeypatch.setattr(peers, "areas", lambda threads: {"embedding": area})
    monkeypatch.setattr(peers, "race", lambda script, specs, *_: [child(one, 80) for one in specs])
    monkeypatch.setattr("sys.argv", ["peers.py", "--rounds", "1", "--save"])
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    peers.main(rounds=1, threads=1, wait=0, save=True)
    found = page.read("embedding")
    assert found["title"] == known["title"] and found["about"] == known["about"]
    assert found["command"] == "python benchmarks/peers.py --rounds 1 --save"
    assert "1 threads used" in found["machine"] and "keras " in found["versions"]
    assert found["note"] == "other processes took at most 3% of the machine"
    assert found["rows"][0]["values"] == {"kerasbert/jax": 80.0, "transformers/torch": 80.0}
    assert "| 80.0 transformers/torch | - | 80.0 (1.00) |" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("unit, peer, times", [("ms", "a", 2.0), ("texts/s", "b", 0.25)])
def test_ratio_to_the_best_peer(unit, peer, times):
    row = {"work": "x", "unit": unit, "values": {"a": 2, "b": 4, "kerasbert": 1}}
    assert page.best_peer(row) == peer and page.ratio(row, "kerasbert") == times
    assert page.ratio(row | {"values": {"kerasbert": 1}}, "kerasbert") is None
