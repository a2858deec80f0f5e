import base64
import hashlib
import re

import pytest

from rampcli.errors import UsageError
from rampcli.report.page_files import write_report_html
from rampcli.runs.directory import RunDirectory
from recorded_runs import write_run
from report.written_page import data_of

HOSTILE = "</script><script>alert(1)</script><!--\u2028"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    hostile = write_run(folder / "hostile")
    hostile.append_event("fault", reason=HOSTILE)
    return [write_run(folder / "one"), hostile]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report_html(runs, path)
    return path.read_text(encoding="utf-8")


def test_a_report_holds_the_data_of_its_runs(page):
    assert [run["name"] for run in data_of(page)["runs"]] == ["one", "hostile"]
    assert all(run["rows"] == 40 for run in data_of(page)["runs"])


def test_a_report_asks_nobody_for_anything(page):
    assert not re.search(r"(src|href)=[\"'](?!data:|#)", page)
    assert "default-src &#x27;none&#x27;" in page


def test_only_the_scripts_of_the_page_may_run(page):
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts}
    assert set(re.findall(r"sha256-([^&]+)", policy.split("style-src")[0])) == hashes
    assert "unsafe" not in policy


def test_texts_of_a_run_stay_texts(page):
    assert HOSTILE not in page
    reasons = [line["text"] for run in data_of(page)["runs"] for line in run["log"]]
    assert any(reason.startswith("</script><script>alert(1)") for reason in reasons)


def test_a_damaged_run_is_shown_with_its_error(tmp_path):
    run = write_run(tmp_path / "mine")
    (run.path / "state.json").write_text("[")
    write_report_html([run], tmp_path / "report.html")
    (data,) = data_of((tmp_path / "report.html").read_text())["runs"]
    assert "state.json" in data["damage"]


def test_a_folder_whose_name_is_not_unicode_has_a_report(tmp_path):
    run = write_run(tmp_path / "mine")
    run.path.rename(tmp_path / "\udcff")
    write_report_html([RunDirectory(tmp_path / "\udcff")], tmp_path / "report.html")
    assert r"<title>\udcff</title>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_runs_of_the_same_name_are_told_apart_by_their_paths(tmp_path):
    runs = [write_run(tmp_path / folder / "mine") for folder in ("a", "b")]
    write_report_html(runs, tmp_path / "report.html")
    found = data_of((tmp_path / "report.html").read_text())["runs"]
    assert [run["name"] for run in found] == [str(run.path) for run in runs]


def test_a_file_is_replaced_as_a_whole(runs, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("an earlier report")
    write_report_html(runs[:1], path)
    assert data_of(path.read_text())["runs"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_is_not_written_where_there_is_no_folder(runs, tmp_path):
    with pytest.raises((UsageError, OSError)):
        write_report_html(runs[:1], tmp_path / "none" / "report.html")
