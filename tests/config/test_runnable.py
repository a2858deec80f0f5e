import pytest

from rampcli.config.runnable import check_runnable
from rampcli.config.schema import Config
from rampcli.config.values import put
from rampcli.errors import UsageError


def config_of(**values):
    config = Config()
    for key, value in values.items():
        put(config, key.replace("__", "."), value)
    return config


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"trainer__devices": 8},
        {"parallel__tensor_parallel_size": 2},
        {"parallel__pipeline_parallel_size": 2, "parallel__virtual_pipeline_parallel_size": 3},
        {"parallel__context_parallel_size": 2},
        {"parallel__data_parallel_shard_size": 2},
        {"data__expansion_factor_real_data": 1.0},
        {"data__expansion_factor_real_data": -1.0},
    ],
)
def test_what_the_engine_trains_passes(values):
    check_runnable(config_of(**values))


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_hosts_that_read_for_others_are_refused(factor):
    with pytest.raises(UsageError, match="every rank reads its own samples") as refused:
        check_runnable(config_of(data__expansion_factor_real_data=factor))
    assert refused.value.keys == ("data.expansion_factor_real_data",)
    assert refused.value.remedy == "data.expansion_factor_real_data=null"
