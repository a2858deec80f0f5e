from rampcli.runs.events import MOST_MARKS, MOST_TEXTS, RunEvents, thin


def events(*rows):
    found = RunEvents()
    found.add({"time": 100.0 + index, **row} for index, row in enumerate(rows))
    return found


def start(step):
    return {"event": "start", "step": step, "consumed_samples": 4 * step}


def stage(number, step):
    return {"event": "stage", "stage": number, "step": step, "consumed_samples": 4 * step}


def stop(status, step):
    return {"event": "stop", "step": step, "status": status, "save_s": 0.1}


def validation(step, loss, **facts):
    return {
        "event": "validation",
        "step": step,
        "consumed_samples": 4 * step,
        "loss": loss,
        **facts,
    }


def steps(found, kind):
    return [mark["step"] for mark in found.marks.get(kind, [])]


def test_a_boundary_is_no_restart():
    found = events(start(0), stage(0, 0), stop("stage_boundary", 5), start(5), stage(1, 5))
    assert steps(found, "stage") == [5]
    assert steps(found, "restart") == []
    assert steps(found, "start") == [0, 5]


def test_a_start_after_a_fault_is_a_restart_with_its_reason():
    fault = {"event": "fault", "reason": "rank 1 was killed\x1b[31m"}
    found = events(start(0), stage(0, 0), fault, start(3), stage(0, 3))
    assert steps(found, "restart") == [3]
    assert found.marks["restart"][0]["text"] == r"rank 1 was killed\x1b[31m"
    assert steps(found, "stage") == []
    assert [line["kind"] for line in found.log] == ["fault", "restart"]


def test_a_start_after_a_kill_or_an_interruption_is_a_restart():
    assert steps(events(start(0), start(2)), "restart") == [2]
    assert steps(events(start(0), stop("preempted", 2), start(2)), "restart") == [2]


def test_a_repeated_validation_replaces_the_earlier_one_and_those_after_it():
    found = events(validation(0, 5.0), validation(4, 4.0), validation(8, 3.0), validation(4, 4.5))
    assert [(one["step"], one["loss"]) for one in found.validations[None]] == [
        (0, 5.0),
        (4, 4.5),
    ]


def test_each_corpus_has_its_own_curves():
    found = events(
        validation(0, 5.0, corpus="wiki", bits_per_byte=2.5), validation(0, 6.0, corpus="code")
    )
    points = found.validations["wiki"]
    assert [(point["loss"], point["bits_per_byte"]) for point in points] == [(5.0, 2.5)]
    assert [point["loss"] for point in found.validations["code"]] == [6.0]


def test_only_an_even_choice_of_very_many_marks_is_shown():
    points = [{"step": step} for step in range(10 * MOST_MARKS + 1)]
    shown = thin(points)
    assert MOST_MARKS // 2 < len(shown) <= MOST_MARKS
    assert shown[-1] is points[-1]
    assert thin(points[:MOST_MARKS]) == points[:MOST_MARKS]


def test_of_very_many_events_the_newest_are_kept(monkeypatch):
    monkeypatch.setattr("rampcli.runs.events.MOST_EVENTS", 3)
    rows = [{"event": "fault", "reason": f"fault {number}"} for number in range(5)]
    rows += [validation(step, 5.0 - step) for step in range(5)]
    rows += [{"event": "boundary", "lost_s": float(number)} for number in range(5)]
    found = events(*rows)
    assert found.warnings == ["fault 2", "fault 3", "fault 4"]
    assert [mark["text"] for mark in found.marks["fault"]] == found.warnings
    assert [point["step"] for point in found.validations[None]] == [2, 3, 4]
    assert found.median_s("boundary", "lost_s") == 3.0
    assert found.counts == {"fault": 5, "validation": 5, "boundary": 5}


def test_the_newest_texts_that_the_model_wrote_come_first():
    def samples(step):
        texts = [{"prompt": "def ", "text": f"f{step}():\x1b"}]
        return {"event": "samples", "step": step, "consumed_samples": 4 * step, "texts": texts}

    found = events(*(samples(step) for step in range(1, 20)))
    assert [text["step"] for text in found.texts[:2]] == [19, 18]
    assert found.texts[0]["text"] == r"f19():\x1b"
    assert len(found.texts) <= MOST_TEXTS
