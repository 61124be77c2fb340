"""Pages that load nothing from elsewhere: such loads are found, and links that a reader may follow are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from from_code.offline import loaded_from_elsewhere


@pytest.mark.parametrize(
    ("name", "text", "is_loaded"),
    [
        ("page.html", '<script src="https://cdn.example/a.js"></script>', True),
        ("page.html", '<script defer src="_static/a.js"></script>', False),
        ("page.html", '<link rel="stylesheet" href="//fonts.example/css">', True),
        ("page.html", '<link rel="next" href="page.html">', False),
        ("page.html", '<img alt="x" src="http://example/x.png">', True),
        ("page.html", '<a href="https://example.org/">there</a>', False),
        ("style.css", '@import "https://example/x.css";', True),
        ("style.css", "@font-face { src: url(https://example/x.woff2) }", True),
        ("style.css", "a { background: url(data:image/png;base64,AA) }", False),
        ("picture.svg", '<svg xmlns="http://www.w3.org/2000/svg"></svg>', False),
        ("picture.svg", '@font-face { src: url("https://example/x.woff") }', True),
    ],
)
def test_what_is_loaded_by_the_network_is_found(name: str, text: str, is_loaded: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert bool(list(loaded_from_elsewhere(tmp_path))) == is_loaded
