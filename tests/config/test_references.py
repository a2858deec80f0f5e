import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rampcli.config.references import (
    ARITHMETIC,
    LONGEST_RESOLVED,
    OMEGACONF,
    Unresolved,
    has_reference,
    resolved,
)


def only_error(values, key="a.x"):
    found = resolved(values)[0][key]
    assert isinstance(found, Unresolved)
    return found.error


@given(st.sampled_from(sorted(ARITHMETIC)), st.integers(-(10**9), 10**9), st.integers(1, 10**6))
def test_arithmetic_is_that_of_python(name, one, two):
    exact = {
        "add": one + two,
        "subtract": one - two,
        "multiply": one * two,
        "divide": one / two,
        "divide_floor": one // two,
        "divide_ceil": -(-one // two),
    }
    found, named = resolved({"a.x": f"${{{name}:${{.y}},${{b}}}}", "a.y": one, "b": two})
    assert found == {"a.x": exact[name]}
    assert named == {"a.y", "b"}


def test_a_reference_names_a_default_or_another_spelling_of_a_setting():
    values = {"a.x": "${seed}", "a.y": "${model.micro_batch_size}", "data.micro_batch_size": 3}
    assert resolved(values)[0] == {"a.x": 1234, "a.y": 3}


def test_a_selected_key_that_nobody_sets_has_the_default_of_the_reference():
    assert resolved({"a.x": "${oc.select:seed,5}"})[0] == {"a.x": 5}
    assert resolved({"a.x": "${oc.select:seed,5}", "seed": 6})[0] == {"a.x": 6}


def test_a_reference_to_a_section_gives_its_keys_and_a_value_beside_it_stays():
    values = {"a": "${b}", "a.x": 1, "b.x": 2, "b.y": "${b.x}"}
    assert resolved(values)[0] == {"a.y": 2, "b.y": 2}


@pytest.mark.parametrize("name", ["HF_TOKEN", "api_key", "DB_PASSWORD", "client_secret"])
@pytest.mark.parametrize(
    "text",
    [
        "${{oc.env:{}}}",
        "${{oc.env:{},x}}",
        "${{oc.env:${{a.name}}}}",
        "${{oc.decode:${{a.text}}}}",
        "x ${{oc.env:{}}} y",
    ],
)
def test_no_reference_tells_a_secret(name, text, monkeypatch):
    monkeypatch.setenv(name, "treasure")
    values = {"a.x": text.format(name), "a.name": name, "a.text": rf"\${{oc.env:{name}}}"}
    found = resolved(values)[0]["a.x"]
    assert "treasure" not in str(found)
    assert "treasure" not in str(getattr(found, "error", ""))


def test_the_environment_is_read_and_its_absence_named(monkeypatch):
    monkeypatch.setenv("RATE", "0.5")
    assert resolved({"a.x": "${oc.decode:${oc.env:RATE}}"})[0] == {"a.x": 0.5}
    monkeypatch.delenv("RATE")
    assert resolved({"a.x": "${oc.env:RATE,2}"})[0] == {"a.x": 2}
    assert "RATE, which is not in the environment" in only_error({"a.x": "${oc.env:RATE}"}).message


@pytest.mark.parametrize("name", ["eval", "now", "hydra", "oc.create", "python", "sum"])
def test_other_resolvers_are_refused_even_if_the_process_has_them(name):
    assert f"no resolver {name}" in only_error({"a.x": f"${{{name}:1}}"}).message


def test_the_resolvers_of_the_process_are_as_before():
    names = [name for name in (*OMEGACONF, *ARITHMETIC) if OmegaConf.has_resolver(name)]
    resolved({"a.x": "${multiply:2,3}"})
    assert [n for n in (*OMEGACONF, *ARITHMETIC) if OmegaConf.has_resolver(n)] == names


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"a.x": "${a.x}"}, "refers to itself"),
        ({"a.x": "${a.y}", "a.y": "${a.x}"}, "refers to itself"),
        ({"a.x": "${a.y}", "a.y": "???"}, "names a value that is ???"),
        ({"a.x": "${none}"}, "names none, which is not set"),
        ({"a.x": "${a.y"}, "cannot be read"),
        ({"a.x": "${multiply:${a.y},99999999}", "a.y": "text"}, "is not a number"),
        ({"a.x": "${divide:1,0}"}, "cannot be computed"),
    ],
)
def test_what_is_wrong_with_a_reference_is_said(values, part):
    assert part in only_error(values).message


@pytest.mark.parametrize("width", [1, 10])
def test_references_in_references_do_not_fill_the_memory(width):
    levels = {f"v{n}": f"${{v{n - 1}}}" * width for n in range(1, 60)}
    found = resolved({"v0": "aaaaaaaaaa", **levels})[0]
    texts = [value for value in found.values() if isinstance(value, str)]
    assert max(map(len, texts)) <= LONGEST_RESOLVED
    assert "too long" in found["v59"].error.message


@given(st.text(), st.lists(st.text()), st.dictionaries(st.text(), st.text()))
def test_values_without_references_are_plain(text, items, mapping):
    for value in (text, items, mapping):
        assert has_reference(value) == ("${" in str(value))
