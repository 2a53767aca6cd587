#!/usr/bin/env python3
"""The page of `quern report` in a real browser.

Usage: test_report_page.py QUERN
       test_report_page.py screenshots PAGE FOLDER    (docs/images/report-*.png, of any report)
"""

import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from harness import Suite, browser, missing  # noqa: E402

suite = Suite()
LIGHT = ["#2563c9", "#d1611b"]  # the first two runs' colours in page.css
DARK = ["#6ea2f7", "#f29a5c"]


def write_run(folder, steps=400, lr=1e-3, loss=lambda step: 1 + 4 * math.exp(-step / 60), scale=1):
    """A run whose curves are known: the loss is loss(step), every 50 steps validated 0.1 above; `scale`: of the rest."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        f"[train]\nsteps = {steps}\nbatch = 4\n[model]\nctx = 32\n[optimizer]\nlr = {lr}\n")
    rows = [{"step": 1, "first_step_s": 1.5, "device": "NVIDIA H200", "parameters": 124000000,
             "time": 1000001.5}]
    for step in range(1, steps + 1):
        noise = 0.06 * math.sin(12.9898 * step) * math.cos(4.1414 * step)
        rows.append({"step": step, "loss": loss(step) + noise, "grad_norm": scale * (1 + 0.3 * noise),
                     "lr": lr * min(1, step / 40), "ms": 20, "tokens_per_s": scale * (6400 + 900 * noise),
                     "mfu": scale * (0.4 + 0.1 * noise), "memory_bytes": int(scale * (3 << 30)), "skipped": 0,
                     "tokens": 128 * step, "time": 1000000 + 0.02 * step})
        if step % 50 == 0:
            rows.append({"step": step, "val_loss": loss(step) + 0.1, "time": 1000000 + 0.02 * step})
    rows.append({"step": steps, "ended": "done", "time": 1000000 + 0.02 * steps})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "samples.txt").write_text("".join(
        f"--- step {step}\nText of {folder.name} after {step} steps <b>not bold</b>\n"
        for step in range(100, steps + 1, 100)))
    return folder


class Setting:
    def __init__(self, quern, chromium, scratch):
        self.quern, self.chromium, self.scratch = quern, chromium, scratch
        self.runs = [write_run(scratch / "alpha"),
                     write_run(scratch / "beta", lr=3e-3, loss=lambda step: 1.3 + 3 * math.exp(-step / 30),
                               scale=1.25)]
        self.page = self.report(*self.runs)

    def call(self, *arguments):
        return subprocess.run([self.quern, "report", *map(str, arguments)], capture_output=True, text=True)

    def report(self, *runs, out="page.html"):
        path = self.scratch / out
        result = self.call(*runs, "--out", path)
        assert result.returncode == 0, result.stderr
        self.stderr = result.stderr
        return path


def settle(view):
    """After the next two frames: what was asked for is drawn."""
    view.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def redraws(view, selector, action):
    """Whether `action` changes the canvas."""
    before = view.picture(selector)
    action()
    settle(view)
    return view.picture(selector) != before


def hover(view, chart, step):
    """Moves the mouse to a step in a chart and returns its tooltip's title and lines."""
    canvas = view.page.locator(f"#chart-{chart}")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x = view.page.evaluate(f"plots.find(p => p.canvas.id === 'chart-{chart}').x.scale.place({step})")
    view.page.mouse.move(box["x"] + x, box["y"] + box["height"] / 2)
    settle(view)
    tip = view.page.locator(f".plot:has(#chart-{chart}) .tip")
    return {"shown": tip.is_visible(), "title": tip.locator("b").inner_text(),
            "lines": tip.locator("span").all_inner_texts()}


def set_range(view, selector, value):
    view.page.eval_on_selector(selector, """(input, value) => {
        input.value = value;
        input.dispatchEvent(new Event("input", { bubbles: true })); }""", str(value))


@suite.test
def draws_every_chart(setting):
    """report page: every chart shows every run, in light and dark, without errors or requests"""
    for dark, colors in ((False, LIGHT), (True, DARK)):
        with setting.chromium.open(setting.page, dark=dark, scale=2) as view:
            for chart in ("loss", "lr", "grad_norm", "tokens_per_s", "mfu", "memory_bytes"):
                for color in colors:
                    count = view.has_color(f"#chart-{chart}", color)
                    assert count > 60, f"{chart}: {count} pixels of {color}, dark: {dark}"
            view.expect_clean()


@suite.test
def follows_the_color_scheme(setting):
    """report page: the charts follow a change to dark mode"""
    with setting.chromium.open(setting.page, scale=2) as view:
        view.page.emulate_media(color_scheme="dark")
        settle(view)
        assert view.has_color("#chart-loss", DARK[0]) > 60
        assert view.has_color("#chart-loss", LIGHT[0]) == 0
        view.expect_clean()


@suite.test
def tooltip_tells_the_values(setting):
    """report page: hovering tells each run's values at that step, and the crosshair is in every chart"""
    rows = [[json.loads(line) for line in (run / "metrics.jsonl").open()] for run in setting.runs]
    with setting.chromium.open(setting.page) as view:
        assert view.page.locator(".cross:visible").count() == 0
        tip = hover(view, "loss", 200)
        assert tip["shown"] and tip["title"] == "step 200", tip
        for run, name in zip(rows, ("alpha", "beta")):
            loss = next(r["loss"] for r in run if r["step"] == 200 and "loss" in r)
            validation = next(r["val_loss"] for r in run if r["step"] == 200 and "val_loss" in r)
            for label, value in ((name, loss), (f"{name}, validation", validation)):
                line = next(text for text in tip["lines"] if text.startswith(f"{label}: "))
                assert abs(float(line.split(": ")[1]) - value) < 1e-4 * value, (line, value)
        assert view.page.locator(".cross:visible").count() == 6, "a crosshair in every chart"
        assert len(hover(view, "grad_norm", 123)["lines"]) == 2
        view.expect_clean()


@suite.test
def controls_redraw(setting):
    """report page: smoothing, logarithmic axes, tokens and time change the drawing, and back again"""
    with setting.chromium.open(setting.page) as view:
        loss = "#chart-loss"
        original = view.picture(loss)
        assert redraws(view, loss, lambda: set_range(view, "#smoothing", 60))
        assert "%" in view.page.inner_text("#smoothing-value")
        assert redraws(view, loss, lambda: set_range(view, "#smoothing", 0))
        assert view.picture(loss) == original
        assert redraws(view, loss, lambda: view.page.check("#log-x"))
        assert view.page.evaluate("plots[0].x.scale.log")
        assert redraws(view, loss, lambda: view.page.check("#log-y"))
        assert view.page.evaluate("plots[0].y.scale.log")
        for axis, last in (("tokens", 400 * 128), ("seconds", 8), ("step", 400)):
            view.page.click(f"[data-axis={axis}]")
            assert abs(view.page.evaluate("plots[0].x.scale.max") - last) < 1e-6 * last, axis
        view.page.uncheck("#log-x")
        view.page.uncheck("#log-y")
        settle(view)
        assert view.picture(loss) == original
        view.expect_clean()


@suite.test
def smoothing_is_an_average(setting):
    """report page: smoothing keeps a constant curve and evens out the noise"""
    with setting.chromium.open(setting.page) as view:
        constant = view.page.evaluate(
            "smoothed([1, 2, 4, 8, 9].map(x => ({ x, y: 5 })), 0.3, x => x).map(p => p.y)")
        assert all(abs(y - 5) < 1e-12 for y in constant), constant
        # Neighbours one apart with weight e^-1, two apart e^-2; the gap stays one.
        width, e = 1 / 2, math.exp(-1)
        got = view.page.evaluate(f"""smoothed([{{x: 0, y: 3}}, {{x: 0.5, y: null}}, {{x: 1, y: 0}}, {{x: 2, y: 6}}],
            {width}, x => x).map(p => p.y)""")
        want = [(3 + 6 * e ** 2) / (1 + e + e ** 2), None, 9 * e / (1 + 2 * e), (6 + 3 * e ** 2) / (1 + e + e ** 2)]
        assert all(a is b is None or abs(a - b) < 1e-12 for a, b in zip(got, want)), (got, want)
        rough = """ys => { let sum = 0; for (let i = 1; i < ys.length; ++i) sum += Math.abs(ys[i] - ys[i - 1]); return sum; }"""
        read = f"({rough})(plots[0].curves[0].points.slice(200).map(p => p.y))"
        before = view.page.evaluate(read)
        set_range(view, "#smoothing", 50)
        assert view.page.evaluate(read) < 0.3 * before


@suite.test
def runs_are_switched_and_filtered(setting):
    """report page: the legend switches runs off and on, the filter leaves those that match"""
    with setting.chromium.open(setting.page, scale=2) as view:
        view.page.click("button.toggle >> text=alpha")
        settle(view)
        assert view.has_color("#chart-loss", LIGHT[0]) == 0
        assert view.has_color("#chart-loss", LIGHT[1]) > 60
        assert view.page.get_attribute("button.toggle >> text=alpha", "aria-pressed") == "false"
        view.page.click("button.toggle >> text=alpha")
        view.page.fill("#filter", "ALPH")
        settle(view)
        assert view.has_color("#chart-loss", LIGHT[0]) > 60
        assert view.has_color("#chart-loss", LIGHT[1]) == 0
        assert not view.page.is_visible("button.toggle >> text=beta")
        view.page.fill("#filter", "no such run")
        settle(view)
        assert view.has_color("#chart-loss", LIGHT[0]) == 0
        view.page.fill("#filter", "")
        assert view.page.is_visible("button.toggle >> text=beta")
        view.expect_clean()


@suite.test
def summary_and_configuration(setting):
    """report page: the head sums the runs up, the table has what differs between them"""
    with setting.chromium.open(setting.page) as view:
        head = view.page.inner_text("#runs")
        for part in ("alpha", "beta", "done", "51.2 k", "NVIDIA H200", "124 M parameters", "3.00 GiB"):
            assert part in head, f"{part} is not in {head}"
        differences = view.page.inner_text("#config")
        assert re.findall(r"[a-z]+\.\w+", differences) == ["optimizer.lr"], differences
        assert "0.001" in differences and "0.003" in differences
        view.page.click("summary")
        assert "train.batch" in view.page.inner_text("#config-all")
        view.page.click("button.toggle >> text=beta")
        assert "Default" in view.page.inner_text("#config"), "one run is compared with the defaults"


@suite.test
def runs_are_sorted(setting):
    """report page: a click on a column sorts the runs, unknown values last, and the best run is marked"""
    failed = write_run(setting.scratch / "failed", steps=20)
    (failed / "metrics.jsonl").write_text('{"step": 20, "loss": null, "ms": 20}\n')
    page = setting.report(setting.runs[1], failed, setting.runs[0], out="sorted.html")
    for width in (1280, 390):
        with setting.chromium.open(page, width=width) as view:
            names = lambda: view.page.locator("button.toggle").all_inner_texts()  # noqa: E731
            assert names() == ["beta", "failed", "alpha"]
            assert view.page.locator("tr:has(.best) button.toggle").all_inner_texts() == ["alpha"]
            for column, first, second in (
                    ("Best validation", ["alpha", "beta", "failed"], ["beta", "alpha", "failed"]),
                    ("Tokens/s", ["beta", "alpha", "failed"], ["alpha", "beta", "failed"]),
                    ("Run", ["alpha", "beta", "failed"], ["failed", "beta", "alpha"])):
                head = view.page.locator(f"#runs th button >> text='{column}'")
                head.click()
                assert names() == first, (column, names())
                head.click()
                assert names() == second, (column, names())
            assert view.page.locator("[aria-sort]").count() == 1
            view.expect_clean()


@suite.test
def an_unknown_mfu_is_left_out(setting):
    """report page: without any MFU, as on a CPU, there is no column and no chart of it"""
    run = write_run(setting.scratch / "cpu", steps=20)
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(re.sub(r'"mfu": [0-9.e-]+', '"mfu": 0', text))
    with setting.chromium.open(setting.report(run, out="cpu.html")) as view:
        assert "MFU" not in view.page.inner_text("main")
        assert view.page.locator("canvas").count() == 5
        view.expect_clean()


@suite.test
def columns_round_alike(setting):
    """report page: the numbers of a column have one unit and as many decimals"""
    with setting.chromium.open(setting.page) as view:
        for call, want in (
                ("alike([0.27241, 1.5, null], [], 5)", ["0.2724", "1.5000", "–"]),
                ("alike([24.6e6, 120e3], UNITS.count)", ["24.6 M", "0.1 M"]),
                ("alike([950, 12], UNITS.count)", ["950", "12"]),
                ("alike([3 * 2 ** 30, 2 ** 29], UNITS.bytes)", ["3.00 GiB", "0.50 GiB"]),
                ("alikeDurations([8.54, 61])", ["8.5 s", "61.0 s"]),
                ("alikeDurations([59.6, 300])", ["1 min 00 s", "5 min 00 s"]),
                ("alikeDurations([7200, 59])", ["2 h 00 min", "0 h 01 min"])):
            values = call[call.index("["):call.index("]") + 1]
            got = view.page.evaluate(f"{values}.map({call})")
            assert got == want, (call, got)


@suite.test
def samples_through_training(setting):
    """report page: the slider shows each run's sample at that step, as text"""
    with setting.chromium.open(setting.page) as view:
        assert "Text of beta after 400 steps <b>not bold</b>" in view.page.inner_text("#samples")
        set_range(view, "#sample-step", 0)
        text = view.page.inner_text("#samples")
        assert "Text of alpha after 100 steps" in text and "400" not in text, text


@suite.test
def fits_a_phone(setting):
    """report page: on a phone nothing is wider than the screen, and one run alone is not either"""
    single = setting.report(setting.runs[0], out="single.html")
    for page in (setting.page, single):
        for width in (390, 320, 768):
            with setting.chromium.open(page, width=width, height=844) as view:
                assert view.overflow() <= 0, f"{view.overflow()} pixels too wide at {width}"
                assert view.painted("#chart-loss") > 500
                view.expect_clean()


@suite.test
def validations_alone(setting):
    """report page: a run that logged validations alone is drawn"""
    run = write_run(setting.scratch / "validated")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if "val_loss" in line))
    with setting.chromium.open(setting.report(run, out="validated.html"), scale=2) as view:
        assert view.has_color("#chart-loss", LIGHT[0]) > 60
        assert view.page.evaluate("plots[0].x.scale.max") == 400
        view.page.click("[data-axis=tokens]")
        view.page.check("#log-x")
        settle(view)
        view.expect_clean()


@suite.test
def a_million_lines_open(setting):
    """report page: a million steps are thinned, with their spike still seen"""
    folder = setting.scratch / "long"
    folder.mkdir()
    (folder / "config.toml").write_text("[train]\nsteps = 1000000\n")
    line = ('{"step":%d,"loss":%s,"grad_norm":1.5,"lr":0.001,"ms":10.0,"tokens_per_s":5e4,"mfu":0.4,'
            '"memory_bytes":1048576,"skipped":0,"tokens":%d,"time":1000000.5}\n')
    with (folder / "metrics.jsonl").open("w") as out:
        for step in range(1, 1000001):
            out.write(line % (step, "30.5" if step == 654321 else f"{2 + (step % 7) / 10:.1f}", 64 * step))
    page = setting.report(folder, out="long.html")
    (folder / "metrics.jsonl").unlink()
    assert page.stat().st_size < 2e6, page.stat().st_size
    with setting.chromium.open(page) as view:
        assert view.painted("#chart-loss") > 500
        assert view.page.evaluate("plots[0].y.scale.max") >= 30.5, "the spike is lost"
        assert view.page.evaluate("plots[0].curves[0].points.length") < 2000
        view.expect_clean()


@suite.test
def bad_input(setting):
    """report page: a cut file is read up to the cut, other bad input is refused"""
    cut = write_run(setting.scratch / "cut", steps=20)
    text = (cut / "metrics.jsonl").read_text()
    (cut / "metrics.jsonl").write_text(text[: text.rindex('{"step": 20, "loss"') + 15])
    page = setting.report(cut, out="cut.html")
    assert "the last line is cut in the middle" in setting.stderr, setting.stderr
    with setting.chromium.open(page) as view:
        assert "cut in the middle" in view.page.inner_text("#warnings")
        assert view.page.evaluate("plots[0].curves[0].points.length") == 19
        view.expect_clean()
    empty = write_run(setting.scratch / "empty", steps=1)
    (empty / "metrics.jsonl").write_text("")
    refusals = [(1, [empty], "has no metrics"), (1, [setting.scratch / "none"], "there is no such folder"),
                (1, [cut, "--out", "/no/such/folder/x.html"], "/no/such/folder/x.html"),
                (2, [], "no run folder"), (2, [cut, "--outt", "x"], "did you mean --out?")]
    for code, arguments, message in refusals:
        result = setting.call(*arguments)
        assert result.returncode == code and message in result.stderr, (arguments, result)
    with setting.chromium.open(setting.report(empty, cut, out="both.html")) as view:
        assert "there are no metrics yet" in view.page.inner_text("#warnings")
        assert view.painted("#chart-loss") > 500
        view.expect_clean()


def take_screenshots(chromium, page, folder):
    with chromium.open(page, width=1200, height=1560) as view:
        set_range(view, "#smoothing", 18)
        hover(view, "loss", view.page.evaluate("plots[0].x.scale.max * 0.42"))
        view.page.evaluate("scrollTo(0, 0)")
        view.screenshot(folder / "report-light.png")
    with chromium.open(page, width=1200, height=960, dark=True) as view:
        view.page.check("#log-x")
        view.page.check("#log-y")
        set_range(view, "#smoothing", 18)
        hover(view, "loss", view.page.evaluate("plots[0].x.scale.max * 0.1"))
        view.page.evaluate("scrollTo(0, 0)")
        view.screenshot(folder / "report-dark.png")
    with chromium.open(page, width=390, height=844, scale=2) as view:
        view.page.evaluate("document.querySelector('#curves-heading').scrollIntoView()")
        settle(view)
        view.screenshot(folder / "report-phone.png")


def main():
    if missing():
        print(f"skip report page: {missing()}")
    elif len(sys.argv) == 4:
        with browser() as chromium:
            take_screenshots(chromium, sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as scratch, browser() as chromium:
            suite.run(Setting(sys.argv[1], chromium, pathlib.Path(scratch)))


if __name__ == "__main__":
    main()
