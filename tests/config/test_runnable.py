import pytest

from rampcli.config.runnable import check_runnable
from rampcli.config.schema import Config
from rampcli.config.values import put
from rampcli.errors import UsageError, UsageErrors


def config_of(**values):
    config = Config()
    for key, value in values.items():
        put(config, key.replace("__", "."), value)
    return config


@pytest.mark.parametrize(
    "values", [{}, {"trainer__devices": 8}, {"data__expansion_factor_real_data": 1.0}, {"data__expansion_factor_real_data": -1.0}]
)
def test_what_the_engine_trains_passes(values):
    check_runnable(config_of(**values))


@pytest.mark.parametrize("axis", ["tensor", "pipeline", "context"])
def test_a_model_that_is_split_is_refused_by_its_axis(axis):
    with pytest.raises(UsageError, match="the engine trains data-parallel only") as refused:
        check_runnable(config_of(**{f"parallel__{axis}_parallel_size": 2}))
    assert refused.value.keys == (f"parallel.{axis}_parallel_size",)
    assert refused.value.remedy == f"parallel.{axis}_parallel_size=1"


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_hosts_that_read_for_others_are_refused(factor):
    with pytest.raises(UsageError, match="every rank reads its own samples") as refused:
        check_runnable(config_of(data__expansion_factor_real_data=factor))
    assert refused.value.keys == ("data.expansion_factor_real_data",)


def test_all_that_cannot_be_trained_is_said():
    with pytest.raises(UsageErrors) as refused:
        check_runnable(config_of(parallel__tensor_parallel_size=2, parallel__context_parallel_size=4, data__expansion_factor_real_data=2.0))
    assert [error.keys for error in refused.value.errors] == [
        ("parallel.tensor_parallel_size", "parallel.context_parallel_size"),
        ("data.expansion_factor_real_data",),
    ]
