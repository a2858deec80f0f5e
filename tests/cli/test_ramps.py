import shlex

import pytest

from rampcli.planning.published_ramps import published_ramps

FACTS = {
    "name",
    "model",
    "sequence_length",
    "optimizer",
    "rate",
    "source",
    "certainty",
    "unpublished",
    "stages",
    "words",
    "model_is_stand_in",
}


def test_the_list_has_every_ramp_and_fits_into_80_columns(succeed):
    printed = succeed("ramps").splitlines()
    assert {line.split()[0] for line in printed if line} > set(published_ramps())
    assert max(map(len, printed)) <= 80


def test_json_has_the_documented_facts_of_every_ramp(json_of):
    listed = json_of("ramps")
    assert [one["name"] for one in listed] == list(published_ramps())
    for one in listed:
        assert set(one) == FACTS
        assert one["model_is_stand_in"] == (
            None if one["words"] is None else "--factory llama3_tiny" in one["words"]
        )
        assert (one["words"] is None) == (one["stages"] == []) == (one["unpublished"] is not None)
    assert json_of("ramps", "palm_540b") in listed


def test_the_printed_command_plans_the_ramp(succeed, json_of):
    printed = succeed("ramps", "palm_540b", "--sequence-length", "4096", "--nodes", "2")
    command = printed[printed.index("rampcli plan") :].replace("\\\n", " ")
    plan = json_of(*shlex.split(command)[1:])
    assert [stage["steps"] for stage in plan["stages"]] == [50_000, 65_000, 140_000]
    assert plan["sequence_length"] == 4096
    assert plan["stages"][0]["num_nodes"] == 2


@pytest.mark.parametrize("options", [(), ("--json",), ("--sequence-length", "64")])
def test_a_ramp_without_published_steps_is_shown_and_says_that_it_plans_nothing(rampcli, options):
    ended = rampcli("ramps", "falcon_7b", *options)
    assert ended.exit_code == 3
    assert "Falcon 7B" in ended.stdout
    assert "rampcli plan" not in ended.stdout
    message = "falcon_7b cannot be planned: the steps of its ramp are not published"
    assert message in ended.stderr
    remedy = '"remedy": "rampcli ramps"' if "--json" in options else "try:    rampcli ramps\n"
    assert remedy in ended.stderr


def test_a_ramp_is_drawn_to_a_file(succeed, tmp_path):
    path = tmp_path / "ramp.svg"
    assert succeed("ramps", "minimax_01", "--plot", str(path)).endswith(f"wrote {path}\n")
    assert "MiniMax-Text-01" in path.read_text()


def test_a_ramp_without_published_steps_says_that_it_is_not_drawn(rampcli, tmp_path):
    path = tmp_path / "ramp.svg"
    ended = rampcli("ramps", "falcon_7b", "--plot", str(path))
    assert ended.exit_code == 3
    assert f"falcon_7b cannot be planned, nor drawn to {path}: " in ended.stderr
    assert not path.exists()
