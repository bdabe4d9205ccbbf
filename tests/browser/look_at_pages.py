#!/usr/bin/env python3
"""Opens pages in Chromium, 400, 1280 and 1920 pixels wide, light and dark, and on A4 paper.

usage: look_at_pages.py CHROMIUM PAGE...

axe-core finds nothing; nothing is cut or scrolls sideways but what lies in a box of its own; gate and up are drawn to
scale; a cell under the pointer says its layer, expert and value; each choice of the map shows one map; on paper no number
is broken and no table is cut. The last line is "N passed, M failed".
"""

import pathlib
import sys

import axe_core_python
from playwright.sync_api import sync_playwright

AXE = (pathlib.Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
#: axe-core judges no contrast over a gradient: the shadows at the edges of boxes are left out.
FLAT = ".wide { background: none !important }"
#: Elements wider than the window that are not in a box that scrolls.
CUT = """() => [...document.querySelectorAll('main *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width > 0 && box.right > document.documentElement.clientWidth + 1 && !e.closest('.wide');
}).map(e => e.outerHTML.slice(0, 120))"""
#: The widths that are drawn of gate and of up, in each picture that is shown.
DRAWN = """() => [...document.querySelectorAll('figure svg')].filter(e => e.getBoundingClientRect().width > 0).map(svg =>
  ['gate', 'up'].map(kind => [...svg.querySelectorAll(':scope > rect.' + kind)].reduce(
    (sum, rect) => sum + rect.getBoundingClientRect().width, 0)))"""
#: On paper: cells of numbers in more than one line, and tables wider than the page.
ON_PAPER = """() => {
  const lines = e => { const range = document.createRange(); range.selectNodeContents(e); return range.getClientRects().length; };
  const broken = [...document.querySelectorAll('.numbers td')].filter(e => /^[-0-9.e+]+$/.test(e.textContent) && lines(e) > 1);
  const cut = [...document.querySelectorAll('table')].filter(
    e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
  return [...broken.map(e => 'broken: ' + e.textContent), ...cut.map(e => 'cut: ' + e.caption.textContent)];
}"""
A4 = {"width": 718, "height": 1000}


def checks(browser, page):
    """(what, finding) of everything that is looked at; no finding is empty."""
    for width in (400, 1280, 1920):
        for scheme in ("light", "dark"):
            where = f"{page.name}, {width} pixels, {scheme}"
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
            tab = context.new_page()
            failures = []
            tab.on("console", lambda message, said=failures: said.append(message.text))
            tab.goto(page.as_uri())
            yield f"{where}: nothing is complained of", failures
            yield f"{where}: nothing is cut", tab.evaluate(CUT)
            yield f"{where}: gate and up have one size", [
                drawn for drawn in tab.evaluate(DRAWN) if abs(drawn[0] - drawn[1]) > 1 and min(drawn) > 0]
            yield f"{where}: maps", list(looked_up(tab))
            tab.add_style_tag(content=FLAT)
            tab.evaluate(AXE)
            yield f"{where}: axe-core", list(axe_findings(tab.evaluate("axe.run()")))
            context.close()
    context = browser.new_context(viewport=A4, bypass_csp=True)
    tab = context.new_page()
    tab.emulate_media(media="print")
    tab.goto(page.as_uri())
    yield f"{page.name}, on paper", tab.evaluate(ON_PAPER)
    context.close()


def axe_findings(found):
    """(rule, elements); contrasts that axe-core cannot judge, as of text in drawings, are no findings if it judges most."""
    judged = sum(len(rule["nodes"]) for rule in found["passes"] if rule["id"] == "color-contrast")
    for rule in found["violations"] + found["incomplete"]:
        if rule["id"] != "color-contrast" or rule in found["violations"] or len(rule["nodes"]) > judged:
            yield rule["id"], [node["html"][:120] for node in rule["nodes"][:3]]


def looked_up(tab):
    """What is wrong of the maps, by pointer and keyboard."""
    cells = tab.locator(".map:visible td:not(.x)")
    if cells.count() == 0:
        return
    cell = cells.first
    cell.hover()
    said = cell.locator("b").evaluate("e => getComputedStyle(e, '::before').content")
    if "layer " not in said or "expert" not in said:
        yield f"under the pointer: {said}"
    for choice in tab.locator("input[name=figure]").all():
        choice.check()
        if tab.locator(".map:visible").count() != 1:
            yield f"{tab.locator('.map:visible').count()} maps are shown by {choice.get_attribute('id')}"
    tab.locator("#numbers").check()
    shown = tab.locator(".map:visible td b").first
    if shown.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") < 10:
        yield "the numbers are too small"
    tab.locator("#numbers").uncheck()
    tab.locator("input[name=figure]").first.check()


def main():
    passed = failed = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=sys.argv[1], args=["--no-sandbox", "--disable-dev-shm-usage"])
        for page in map(pathlib.Path, sys.argv[2:]):
            for what, findings in checks(browser, page):
                passed, failed = (passed, failed + 1) if findings else (passed + 1, failed)
                for finding in findings[:5]:
                    print(f"{what}: {finding}")
        browser.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
