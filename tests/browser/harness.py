"""A headless Chromium for the tests of Quern's HTML pages, driven by playwright.

    from harness import Suite, browser

    with browser() as chromium:
        with chromium.open(path_of_html, width=390, dark=True) as view:
            view.page.click("#log-x")        # view.page is playwright's Page
            assert view.painted("#chart-loss") > 500
            view.screenshot("report.png")
            view.expect_clean()              # no console message, no error, no request

A test script collects functions by @suite.test and calls suite.run(), which prints a line "ok NAME" or
"FAIL NAME" for each, as the other tests of the scripts do.
"""

import contextlib
import pathlib
import shutil
import sys
import traceback

# Reads from a copy: Chromium warns in the console when the same canvas is read several times.
READ_BYTES = """
            const copy = document.createElement("canvas");
            copy.width = canvas.width;
            copy.height = canvas.height;
            const context = copy.getContext("2d", { willReadFrequently: true });
            context.drawImage(canvas, 0, 0);
            const bytes = context.getImageData(0, 0, copy.width, copy.height).data;"""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def missing():
    """The missing package and its install command; empty when the tests can run."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install playwright"
    if not any(shutil.which(name) for name in CHROMIUM):
        return "chromium is not installed: apt install chromium"
    return ""


class View:
    """An open page, with its console messages and its requests."""

    def __init__(self, page):
        self.page = page
        self.messages = []  # of the console, and uncaught errors
        self.requests = []  # except for the page's own file and data embedded in it
        page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        page.on("request", self._note)

    def _note(self, request):
        if request.url != self._address and not request.url.startswith(("data:", "blob:")):
            self.requests.append(request.url)

    def load(self, path):
        self._address = pathlib.Path(path).resolve().as_uri()
        self.page.goto(self._address, wait_until="load")

    def expect_clean(self):
        assert not self.messages, f"console: {self.messages}"
        assert not self.requests, f"requests: {self.requests}"

    def painted(self, selector):
        """Counts the pixels of a canvas that are not transparent."""
        return self.page.eval_on_selector(selector, """canvas => {
            %s
            let count = 0;
            for (let i = 3; i < bytes.length; i += 4) count += bytes[i] > 0;
            return count;
        }""" % READ_BYTES)

    def has_color(self, selector, color):
        """Counts the opaque pixels of a canvas with the color "#rrggbb"."""
        return self.page.eval_on_selector(selector, """(canvas, color) => {
            %s
            const wanted = [1, 3, 5].map(i => parseInt(color.slice(i, i + 2), 16));
            let count = 0;
            for (let i = 0; i < bytes.length; i += 4)
                count += bytes[i + 3] === 255 && wanted.every((c, j) => Math.abs(bytes[i + j] - c) <= 2);
            return count;
        }""" % READ_BYTES, color)

    def picture(self, selector):
        """The canvas's pixels, to compare with others."""
        return self.page.eval_on_selector(selector, "canvas => canvas.toDataURL()")

    def overflow(self):
        """By how many pixels the page is wider than the screen."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def screenshot(self, path, **options):
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(path), **options)


class Chromium:
    def __init__(self, engine):
        self.engine = engine

    @contextlib.contextmanager
    def open(self, path, width=1280, height=900, dark=False, scale=1):
        """A View of the HTML file at `path`. `scale`: device pixels a CSS pixel."""
        context = self.engine.new_context(
            viewport={"width": width, "height": height}, device_scale_factor=scale, locale="en-US",
            color_scheme="dark" if dark else "light", has_touch=width < 600, timezone_id="UTC")
        try:
            view = View(context.new_page())
            view.load(path)
            yield view
        finally:
            context.close()


@contextlib.contextmanager
def browser():
    from playwright.sync_api import sync_playwright
    program = next(path for path in map(shutil.which, CHROMIUM) if path)
    with sync_playwright() as playwright:
        # Containers have no user namespaces for its sandbox, and a small /dev/shm.
        engine = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"])
        try:
            yield Chromium(engine)
        finally:
            engine.close()


class Suite:
    def __init__(self):
        self.tests = []

    def test(self, function):
        self.tests.append(function)
        return function

    def run(self, *arguments):
        """Calls each test with `arguments`; exits with status 1 when one failed."""
        failures = 0
        for function in self.tests:
            name = (function.__doc__ or function.__name__).strip().split("\n")[0]
            try:
                function(*arguments)
                print(f"ok {name}", flush=True)
            except Exception:
                failures += 1
                print(f"FAIL {name}")
                print("".join(f"  | {line}\n" for line in traceback.format_exc().split("\n")), flush=True)
        sys.exit(1 if failures else 0)
