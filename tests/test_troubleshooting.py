"""The troubleshooting page quotes messages as they are; `tests/cases` checks what it covers."""

from __future__ import annotations

from .troubleshooting_page import covered, pieces, quoted, wordings

#: Names of classes and shown summary lines, which no error message holds.
NAMES = {"MissingCapturedKV", "IncompletePass", "UnsupportedCaptureMode", "BlockOrderError"}


def test_the_quotations_are_the_wording_of_today() -> None:
    assert len(quoted()) > 150
    text = wordings()
    wrong = [
        (quote, piece)
        for quote in quoted()
        if quote not in NAMES
        for piece in pieces(quote)
        if piece not in text
    ]
    assert not wrong


def test_the_capture_errors_have_their_rows() -> None:
    assert set(quoted()) >= NAMES


def test_a_message_is_found_by_its_words() -> None:
    assert covered("x.pt: refused, it holds more than tensors (argparse.Namespace)")
    assert not covered("x.pt: something that no row knows")
