"""The leaderboard's page in Chromium: it sorts, filters, tells what a dot is, and fits a phone.

    check_board.py BOARD_TEST                       on the page that board_board_test leaves
    check_board.py --page PAGE.html [--shots FOLDER]
"""
import argparse
import os
import pathlib
import subprocess
import tempfile

from browsing import CHROMIUM, PHONE, sync_playwright

LOOKS = {"light": {"viewport": {"width": 1440, "height": 1000}, "color_scheme": "light"},
         "dark": {"viewport": {"width": 1440, "height": 1000}, "color_scheme": "dark"},
         "phone": PHONE}


def column(page, table, index):
    """What is shown in a column of a table, rows that are hidden left out."""
    return page.evaluate("""([t, i]) => [...document.querySelectorAll("table")[t].tBodies[0].rows]
        .filter(r => !r.hidden).map(r => r.cells[i].dataset.v ?? r.cells[i].textContent)""", [table, index])


def numbers(texts):
    return [float(t) for t in texts if t != "n/a"]


def check_sorting(page):
    heading = page.locator("table").first.locator("th", has_text="bytes/token")
    before = sorted(numbers(column(page, 0, 1)))
    heading.click()
    assert numbers(column(page, 0, 1)) == before[::-1], "the largest first"
    assert heading.get_attribute("aria-sort") == "descending"
    heading.click()
    assert numbers(column(page, 0, 1)) == before, "then the smallest"
    page.locator("table").first.locator("th", has_text="method").click()
    names = column(page, 0, 0)
    assert len(names) == len(before) and names[0].lower()[0] <= names[-1].lower()[0]


def check_filters(page):
    def shown():
        return page.evaluate("""() => ({rows: [...document.querySelectorAll("tbody tr")].filter(r => r.offsetParent).length,
            dots: document.querySelectorAll("section:not([hidden]) circle:not(.off)").length})""")
    everything = shown()
    page.uncheck("input[name=kind][value=anchor]")
    fewer = shown()
    assert 0 < fewer["rows"] < everything["rows"] and fewer["dots"] < everything["dots"], fewer
    assert str(fewer["rows"]) in page.inner_text("output")
    page.check("input[name=kind][value=anchor]")
    page.check("input[name=track][value=blind]")
    assert shown()["rows"] < everything["rows"] and not page.is_visible("#aware")
    page.check("input[name=track][value='']")
    page.fill("input[name=name]", "STREAM")
    assert all("stream" in name for name in column(page, 0, 0))
    page.fill("input[name=name]", "")
    page.select_option("select[name=limit]", "35")
    share = page.evaluate("() => [...document.querySelectorAll('tbody tr')].filter(r => !r.hidden).map(r => +r.dataset.share)")
    assert share and max(share) <= 0.35
    page.select_option("select[name=limit]", "")
    page.check("input[name=best]")
    assert page.evaluate("() => [...document.querySelectorAll('tbody tr')].every(r => r.hidden || r.className === 'best')")
    page.uncheck("input[name=best]")
    assert shown() == everything


def check_dots(page):
    dot = page.locator("circle.best").last
    dot.hover()
    tip = page.inner_text("#tip")
    assert page.is_visible("#tip") and "bytes per token" in tip, tip
    dot.click()
    row = page.url.split("#")[1]
    assert page.locator(f"tr[id='{row}'] td").first.inner_text() in tip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("board_test", nargs="?")
    parser.add_argument("--page")
    parser.add_argument("--shots", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = args.page or f"{folder}/board.html"
        if not args.page:
            subprocess.run([args.board_test, "--gtest_filter=Report.ThePageCanBeSortedAndFiltered"], check=True,
                           env={**os.environ, "QUIRE_BOARD_PAGE": path}, stdout=subprocess.DEVNULL)
        url = pathlib.Path(path).resolve().as_uri()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, look in LOOKS.items():
            page, complaints = browser.new_context(**look).new_page(), []
            page.on("pageerror", lambda e: complaints.append(str(e)))
            page.on("console", lambda m: m.type in ("error", "warning") and complaints.append(m.text))
            page.on("request", lambda r: r.url.startswith("file:") or complaints.append(f"went to {r.url}"))
            page.goto(url)
            if args.shots:
                page.screenshot(path=args.shots / f"{name}.png", full_page=name == "phone")
            wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{name}: {wide} pixels too wide"
            if name == "light":
                check_sorting(page)
                check_filters(page)
                check_dots(page)
            assert not complaints, complaints
        browser.close()
    print("the page sorts, filters, tells and fits")


if __name__ == "__main__":
    main()
