"""The live page and the report in a real browser, over real runs."""

import json
import re
import shutil
import signal

import pytest
from selenium.webdriver.common.keys import Keys

from commands import Command
from rampcli.report.page_files import write_report_html
from rampcli.runs.directory import RunDirectory
from rampcli.runs.metrics import LOSS, Chart, Metric
from recorded_runs import write_phased_run, write_run
from run_files import failure, state
from serve.browser import running_browser, wait_for
from tiny_runs import Run, environment

HOSTILE = "<img src=x onerror=window.hacked=1>"
WORDS = (
    *("data=stdlib", "model.vocab_size=256", "model.rampup_batch_size=[4,4,360]"),
    *("model.global_batch_size=16", "data.micro_batch_size=4", "trainer.max_samples=1_000_000_000"),
    *("optim.lr=0.01", "optim.warmup_samples=200", "trainer.val_every_steps=20"),
    *("trainer.num_nodes=1", "rampup.node_policy=fixed", "rampup.at_boundary=continue"),
    *("checkpoint.every_steps=40", "trainer.peak_tflops=0.05", "data.sequence_length=32"),
    *("model.hidden_size=64", "trainer.compile=false"),
)
DRAWN_TEXTS = """
    const { fillText } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
        const chart = this.canvas.closest("[data-chart=batch]");
        if (chart) {
            const [canvas, over] = [this.canvas, chart.querySelector(".u-over")]
                .map((one) => one.getBoundingClientRect());
            const place = canvas.left + x / devicePixelRatio - over.left;
            window.drawn = { ...window.drawn, [text]: place / over.width };
        }
        fillText.call(this, text, x, y, ...more);
    };
"""
"""Notes each text that the chart of the batch draws, and where, as a share of its width."""


def state_of(browser):
    return " ".join(browser.texts("#summary .state"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with running_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("served") / "runs"


@pytest.fixture(scope="module")
def page(runs):
    """The address of a page of a folder that does not exist yet."""
    server = Command(["serve", str(runs)], environment())
    try:
        line = wait_for(lambda: re.search(r"at (http://\S+)\n", server.printed()), "the address")
        yield line[1]
    finally:
        server.send_signal(signal.SIGINT)
        output, errors = server.communicate()
        assert (server.returncode, errors) == (130, "")
        assert "Ctrl-C" in output


@pytest.fixture(scope="module")
def trained(browser, page, runs):
    """A run that trained while the page was open."""
    browser.open(page)
    assert "No runs yet" in browser.find(".empty").text
    browser.driver.execute_script("window.isFirst = true")
    (training := Run(runs / "gpt")).path.parent.mkdir()
    command = training.start(*WORDS, "name=gpt")
    seen = set()

    def has_seen_three():
        seen.add((browser.fact("step"), browser.charts().get("loss")))
        return all(len({*values} - {None}) >= 3 for values in zip(*seen, strict=True))

    try:
        wait_for(lambda: browser.fact("time left"), "the time left")
        wait_for(has_seen_three, "three steps and curves")
        assert state_of(browser) == "training"
    finally:
        command.send_signal(signal.SIGINT)
        command.communicate()
    wait_for(lambda: state_of(browser) == "saved and stopped", "the end of training")
    return training, seen


@pytest.fixture(autouse=True)
def check(browser):
    """Checks after each test that the page has not complained and asked no other host."""
    yield
    assert browser.complaints() == []
    assert browser.hosts() <= {"127.0.0.1"}


def test_points_appear_while_a_run_trains_without_reloading(browser, trained):
    training, seen = trained
    assert len({step for step, _ in seen if step}) >= 3, seen
    assert len({chart for _, chart in seen if chart}) >= 3
    assert browser.driver.execute_script("return window.isFirst") is True
    assert None not in (browser.fact("parameters"), browser.fact("tokens per parameter"))
    last = training.rows[-1]
    wait_for(lambda: browser.fact("step") == f"{last['step']:,}", "the last step")
    assert float(browser.fact("loss")) == pytest.approx(last["loss"], abs=2e-3)
    assert {"batch", "nodes", "loss", "lr", "grad_norm", "tokens_per_s", "mfu"} <= set(
        browser.charts()
    )
    browser.picture("live-light")
    browser.picture("live-page", height=1080)


@pytest.mark.usefixtures("trained")
def test_the_page_follows_the_colours_of_the_system_and_the_reader(browser, page):
    def background():
        return browser.driver.execute_script(
            "return getComputedStyle(document.body).backgroundColor"
        )

    browser.open(f"{page}#run=gpt&x=tokens&smooth=0.02", dark=True)
    browser.find("[data-chart=loss] canvas")
    dark = background()
    browser.picture("live-dark")
    browser.prefer(dark=False)
    assert background() != dark
    for theme in ("light", "dark"):
        browser.find("#theme").click()
        assert theme in browser.find("#theme").text
    assert background() == dark
    browser.driver.execute_script("localStorage.clear()")


def test_a_part_of_a_run_is_shown_by_dragging_over_a_chart(browser, page, trained):
    training, _ = trained
    browser.open(f"{page}#run=gpt&x=steps")
    whole = browser.find("[data-chart=loss] .u-over") and browser.charts()["loss"]
    browser.drag("[data-chart=loss] .u-over", 0.5, 0.75)
    wait_for(lambda: browser.charts()["loss"] != whole, "a part of the run")
    low, high = map(
        float, re.search(r"from=([\d.]+)&to=([\d.]+)", browser.driver.current_url).groups()
    )
    steps = training.rows[-1]["step"]
    assert (low / steps, high / steps) == pytest.approx((0.5, 0.75), abs=0.05)
    browser.find("#reset").click()
    wait_for(lambda: browser.charts()["loss"] == whole, "the whole run")


def test_the_crosshair_shows_the_values_of_a_step(browser, page, trained):
    training, _ = trained
    browser.open(f"{page}#run=gpt&x=steps")
    chart = browser.find("[data-chart=loss] .plot")
    chart.send_keys(Keys.ARROW_RIGHT * 5)
    wait_for(lambda: "steps" in browser.find(".at").text, "the place of the crosshair")
    step = int(re.match(r"[\d,]+", browser.find(".at").text)[0].replace(",", ""))
    losses = [row["loss"] for row in training.rows[max(0, step - 3) : step + 2]]
    shown = float(browser.texts("[data-chart=loss] .legend b")[0])
    assert min(abs(shown - loss) for loss in losses) < 2e-3


@pytest.mark.usefixtures("trained")
def test_runs_are_overlaid_and_their_differing_settings_listed(browser, page, runs):
    write_run(runs / "other")
    browser.open(f"{page}#run=gpt")
    browser.find("input[data-run=other]").click()
    wait_for(lambda: "other" in browser.charts()["loss"], "the other run")
    assert "gpt" in browser.charts()["loss"]
    keys = browser.texts('table[aria-label="Settings that differ"] code')
    assert {"optim.lr", "model.rampup_batch_size"} <= set(keys)
    assert "seed" not in keys
    script = "return [document.documentElement.scrollWidth, innerWidth]"
    width, room = browser.driver.execute_script(script)
    assert width <= room
    browser.picture("overlay")
    browser.picture("live-overlay", height=1080)


@pytest.mark.usefixtures("trained")
def test_a_narrow_window_shows_everything_without_scrolling_sideways(browser, page):
    browser.open(f"{page}#run=gpt", width=390)
    browser.find("[data-chart=loss] canvas")
    script = "return [document.documentElement.scrollWidth, innerWidth]"
    width, room = browser.driver.execute_script(script)
    browser.picture("narrow")
    assert width <= room


@pytest.mark.usefixtures("trained")
def test_texts_of_a_run_run_no_script(browser, page, runs):
    hostile = write_run(runs / HOSTILE.replace("/", ""))
    settings = hostile.config.read_text()
    hostile.config.write_text(
        settings.replace("name: ", f"name: '{HOSTILE}'\nx{HOSTILE}: ", 1), encoding="utf-8"
    )
    hostile.append_event("fault", reason=HOSTILE)
    error = failure(message=HOSTILE, remedy=HOSTILE)
    hostile.write_state(state(status="failed", error=error))
    hostile.append_row(
        hostile.responses, {"step": 4, "prompt": HOSTILE, "response": HOSTILE, "reward": 1.0}
    )
    browser.open(page)
    wait_for(lambda: HOSTILE in browser.texts(".run .name"), "the hostile run")
    # In one script, because the page replaces its list every second.
    browser.driver.execute_script(
        """
        const boxes = () => [...document.querySelectorAll(".run input")];
        const wrong = boxes().filter((box) => box.checked !== (box.dataset.run === arguments[0]));
        for (const { dataset: { run } } of wrong) {
            boxes().find((box) => box.dataset.run === run).click();
        }
        """,
        HOSTILE,
    )
    wait_for(lambda: HOSTILE in browser.texts("h1"), "the page of the hostile run")
    shown = browser.find("main").text
    assert shown.count(HOSTILE) >= 6
    assert "this run has failed" in shown
    assert browser.driver.execute_script("return window.hacked") is None
    assert browser.all("main img") == []
    browser.picture("failed")


def test_a_damaged_run_is_shown_beside_sound_ones(browser, page, runs, trained):
    training, _ = trained
    damaged = RunDirectory(shutil.copytree(training.path, runs / "damaged"))
    with damaged.metrics.open("a") as file:
        file.write("{}\n")
    browser.open(f"{page}#run=damaged&run=gpt")
    wait_for(lambda: len(browser.texts(".state[data-state=damaged]")) >= 2, "the damaged run")
    assert "metrics.jsonl" in browser.find(".notice.bad").text
    assert "gpt" in browser.charts()["loss"]


def test_curves_over_time_are_not_drawn_over_a_pause(browser, page):
    browser.open(page)
    browser.find(".layout")
    values = "{x: [1, 2, 5, 6], y: [4, null, 3, 2], low: [3, 3, 3, 2], high: undefined}"
    script = f"return withPauses({values}, [{{x: 0.5}}, {{x: 4}}, {{x: 7}}])"
    assert browser.driver.execute_script(script) == {
        "x": [1, 2, 4, 5, 6],
        "y": [4, None, None, 3, 2],
        "low": [3, 3, None, 3, 2],
        "high": None,
    }


def test_numbers_are_written_as_they_are_read(browser, page):
    browser.open(page)
    browser.find(".layout")
    calls = {
        "compact(999_499)": "999K",
        "compact(999_999)": "1M",
        "compact(26_600)": "26,600",
        "compact(0.00012)": "1.2e-4",
        "duration(250.4)": "4 min 10 s",
        "axisLabel('samples', [{data: {unit: 'prompts'}}])": "prompts",
        "axisLabel('samples', [{data: {unit: 'samples'}}])": "samples",
    }
    assert browser.driver.execute_script(f"return [{','.join(calls)}]") == [*calls.values()]


def test_a_mark_of_a_run_that_went_back_is_found(browser, page):
    browser.open(page)
    browser.find(".layout")
    script = """
        const at = {x: {steps: [10, 40, 20, null]}, text: ["a", "b", "c", "d"]};
        return marksOf({marks: {checkpoint: at}}, "checkpoint", "steps").map(({text}) => text);
    """
    assert browser.driver.execute_script(script) == ["a", "c", "b"]


def test_a_report_shows_the_same_as_the_page_and_prints(browser, page, trained, tmp_path):
    training, _ = trained
    browser.open(f"{page}#run=gpt")
    wait_for(lambda: browser.fact("step"), "the page")
    live = browser.charts(), browser.texts(".tile"), browser.texts("#tables td")
    report = tmp_path / "report.html"
    write_report_html([training.directory], report)
    browser.open(report.as_uri())
    wait_for(lambda: browser.fact("step"), "the report")
    assert (browser.charts(), browser.texts(".tile"), browser.texts("#tables td")) == live
    browser.picture("report")
    printed = browser.pdf()
    (browser.screenshots / "report.pdf").write_bytes(printed)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 4
    json.loads(browser.find("#data").get_attribute("textContent"))


def test_a_run_with_a_z_loss_has_a_chart_of_it(browser, tmp_path):
    run = write_run(tmp_path / "stable")
    rows = [json.loads(line) | {"z_loss": 9.0} for line in run.metrics.read_text().splitlines()]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = tmp_path / "report.html"
    write_report_html([run], report)
    browser.open(report.as_uri())
    wait_for(lambda: browser.fact("step"), "the report")
    assert "z-loss: from 9 to 9" in browser.charts()["z_loss"]


def test_a_metric_that_an_observer_declares_has_its_chart(browser, tmp_path):
    run = write_run(tmp_path / "observed")
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    rows = [row | {"wait_0": 30.0, "wait_1": 90.0, "loss_of_other": 7.0} for row in rows]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chart = Chart("waits", "Time of waiting")
    waits = [Metric(f"wait_{rank}", "", unit="s", chart=chart) for rank in (0, 1)]
    run.write_columns([*waits, Metric("loss_of_other", "", chart=LOSS, label="other")])
    report = tmp_path / "report.html"
    write_report_html([run], report)
    browser.open(report.as_uri())
    wait_for(lambda: browser.fact("step"), "the report")
    charts = browser.charts()
    assert "wait_0: from 30 s to 30 s" in charts["waits"]
    assert "wait_1: from 1 min 30 s to 1 min 30 s" in charts["waits"]
    assert "other: from 7 to 7" in charts["loss"]


def test_the_noise_scale_is_shown_beside_the_batch(browser, tmp_path):
    """And its lower end alone until the other one is known."""
    run = write_run(tmp_path / "noisy")
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for number, row in enumerate(rows):
        ends = (None, 10.0, None) if number < 20 else (30.0 + number, 20.0, 90.0)
        columns = zip(("noise_scale", "noise_scale_low", "noise_scale_high"), ends, strict=True)
        row |= columns if number % 4 == 3 else ()
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = tmp_path / "report.html"
    write_report_html([run], report)
    browser.open(report.as_uri())
    wait_for(lambda: browser.fact("step"), "the report")
    shown = browser.charts()["noise_scale"]
    assert "noise scale: from 53 to 69" in shown
    assert "at least: from 10 to 10" in shown
    assert "trained: from 4 to 8" in shown
    browser.picture("noise")
    browser.drag("[data-chart=noise_scale] .u-over", 0.5, 0.9)
    wait_for(lambda: "at least" not in browser.charts()["noise_scale"], "the part without it")
    assert "noise scale: from" in browser.charts()["noise_scale"]


def test_phases_are_named_where_they_begin_and_under_the_pointer(browser, tmp_path):
    """And drawn over tokens, because their samples differ in length."""
    report = tmp_path / "report.html"
    write_report_html([write_phased_run(tmp_path / "phased", steps=25)], report)
    browser.open(report.as_uri())
    wait_for(lambda: browser.fact("phase") == "c", "the report")
    assert browser.find("#axis-tokens").is_selected()
    browser.driver.execute_script(DRAWN_TEXTS)
    browser.find("#theme").click()  # which draws the charts again
    drawn = wait_for(lambda: browser.driver.execute_script("return window.drawn"), "the names")
    browser.driver.execute_script("localStorage.clear()")
    step = 8 * 128  # tokens of a step of the first phase; later ones have two and half of them
    ends = {"a": 0, "b": 10 * step, "c": 30 * step}
    assert {name: drawn[name] for name in ends} == pytest.approx(
        {name: begin / (35 * step) for name, begin in ends.items()}, abs=0.01
    )
    for mark, at in (("phase b, stage 1", ends["b"]), ("phase c, stage 2", ends["c"])):
        browser.point("[data-chart=loss] .u-over", at / (32.5 * step))
        wait_for(lambda mark=mark: mark in browser.texts(".tip:not([hidden])"), mark)
    browser.point("[data-chart=loss] .u-over", 0.5)
    wait_for(lambda: "tokens · phase b" in browser.find(".at").text, "the phase in its middle")
    assert browser.texts('table[aria-label="Stages"] tbody td:first-child') == ["a", "b", "c"]
    browser.picture("phases")
    write_report_html([write_phased_run(tmp_path / "continued", origin=10)], report)
    browser.open(report.as_uri())
    wait_for(lambda: browser.fact("phase") == "b", "the report of a run that continues another")
    steps = browser.texts('table[aria-label="Stages"] tbody td:nth-child(7)')
    assert steps == ["–", "6 of 10", "0 of 10"]
    assert "Continues runs/other after step 10." in " ".join(browser.texts("#tables p.soft"))
