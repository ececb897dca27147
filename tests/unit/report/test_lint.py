from __future__ import annotations

import json

from dslaunch.lint import Edit, Remark
from dslaunch.report.lint import as_github, as_json, as_sarif, as_text, summary

ERROR = Remark(
    "unknown-key", "error", "a b/ds.json", 3, 5, "fp16.x", "unknown key: 100%\nstops",
    "did you mean y?", "pydantic", (Edit(1, 2, "y"),),
)  # fmt: skip
WHOLE = Remark("batch-missing", "warning", "ds.json", 0, 0, "", "no batch size")
NOTE = Remark("hjson", "info", "ds.json", 1, 2, "", "a comment")


def test_text_folds_nothing_away() -> None:
    assert as_text([ERROR, WHOLE, NOTE]) == (
        "a b/ds.json:3:5: error: fp16.x: unknown key: 100%\\nstops [unknown-key]\n"
        "    fix: did you mean y?\n"
        "    source: pydantic\n"
        "ds.json: warning: no batch size [batch-missing]\n"
        "ds.json:1:2: info: a comment [hjson]\n"
        "1 error, 1 warning, 1 note\n"
    )


def test_the_summary_counts_and_says_so_where_there_is_nothing() -> None:
    assert summary([]) == "no findings"
    assert summary([ERROR, ERROR, NOTE]) == "2 errors, 1 note"


def test_json_has_every_field() -> None:
    (first, _) = json.loads(as_json([ERROR, WHOLE]))
    assert first["rule"] == "unknown-key"
    assert first["edits"] == [{"start": 1, "end": 2, "text": "y"}]
    assert set(first) == set(Remark.__struct_fields__)


def test_a_rule_in_sarif_links_to_its_section_where_the_documentation_is_known() -> None:
    log = json.loads(as_sarif([ERROR], "1.0", "https://docs.example/rules.html#RULE"))
    (rule,) = log["runs"][0]["tool"]["driver"]["rules"]
    assert rule["helpUri"] == f"https://docs.example/rules.html#{ERROR.rule}"


def test_sarif_has_the_rules_and_a_result_for_each_remark() -> None:
    log = json.loads(as_sarif([ERROR, WHOLE], "1.0"))
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [
        "batch-missing",
        "unknown-key",
    ]
    first, second = run["results"]
    assert (first["ruleIndex"], first["level"], second["level"]) == (1, "error", "warning")
    place = first["locations"][0]["physicalLocation"]
    assert place["region"] == {"startLine": 3, "startColumn": 5}
    assert place["artifactLocation"]["uri"] == "a%20b/ds.json"
    assert "region" not in second["locations"][0]["physicalLocation"]


def test_github_annotations_are_escaped() -> None:
    assert as_github([ERROR, WHOLE, NOTE]).splitlines() == [
        "::error file=a b/ds.json,line=3,col=5,title=unknown-key::fp16.x: unknown key: 100%25%0A"
        "stops%0Afix: did you mean y?%0Asource: pydantic",
        "::warning file=ds.json,title=batch-missing::no batch size",
        "::notice file=ds.json,line=1,col=2,title=hjson::a comment",
    ]


def test_text_says_how_many_were_ignored() -> None:
    assert as_text([], ignored=2) == "no findings (2 ignored)\n"
