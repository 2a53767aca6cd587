#!/usr/bin/env python3
"""Draws a memory.pickle with PyTorch's own MemoryViz.js in headless Chromium, and checks the drawing.

Usage: draw_memory_viz.py SNAPSHOT MEMORYVIZ_JS D3_MODULES OUTPUT.png

MEMORYVIZ_JS is torch/utils/viz/MemoryViz.js of PyTorch's sources (Debian: apt-get source pytorch). It
imports d3 5 from a CDN; D3_MODULES holds those modules (Debian: /usr/share/nodejs after installing
node-d3), so nothing is fetched. Needs playwright from PyPI, and chromium.

Fails unless the timeline, without an error on the console, draws every allocation that is alive in the
end with its bytes, and names the frames of one under the mouse (the largest that a module made, shown in
the screenshot); and unless the allocator's history is drawn too.
"""

import json
import pathlib
import pickle
import sys

from playwright.sync_api import sync_playwright

HOST = "http://viz.local"
CDN = "https://cdn.skypack.dev/"
DRAWN = """() => [...document.querySelectorAll('polygon')].map(p => p.__data__).filter(d => d && 'elem' in d)
  .map(d => ({elem: d.elem, size: d.size, end: d.timesteps.at(-1)}))"""
HOVER = """elem => {
  const shape = [...document.querySelectorAll('polygon')].find(p => p.__data__ && p.__data__.elem === elem);
  shape.dispatchEvent(new MouseEvent('mouseover', {bubbles: true, view: window}));
  shape.dispatchEvent(new MouseEvent('mousedown', {bubbles: true, view: window}));
  return document.querySelector('pre').innerText; }"""


def page_text(modules):
    names = [folder.name for folder in modules.iterdir() if (folder / "src" / "index.js").exists()]
    imports = {name: f"{HOST}/d3/{name}/src/index.js" for name in names}
    imports[CDN + "d3@5"] = f"{HOST}/d3/d3/index.js"
    imports |= {f"{CDN}{name}@1": imports[name] for name in ("d3-axis", "d3-scale", "d3-zoom", "d3-brush")}
    return f"""<!DOCTYPE html><html><head><script type="importmap">{json.dumps({"imports": imports})}</script></head>
<body><script type="module">
import {{add_remote_files}} from "{HOST}/MemoryViz.js";
add_remote_files([{{name: "memory.pickle", url: "{HOST}/memory.pickle"}}]);
</script></body></html>"""


def serve(route, snapshot, viewer, modules):
    path = route.request.url.removeprefix(HOST)
    if path == "/":
        return route.fulfill(body=page_text(modules), content_type="text/html")
    if path == "/MemoryViz.js":
        return route.fulfill(body=viewer.read_bytes(), content_type="text/javascript")
    if path == "/memory.pickle":
        return route.fulfill(body=snapshot.read_bytes(), content_type="application/octet-stream")
    if path == "/d3/d3/dist/package.js":  # made when d3 is built; not needed
        return route.fulfill(body="export const version = '5';", content_type="text/javascript")
    if path.startswith("/d3/"):  # an import may leave .js away
        file = modules / path.removeprefix("/d3/")
        file = file if file.suffix == ".js" else file.with_name(file.name + ".js")
        if file.exists():
            return route.fulfill(body=file.read_bytes(), content_type="text/javascript")
    if path == "/favicon.ico":
        return route.fulfill(body=b"")
    return route.abort()


def live_allocations(snapshot):
    blocks = [b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    return sorted(b["requested_size"] for b in blocks)


def main(snapshot, viewer, modules, output):
    content = pickle.loads(snapshot.read_bytes())
    expected = live_allocations(content)
    changes = [e for e in content["device_traces"][0] if e["action"] in ("alloc", "free_completed")]
    problems = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 760})
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.route("**/*", lambda route: serve(route, snapshot, viewer, modules))
        page.goto(HOST + "/")
        page.wait_for_selector("polygon", timeout=60000)
        drawn = page.evaluate(DRAWN)
        end = max(d["end"] for d in drawn if d["elem"] != "summarized")
        live = [d for d in drawn if d["elem"] != "summarized" and d["end"] == end]
        for shape in sorted(live, key=lambda d: -d["size"]):
            text = page.evaluate(HOVER, shape["elem"])
            if "module:0:" in text:
                break
        page.screenshot(path=output)
        page.locator("select").nth(1).select_option("Allocator State History")
        page.wait_for_function(f"document.querySelectorAll('svg g g rect').length >= {2 * len(expected)}", timeout=60000)
        browser.close()
    if problems:
        sys.exit("on the console: " + "; ".join(problems))
    sizes = sorted(d["size"] for d in live)
    if changes[-1]["action"] == "free_completed":  # its shape reaches the end too
        sizes.remove(changes[-1]["size"])
    if sizes != expected:
        sys.exit(f"{len(live)} live allocations are drawn, the snapshot has {len(expected)}")
    if "allocation:0:" not in text:
        sys.exit(f"an allocation has no frames: {text}")
    print(f"{len(drawn) - 1} allocations drawn, the {len(expected)} live ones with all of their {sum(expected)} bytes")
    print(text)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*(pathlib.Path(argument) for argument in sys.argv[1:]))
