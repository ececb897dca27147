"""Estimates as text, data and charts."""

from __future__ import annotations

import json
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from dslaunch.deepspeed.architectures import Shape
from dslaunch.deepspeed.communication import Bandwidth
from dslaunch.deepspeed.estimate import EstimateInput, Limits, by_nodes, estimate, recommend
from dslaunch.deepspeed.memory import GB, Machines, Model
from dslaunch.deepspeed.model_size import Sized
from dslaunch.report import estimate as report
from dslaunch.report import estimate_svg

Golden = Callable[[str, str], None]
SHAPE = Shape(32, 4096, 32, 32, 128, 11008, 32000, gated=True, rms=True)
PLAIN = EstimateInput(
    Sized(Model(7 * 10**9, 65 * 10**6), "--params"),
    Machines(2, 8),
    limits=Limits(80 * GB, 1000 * GB),
    bandwidth=Bandwidth(12.5e9, 450e9),
)
SHAPED = EstimateInput(
    Sized(Model(6_738_415_616, 131_072_000), "config.json", SHAPE),
    Machines(1, 8),
    limits=Limits(24 * GB, 512 * GB, 4000 * GB),
    accumulation=4,
)


def texts(question: EstimateInput, width: int | None) -> str:
    rows = estimate(question)
    return report.text(question, rows, recommend(question, rows), width)


@pytest.mark.parametrize(("family", "said"), [("bloom", True), ("llama", False), ("", False)])
def test_activations_that_were_never_compared_are_called_approximate(
    family: str, *, said: bool
) -> None:
    shape = Shape(2, 64, 4, 4, 16, 256, 512)
    asked = EstimateInput(Sized(Model(10**6, 10**5), "", shape, family), Machines(1, 1))
    assert any("approximate" in note for note in report.notes(asked, estimate(asked))) is said


def test_a_model_of_which_only_the_text_is_counted_is_said_to_be_more() -> None:
    sized = Sized(Model(10**6, 10**5), "", partial=True)
    asked = EstimateInput(sized, Machines(1, 1))
    assert any("--meta" in note for note in report.notes(asked, estimate(asked)))


def test_the_tables_for_eighty_columns(golden: Golden) -> None:
    golden("estimate/plain-80.txt", texts(PLAIN, 80))


def test_the_tables_for_a_wide_terminal_and_a_known_shape(golden: Golden) -> None:
    golden("estimate/shaped-120.txt", texts(SHAPED, 120))


@pytest.mark.parametrize("question", [PLAIN, SHAPED], ids=["plain", "shaped"])
@pytest.mark.parametrize("width", [80, 110, 150])
def test_no_line_is_longer_than_the_terminal(question: EstimateInput, width: int) -> None:
    assert max(map(len, texts(question, width).splitlines())) <= width


def test_the_tables_for_several_numbers_of_nodes(golden: Golden) -> None:
    grid = report.grid_text(by_nodes(SHAPED, (1, 2, 4, 16)))
    golden("estimate/by-nodes.txt", grid)
    assert max(map(len, grid.splitlines())) <= 80


def test_the_data_are_plain_json_with_every_way_to_train() -> None:
    rows = estimate(SHAPED)
    data = report.as_data(SHAPED, rows, recommend(SHAPED, rows))
    assert json.loads(json.dumps(data)) == data
    assert len(data["strategies"]) == len(rows)
    first = data["strategies"][0]
    assert first["deepspeed"] is None
    assert first["zero_init"] is None
    assert first["states"]["gpu"] == 20 * SHAPED.sized.model.params


@pytest.mark.parametrize("question", [PLAIN, SHAPED], ids=["plain", "shaped"])
def test_the_chart_is_well_formed_and_says_in_words_what_it_draws(question: EstimateInput) -> None:
    rows = estimate(question)
    advice = recommend(question, rows)
    root = ElementTree.fromstring(estimate_svg.chart(question, rows, advice))
    words = " ".join(root.itertext())
    for row in rows:
        assert words.count(estimate_svg.name(row)) >= 2
    assert words.count(report.recommendation_text(question, advice)) == 2
    boxes = [e for e in root.iter() if e.get("class") in ("p0", "p1", "p2")]
    assert all(float(box.get("width", "-1")) > 0 for box in boxes)


def test_the_page_holds_chart_and_tables_and_loads_nothing() -> None:
    rows = estimate(PLAIN)
    page = estimate_svg.page(PLAIN, rows, recommend(PLAIN, rows))
    assert "<svg" in page
    assert "all-reduce, all-gather" in page
    assert "src=" not in page
    assert "href=" not in page
