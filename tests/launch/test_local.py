from rampcli.launch.local import Tail


def test_a_tail_gives_each_new_row_once_and_waits_for_the_end_of_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"old": 1}\n')
    tail = Tail(path)
    assert list(tail.rows()) == []
    with path.open("a") as file:
        file.write('{"a": 1}\n{"b"')
    assert list(tail.rows()) == [{"a": 1}]
    with path.open("a") as file:
        file.write(": 2}\n")
    assert list(tail.rows()) == [{"b": 2}]
    assert list(tail.rows()) == []


def test_a_tail_follows_a_file_that_was_cut_back(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    tail = Tail(path)
    path.write_text('{"step": 1}\n')
    assert list(tail.rows()) == []
    with path.open("a") as file:
        file.write('{"step": 2}\n')
    assert list(tail.rows()) == [{"step": 2}]


def test_a_file_that_does_not_exist_yet_has_no_rows(tmp_path):
    tail = Tail(tmp_path / "rows.jsonl")
    assert list(tail.rows()) == []
    (tmp_path / "rows.jsonl").write_text('{"step": 1}\n')
    assert list(tail.rows()) == [{"step": 1}]
