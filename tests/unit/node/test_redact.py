"""Tests of masking: no form of a secret passes, in whatever pieces it comes, and all else does."""

from __future__ import annotations

import base64
import html
import json
import shlex
import urllib.parse
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.growth import Work, grows

from dslaunch.node.redact import Secrets

TEXT = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=6, max_size=40
)
NASTY = st.sampled_from(
    [
        "s3cr3t-value",
        "p@ss w0rd/+&<%>?=",
        'it\'s "quoted" \\ twice',
        "tab\tand\nnewline\r",
        "pässwörd-☃-𝕏",
        "bell\x07 escape\x1b[31m delete\x7f",
        "$HOME `id` $(id) !x",
        "aaaaaaaaaaaa",
        "abababababab",
        "***-in-it-***",
    ]
)
SECRET = TEXT | NASTY


def percent_encoded(text: str) -> str:
    """Everything but letters, digits and `_.-~`, in lower case, as some libraries do."""
    return "".join(
        chr(byte) if (chr(byte).isalnum() and byte < 128) or byte in b"_.-~" else f"%{byte:02x}"
        for byte in text.encode()
    )


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "repr": lambda s: repr(s)[1:-1],
    "repr in text with both quotes": lambda s: repr(f"'\"{s}")[4:-1],
    "ascii": lambda s: ascii(s)[1:-1],
    "bytes": lambda s: repr(s.encode())[2:-1],
    "json": lambda s: json.dumps(s)[1:-1],
    "json in utf-8": lambda s: json.dumps(s, ensure_ascii=False)[1:-1],
    "json of slashes": lambda s: json.dumps(s)[1:-1].replace("/", "\\/"),
    "json of json": lambda s: json.dumps(json.dumps(s)[1:-1])[1:-1],
    "json of repr": lambda s: json.dumps(repr(s)[1:-1])[1:-1],
    "repr of json": lambda s: repr(json.dumps(s)[1:-1])[1:-1],
    "quote": urllib.parse.quote,
    "quote all": lambda s: urllib.parse.quote(s, safe=""),
    "quote_plus": urllib.parse.quote_plus,
    "percent": percent_encoded,
    "html": html.escape,
    "html of text": lambda s: html.escape(s, quote=False),
    "shell": lambda s: shlex.quote(f"{s} ")[1:-2],
    "hex": lambda s: s.encode().hex(),
    "HEX": lambda s: s.encode().hex().upper(),
}
BASE64 = {"base64": base64.b64encode, "base64 for URLs": base64.urlsafe_b64encode}


@pytest.mark.parametrize("form", FORMS)
@given(secret=SECRET)
def test_no_form_of_a_secret_passes(form: str, secret: str) -> None:
    spelled = FORMS[form](secret)
    assert Secrets([secret]).text(f"before <{spelled}> after") == "before <***> after"


@pytest.mark.parametrize("encode", BASE64.values(), ids=list(BASE64))
@given(secret=SECRET, before=st.binary(max_size=7), after=st.binary(max_size=7))
def test_no_base64_of_text_around_a_secret_gives_it_away(
    encode: Callable[[bytes], bytes], secret: str, before: bytes, after: bytes
) -> None:
    data = before + secret.encode() + after
    masked = Secrets([secret]).text(encode(data).decode())
    left = masked.partition("***")
    # at most the characters that hold a neighbor's bits too are left, one at each end
    assert "***" in masked
    whole = len(before) * 8 // 6 + 1, (len(after) * 8 + 5) // 6 + 3
    assert len(left[0]) <= whole[0]
    assert len(left[2].replace("***", "")) <= whole[1]


def test_base64_that_is_wrapped_into_lines_is_masked() -> None:
    secret = "".join(f"{n:04}-key-" for n in range(40))
    masked = Secrets([secret]).text(base64.encodebytes(secret.encode()).decode())
    assert set(masked) <= set("*\n")


def test_each_line_of_a_secret_is_masked_in_all_forms() -> None:
    lines = ["-----BEGIN KEY-----", "MIIEvQIBADANBg/kqhkiG9w0", '  indented "é" line', "short"]
    redact = Secrets(["\n".join(lines)]).text
    assert redact(f"read {lines[1]}!") == "read ***!"
    assert redact(json.dumps(lines[2].strip())) == '"***"'
    assert redact(base64.b64encode(lines[1].encode()).decode()) == "***"
    assert redact("in short") == "in short"


def test_a_secret_is_masked_without_the_space_around_it() -> None:
    assert Secrets(["  token-value\n"]).text("a token-value b") == "a *** b"


def test_a_short_secret_is_masked_as_it_is_alone() -> None:
    redact = Secrets(["a&b"]).text
    assert redact("a&b") == "***"
    assert redact("a%26b a&amp;b YSZi") == "a%26b a&amp;b YSZi"


def test_an_empty_secret_masks_nothing() -> None:
    assert Secrets(["", ""]).text("nothing") == "nothing"
    assert not Secrets([""])


def naive(forms: list[bytes], data: bytes) -> bytes:
    """What one who has all at once, and time, would make of it."""
    out, covered, at = [], 0, 0
    for at in range(len(data)):
        length = max((len(f) for f in forms if data.startswith(f, at)), default=0)
        if length and at >= covered:
            out.append(b"***")
        covered = max(covered, at + length)
        if at >= covered:
            out.append(data[at : at + 1])
    return b"".join(out)


@given(
    secrets=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    text=st.text("abc", max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
@example(secrets=["abcab", "cabba"], text="abcabba", cuts=[3])
@example(secrets=["ab", "abbbb"], text="abbba", cuts=[2, 3])
@example(secrets=["a", "baa"], text="baa", cuts=[2])
def test_however_output_is_cut_it_is_masked_as_a_whole(
    secrets: list[str], text: str, cuts: list[int]
) -> None:
    data = text.encode()
    stream = Secrets(secrets).stream()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [stream.feed(data[a:b]) for a, b in pairwise(places)]
    assert b"".join([*pieces, stream.rest()]) == naive([s.encode() for s in secrets], data)


@given(secret=SECRET, form=st.sampled_from(sorted(FORMS)), data=st.data())
def test_a_form_that_comes_in_two_writes_is_masked(
    secret: str, form: str, data: st.DataObject
) -> None:
    spelled = FORMS[form](secret).encode()
    cut = data.draw(st.integers(0, len(spelled)))
    stream = Secrets([secret]).stream()
    came = stream.feed(b"<" + spelled[:cut]) + stream.feed(spelled[cut:] + b">") + stream.rest()
    assert came == b"<***>"


@given(secret=SECRET, text=st.binary(max_size=200))
def test_what_holds_no_secret_passes_unchanged(secret: str, text: bytes) -> None:
    stream = Secrets([secret + "0123456789"]).stream()
    assume(b"***" not in stream.feed(text) + stream.rest())
    assert stream.feed(text) + stream.rest() == text


def test_a_line_is_not_held_back_when_its_end_is_no_beginning_of_a_secret() -> None:
    stream = Secrets(["token-1234"]).stream()
    assert stream.feed(b"loss 0.5\n") == b"loss 0.5\n"
    assert stream.feed(b"your tok") == b"your "
    assert stream.feed(b"en?\n") == b"token?\n"


def test_every_text_of_a_message_is_masked_and_fields_of_ours_are_not() -> None:
    said = {
        "event": "exit",
        "rank": 0,
        "evidence": {"error_file": 'exit "exit"', "deep": [{"exit": ["exit", 1, None]}]},
        "/home/exit": "x",
    }
    assert Secrets(["exit"]).values(said) == {
        "event": "exit",
        "rank": 0,
        "evidence": {"error_file": '*** "***"', "deep": [{"exit": ["***", 1, None]}]},
        "/home/***": "x",
    }


def test_a_text_with_bytes_that_are_not_utf_8_is_masked_and_kept() -> None:
    assert Secrets(["s3cr3t-value"]).text("\udcff s3cr3t-value") == "\udcff ***"


@pytest.mark.parametrize(
    "piece", [b"training step 12 loss 0.5\n" * 200, b"a" * 5000, b"-----" * 1000]
)
def test_fifty_secrets_cost_time_in_proportion_to_the_output(piece: bytes) -> None:
    values = [f"tok{n}-{n * 7919:x}-{'xyz' * 8}" for n in range(48)]
    secrets = Secrets([*values, "a" * 200 + "b", "\n".join(["-----BEGIN KEY-----"] * 30)])

    def masked(pieces: int) -> Work:
        stream = secrets.stream()
        return lambda: [stream.feed(piece) for _ in range(pieces)]

    assert not grows(masked, 1)


def test_a_secret_that_another_process_completes_is_never_whole() -> None:
    stream = Secrets(["hunter2-secret"]).stream()
    written = stream.feed(b"a hunter2-") + stream.rest()
    written += stream.feed(b"secret b\n") + stream.rest()
    assert written == b"a hunter2- b\n"
