from rampcli.runs.differences import differing_settings


def test_only_settings_that_differ_are_listed_as_they_are_typed():
    runs = [
        {"name": "a", "run_dir": None, "optim.lr": 1e-3, "data.split": [1.0, 2.0], "seed": 1},
        {
            "name": "b",
            "run_dir": "b",
            "optim.lr": 2e-3,
            "data.split": [1.0, 2.0],
            "model.bias": True,
        },
    ]
    assert differing_settings(runs) == {
        "optim.lr": ["0.001", "0.002"],
        "seed": ["1", "unset"],
        "model.bias": ["unset", "true"],
    }


def test_settings_of_phases_come_last_phase_by_phase():
    runs = [
        {"phases.a.until": "1M", "phases.b.until": "2M", "seed": 1},
        {"phases.a.optim.lr": 0.1, "phases.c.until": "3M", "phases.a.until": "2M", "seed": 2},
    ]
    assert differing_settings(runs) == {
        "seed": ["1", "2"],
        "phases.a.until": ["1M", "2M"],
        "phases.a.optim.lr": ["unset", "0.1"],
        "phases.b.until": ["2M", "unset"],
        "phases.c.until": ["unset", "3M"],
    }


def test_one_run_differs_from_nothing():
    assert differing_settings([{"seed": 1}]) == {}
