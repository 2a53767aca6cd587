#!/usr/bin/env python3
"""memory.html, the page of `quern memory --out`, in a real browser.

Usage: test_memory_page.py QUERN
       test_memory_page.py screenshots PAGE FOLDER    (docs/images/memory-page-*.png, of any memory.html)
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import harness

CATEGORIES = ["parameters", "gradients", "optimizer", "activations", "workspace", "other"]

suite = harness.Suite()


class Case:
    """A page of a measured training step, and the data that it holds."""

    def __init__(self, chromium, quern, folder):
        self.chromium = chromium
        command = "memory --size toy --batch 2 --ctx 64 --vocab 500 --device cpu --passes step --out"
        subprocess.run([quern, *command.split(), folder], check=True, capture_output=True)
        self.folder = pathlib.Path(folder)
        self.file = self.folder / "memory.html"
        self.text = self.file.read_text(encoding="utf-8")
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', self.text, re.S)
        self.data = json.loads(found.group(1))

    def open(self, file=None, **options):
        return self.chromium.open(file or self.file, **options)

    def page_of(self, data, name):
        """The page with other data in it, as a file of that name."""
        begin = self.text.index('id="data">') + len('id="data">')
        end = self.text.index("</script>", begin)
        file = self.folder / name
        text = json.dumps(data).replace("<", "\\u003c")  # as the program writes it
        file.write_text(self.text[:begin] + text + self.text[end:], encoding="utf-8")
        return file


def pixels(page, canvas, x, y):
    """The colour (r, g, b, a) of a canvas at a share of its width and height."""
    return page.evaluate(
        """([id, x, y]) => {
          const chart = document.getElementById(id);  // a copy is read: Chromium warns of reading it
          const copy = Object.assign(document.createElement('canvas'),
              {width: chart.width, height: chart.height});
          const g = copy.getContext('2d', {willReadFrequently: true});
          g.drawImage(chart, 0, 0);
          const at = (share, size) => Math.min(size - 1, Math.floor(share * size));
          return Array.from(g.getImageData(at(x, copy.width), at(y, copy.height), 1, 1).data);
        }""",
        [canvas, x, y],
    )


def variable(page, name):
    """A colour of the style, as (r, g, b)."""
    text = page.evaluate(
        "(n) => getComputedStyle(document.documentElement).getPropertyValue('--' + n)", name
    ).strip()
    return [int(text[i : i + 2], 16) for i in (1, 3, 5)]


def bytes_of(text):
    return int(re.sub(r"\D", "", text))


@suite.test
def charts_are_drawn(case):
    """The charts are drawn."""
    with case.open() as view:
        page = view.page
        # Parameters lie at the bottom of the stack; the timeline's plot ends 26 pixels above it.
        assert pixels(page, "timeline", 0.6, 0.9)[:3] == variable(page, "parameters")
        assert pixels(page, "treemap", 0.02, 0.97)[3] == 255
        colours = {tuple(pixels(page, "timeline", 0.6, 0.1 + 0.01 * i)) for i in range(80)}
        assert len(colours) >= 5  # grid, and at least four categories
        view.expect_clean()


@suite.test
def peak_is_the_traces_to_the_byte(case):
    """The peak is the trace's to the byte, and categories sum to it."""
    with case.open() as view:
        page = view.page
        rows = page.locator("#categories tbody tr")
        shown = {
            rows.nth(i).locator("td").nth(0).inner_text().strip(): bytes_of(
                rows.nth(i).locator("td").nth(1).inner_text()
            )
            for i in range(rows.count())
        }
        expected = dict(zip(CATEGORIES, case.data["peak"]["by_category"]))
        assert shown == {name: count for name, count in expected.items() if count > 0}
        assert sum(shown.values()) == case.data["peak"]["bytes"]
        total = page.locator("#categories tfoot td").nth(1).inner_text()
        assert bytes_of(total) == case.data["peak"]["bytes"]
        figures = page.locator("#figures").inner_text().replace("\u202f", "")
        assert str(case.data["peak"]["bytes"]) in figures
        subject = page.locator("#subject").inner_text()
        assert re.fullmatch(r"toy: \d+ layers of \d+, batch 2, context 64, \w+", subject), subject
        # The timeline's own sums have that peak, and columns of pixels keep it.
        most = page.evaluate("Math.max(...timeline.times.map((t, i) => shownSum(i)))")
        assert most == case.data["peak"]["bytes"]
        for width in (1, 7, 300, 5000):
            most = page.evaluate(
                f"Math.max(...columnsOf({width}).map((at) => at < 0 ? 0 : shownSum(at)))")
            assert most == case.data["peak"]["bytes"]
        view.expect_clean()


@suite.test
def hover_shows_the_categories_then(case):
    """Hovering shows the categories then, or the allocation."""
    with case.open() as view:
        page = view.page
        page.hover("#timeline", position={"x": 500, "y": 150})
        tip = page.locator("#tip")
        assert tip.is_visible()
        text = tip.inner_text()
        assert "parameters" in text and "in use" in text and "reserved" in text
        sums = page.evaluate("categoriesAt(momentAt(500))")
        assert page.evaluate(f"formatBytes({sum(sums)})") in text
        assert all(page.evaluate(f"formatBytes({count})") in text for count in sums if count > 0)
        page.mouse.move(2, 2)
        assert not tip.is_visible()
        page.hover("#treemap", position={"x": 20, "y": 20})
        assert "bytes" in tip.inner_text()
        view.expect_clean()


@suite.test
def a_click_moves_the_moment(case):
    """A click moves the moment, a button brings it back."""
    with case.open() as view:
        page = view.page
        assert "At the peak" in page.locator("#moment-title").inner_text()
        page.locator("#timeline").click(position={"x": 70, "y": 150})
        assert "At a moment" in page.locator("#moment-title").inner_text()
        total = bytes_of(page.locator("#categories tfoot td").nth(1).inner_text())
        assert 0 < total < case.data["peak"]["bytes"]
        page.locator("#to-peak").click()
        assert "At the peak" in page.locator("#moment-title").inner_text()
        view.expect_clean()


@suite.test
def filters(case):
    """Filters by text, category, size and moment."""
    with case.open() as view:
        page = view.page

        def count():
            return int(page.locator("#count").inner_text().split(" ")[0])

        def names():
            return page.locator("#allocations tbody tr td:nth-child(2)").all_inner_texts()

        assert count() == len(case.data["allocations"])
        page.fill("#text", "adam moment")
        assert count() == 2 and all("adam" in name for name in names())
        page.fill("#text", "")
        page.select_option("#category", label="gradients")
        assert count() == sum(1 for a in case.data["allocations"] if a[3] == 1)
        page.select_option("#category", "")
        page.select_option("#least", "1048576")
        assert count() == sum(1 for a in case.data["allocations"] if a[1] >= 1 << 20)
        page.select_option("#least", "0")
        page.check("#live")
        live, time, peak = 0, 0, case.data["peak"]["time"]
        for since, _, life, *_ in case.data["allocations"]:
            time += since
            live += time <= peak and (life < 0 or peak < time + life)
        assert count() == live
        view.expect_clean()


@suite.test
def the_table_is_sorted_and_grows(case):
    """The table is sorted, and grows."""
    with case.open() as view:
        page = view.page

        def first():
            return page.locator("#allocations tbody tr").first.locator("td")

        largest = max(a[1] for a in case.data["allocations"])
        assert bytes_of(first().nth(0).get_attribute("title")) == largest
        page.locator("#allocations th button[data-key=bytes]").click()
        smallest = min(a[1] for a in case.data["allocations"])
        assert bytes_of(first().nth(0).get_attribute("title")) == smallest
        rows = page.locator("#allocations tbody tr").count()
        page.locator("#more").click()
        assert page.locator("#allocations tbody tr").count() > rows
        view.expect_clean()


@suite.test
def a_hidden_category_leaves_the_stack(case):
    """A hidden category leaves the stack."""
    with case.open() as view:
        page = view.page
        assert pixels(page, "timeline", 0.6, 0.9)[:3] == variable(page, "parameters")
        page.locator("#legend button", has_text="parameters").click()
        assert pixels(page, "timeline", 0.6, 0.9)[:3] == variable(page, "gradients")
        view.expect_clean()


@suite.test
def drag_zooms_and_a_double_click_goes_back(case):
    """Dragging zooms, a double click goes back."""
    with case.open() as view:
        page = view.page
        home = page.evaluate("[state.begin, state.end]")
        box = page.locator("#timeline").bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 100)
        page.mouse.up()
        zoomed = page.evaluate("[state.begin, state.end]")
        assert home[0] < zoomed[0] < zoomed[1] < home[1]
        page.locator("#timeline").dblclick(position={"x": 200, "y": 100})
        assert page.evaluate("[state.begin, state.end]") == home
        page.locator("#timeline").dblclick(position={"x": 200, "y": 100})
        assert page.evaluate("[state.begin, state.end]") == [0, case.data["end"]]
        view.expect_clean()


@suite.test
def fits_a_phone(case):
    """Fits a phone, light and dark."""
    for dark in (False, True):
        with case.open(width=390, height=844, dark=dark) as view:
            page = view.page
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert pixels(page, "timeline", 0.6, 0.85)[:3] == variable(page, "parameters")
            back = page.evaluate("getComputedStyle(document.body).backgroundColor")
            brightness = sum(map(int, re.findall(r"\d+", back)[:3]))
            assert brightness < 150 if dark else brightness > 600
            view.expect_clean()


@suite.test
def a_hundred_thousand_events_open_quickly(case):
    """A hundred thousand events open quickly."""
    large = dict(case.data)
    place = case.data["allocations"][0][5]
    large["allocations"] = [[1000, 1 << 20, 30500, 3, 0, place] for _ in range(50000)]
    large["end"] = 50_000_000
    large["phases"] = large["segments"] = []
    large["peak"] = {"time": 31000, "bytes": 31 << 20, "by_category": [0, 0, 0, 31 << 20, 0, 0]}
    with case.open(case.page_of(large, "large.html")) as view:
        entry = "performance.getEntriesByType('navigation')[0].loadEventEnd"
        opened = [view.page.evaluate(entry)]  # milliseconds; 400 on a quiet machine
        while len(opened) < 3 and opened[-1] >= 5000:  # something else had the processor
            view.page.reload()
            opened.append(view.page.evaluate(entry))
        assert min(opened) < 5000
        most = view.page.evaluate("Math.max(...timeline.times.map((t, i) => shownSum(i)))")
        assert most == 31 << 20
        view.expect_clean()


@suite.test
def out_of_memory_is_told(case):
    """A trace that ends out of memory says so, one with a limit too."""
    failed = dict(case.data, failure={"time": case.data["end"], "bytes": 3 << 30, "name": 0}, dropped=12)
    failed["names"] = ["</script><b>logits"] + case.data["names"][1:]
    with case.open(case.page_of(failed, "failed.html")) as view:
        note = view.page.locator("#note").inner_text()
        assert "</script><b>logits asked for 3.00 GiB more" in note and "12 allocations" in note
        view.expect_clean()
    with case.open() as view:
        assert not view.page.locator("#note").is_visible()


def take_screenshots(chromium, page, folder):
    sizes = {"light": {}, "dark": {"dark": True}, "phone": {"width": 390, "height": 844}}
    for name, options in sizes.items():
        with chromium.open(page, **options) as view:
            if name != "phone":
                view.page.set_viewport_size({"width": 1180, "height": 1090})
                view.page.hover("#timeline", position={"x": 860, "y": 120})
            view.screenshot(pathlib.Path(folder) / f"memory-page-{name}.png")


def main():
    if harness.missing():
        print(f"skip memory page: {harness.missing()}")
    elif len(sys.argv) == 4:
        with harness.browser() as chromium:
            take_screenshots(chromium, sys.argv[2], sys.argv[3])
    elif len(sys.argv) == 2:
        with tempfile.TemporaryDirectory() as folder, harness.browser() as chromium:
            suite.run(Case(chromium, sys.argv[1], folder))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
