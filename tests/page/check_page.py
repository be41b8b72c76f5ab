"""The page in Chromium: a chat turn, a second one that hits, the tree that shows it; on a desktop, a phone and in the dark.

    check_page.py mock PAGE.html [--shots FOLDER]            against a server that is made up (mock_server.py)
    check_page.py real QUIRE MODEL.gguf [--shots FOLDER]     against `quire serve`
"""
import argparse
import contextlib
import pathlib
import re
import subprocess
import tempfile
import time

from browsing import CHROMIUM, PHONE, skip, sync_playwright

DESKTOP = {"viewport": {"width": 1440, "height": 960}}
DARK = {**DESKTOP, "color_scheme": "dark"}
SYSTEM = "You are the night librarian of a small town. You answer in one short sentence, and you are always polite to visitors. " * 3


class Visit:
    """One browser page on our server; whatever it complains about, and wherever else it goes, is a failure."""

    def __init__(self, browser, url, kind, shots, name, ready=".state.up, .state.busy"):
        self.url, self.shots, self.name, self.complaints = url, shots, name, []
        self.page = browser.new_context(**kind).new_page()
        self.page.set_default_timeout(120_000)
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.complaints.append(m.text))
        self.page.on("request", lambda r: r.url.startswith((url, "data:")) or self.complaints.append(f"went to {r.url}"))
        self.page.goto(url)
        self.page.wait_for_selector(ready)
        if MOCK is None:  # a real model may have much to say
            self.page.evaluate("document.getElementById('tokens').value = '48'")

    def until(self, condition):
        """Waits for an expression to hold. (Playwright's own way evaluates inside the page, which its policy forbids.)"""
        for _ in range(1200):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(f"{self.name}: {condition} did not come true")

    def say(self, text):
        """Asks, waits for the whole answer, and returns (cached, prompt) tokens of its footer."""
        before = self.page.locator(".foot").count()
        self.page.fill("#words", text)
        self.page.press("#words", "Enter")
        self.until(f"document.querySelectorAll('.foot').length > {before}")
        foot = self.page.locator(".foot").last.inner_text()
        found = re.search(r"([\d,]+) of ([\d,]+) prompt tokens cached", foot)
        assert found, f"the footer reads {foot!r}"
        assert re.search(r"first token [\d.]+ m?s", foot), foot
        return tuple(int(n.replace(",", "")) for n in found.groups())

    def shot(self, what):
        if self.shots:
            self.page.wait_for_timeout(500)  # what moves has come to rest
            self.page.screenshot(path=self.shots / f"{self.name}-{what}.png")

    def fits(self):
        wide = self.page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], f"{self.name}: the page is {wide[0]} wide, the window {wide[1]}"

    def leave(self):
        assert not self.complaints, self.complaints
        self.page.context.close()


def check_desktop(browser, url, shots):
    visit = Visit(browser, url, DESKTOP, shots, "desktop")
    page = visit.page
    visit.shot("welcome")
    page.click("#options")
    page.fill("#system", SYSTEM)
    page.click("#options")
    first = visit.say("Which book would you lend to someone who cannot sleep?")
    second = visit.say("And one for the morning?")
    assert second[1] > first[1], f"the second prompt repeats the first: {first}, {second}"
    assert second[0] > 0.5 * first[1], f"the second turn hits: {first}, {second}"

    visit.until("[...document.querySelectorAll('.node .text')].some((n) => n.textContent.includes('night librarian'))")
    end = time.monotonic() + 20  # the tree is looked at every other second
    while True:
        page.mouse.move(1, 1)
        node = page.locator(".node", has_text="night librarian").first
        node.hover()
        detail = page.locator("#tree-detail").inner_text()
        if re.search(r"[1-9]\d* hit", detail):
            break
        assert time.monotonic() < end, f"the tree shows the hit: {detail!r}"
        time.sleep(0.3)
    visit.until("document.querySelectorAll('.request').length >= 2")
    visit.shot("two-turns")
    node.click()
    page.wait_for_selector(".crumbs button")
    page.keyboard.press("Escape")
    visit.until("!document.querySelector('.crumbs button')")

    page.locator("button.foot").last.click()
    page.wait_for_selector(".explain .figures")
    explained = page.locator(".explain").inner_text()
    assert f"{second[1]:,} prompt tokens" in explained, explained
    assert page.locator(".strip .part").count() >= 2, "segments are shown"
    visit.shot("explain")

    # The cache after an edit: everything before the changed message is still there.
    page.locator(".turn.user").last.hover()
    page.locator(".turn.user .edit").last.click()
    assert page.input_value("#words") == "And one for the morning?"
    edited = visit.say("And one for a rainy afternoon?")
    assert edited[0] > 0.5 * first[1], f"an edit hits what stands before it: {edited}"
    visit.fits()
    visit.leave()


def check_hostile_words(browser, url, shots):
    visit = Visit(browser, url, DESKTOP, shots, "hostile")
    visit.say("<img src=x onerror=\"document.title='taken'\"> <b>bold</b>")
    visit.page.wait_for_timeout(1500)
    assert visit.page.locator(".talk img, .talk .turn b, .tree img").count() == 0, "words are never read as HTML"
    assert visit.page.title() != "taken"
    visit.leave()


def check_dark(browser, url, shots):
    visit = Visit(browser, url, DARK, shots, "dark")
    visit.say("Why is the sky blue?")
    channels = [int(c) for c in re.findall(r"\d+", visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))]
    assert max(channels[:3]) < 60, f"dark is dark: {channels}"
    visit.page.wait_for_timeout(1200)
    visit.shot("chat")
    visit.leave()


def check_phone(browser, url, shots):
    visit = Visit(browser, url, PHONE, shots, "phone")
    visit.say("Name a colour.")
    visit.fits()
    visit.shot("chat")
    for view, part in (("cache", "#tree .node"), ("requests", ".request")):
        visit.page.click(f"[data-show={view}]")
        visit.page.locator(part).first.wait_for(state="visible")
        visit.fits()
        visit.shot(view)
    assert not visit.page.locator("#words").is_visible()
    visit.leave()


def check_trouble(browser, url, shots):
    """A refusal is shown in the server's words; Stop ends an answer and keeps what has come."""
    visit = Visit(browser, url, DESKTOP, shots, "trouble")
    page = visit.page
    page.fill("#words", "please fail")
    page.press("#words", "Enter")
    page.wait_for_selector(".said.problem")
    assert "queue is full" in page.locator(".said.problem").inner_text()
    visit.complaints.clear()  # the browser notes the 429
    page.fill("#words", "tell me more")
    page.press("#words", "Enter")
    page.wait_for_selector(".said.growing")
    page.click("#send.stop")
    page.wait_for_selector(".foot")
    assert "stopped" in page.locator(".foot").inner_text()
    assert page.locator(".turn.answer .said").last.inner_text().startswith("Sunlight")
    # Who stops an answer sees no failure, not in the list either.
    assert page.locator(".said.problem").count() == 1, "only the refusal is red"
    visit.until("[...document.querySelectorAll('.request .chip')].some((c) => c.textContent === 'stopped')")
    assert page.locator(".chip.failed").count() == 0
    visit.shot("stopped")
    page.fill("#words", "and stop before the first word")
    page.press("#words", "Enter")
    page.click("#send.stop")
    page.wait_for_selector("#send:not(.stop)")
    assert page.locator(".said.problem").count() == 1
    # What was refused is not asked again with the next question.
    assert [m["content"] for m in MOCK.bodies[-1]["messages"] if m["role"] == "user"][0] == "tell me more"
    visit.leave()


def check_cut(browser, url, shots):
    """An answer that is cut says so; without a limit none is sent, nor a temperature."""
    visit = Visit(browser, url, DESKTOP, shots, "cut")
    visit.say("Why is the sky blue?")
    assert "cut" not in visit.page.locator(".foot").last.inner_text()
    sent = MOCK.bodies[-1]
    assert "max_tokens" not in sent and "temperature" not in sent, sent
    visit.page.click("#options")
    assert "0.6" in visit.page.get_attribute("#temperature", "placeholder"), "the model's own is shown"
    visit.page.fill("#tokens", "5")
    visit.page.fill("#temperature", "0")
    visit.say("And the sea?")
    assert "cut after 5 tokens" in visit.page.locator(".foot").last.inner_text()
    assert (MOCK.bodies[-1]["max_tokens"], MOCK.bodies[-1]["temperature"]) == (5, 0)
    visit.shot("footer")
    visit.leave()


def check_reload(browser, url, shots):
    """The conversation outlives a reload, and goes on where it was."""
    visit = Visit(browser, url, DESKTOP, shots, "reload")
    page = visit.page
    page.click("#options")
    page.fill("#system", "Be brief.")
    page.click("#options")
    visit.say("Name a colour.")
    foot = page.locator(".foot").inner_text()
    page.reload()
    page.wait_for_selector(".turn.answer")
    assert page.locator(".turn.user .said").inner_text() == "Name a colour."
    assert page.locator(".turn.answer .said").inner_text().startswith("Sunlight")
    assert page.locator(".foot").inner_text() == foot
    assert not page.locator("#welcome").is_visible()
    visit.shot("after")
    visit.say("Another one.")
    assert [m["role"] for m in MOCK.bodies[-1]["messages"]] == ["system", "user", "assistant", "user"]
    page.click("#fresh")
    page.reload()
    page.wait_for_selector("#welcome:visible")
    assert page.locator(".turn").count() == 0, "a new chat stays new"
    visit.leave()


def check_words(browser, url, shots):
    """No line of the list contradicts itself."""
    visit = Visit(browser, url, DESKTOP, shots, "words")
    MOCK.cache.requests.insert(0, {**MOCK.cache.requests[0], "request_id": "req_half", "reason": "never_seen",
                                   "cached_tokens": 8, "prompt_tokens": 40})
    visit.say("Something else.")
    visit.until("document.querySelector('[data-id=req_half]') !== null")
    row = visit.page.locator("[data-id=req_half]")
    assert "partial hit" in row.inner_text() and "nobody" not in row.inner_text(), row.inner_text()
    row.click()
    visit.page.wait_for_selector(".explain p")
    assert "beginning was there" in visit.page.locator(".explain p").first.inner_text()
    visit.leave()


def check_widths(browser, page_file, shots):
    """Nothing is wider than the window, whatever the model is called."""
    with mock(page_file, model="Meta-Llama-3.1-405B-Instruct-Q4_K_M-00001-of-00017-imatrix-quantized") as url:
        for width, height in ((1280, 800), (375, 812), (320, 640)):
            visit = Visit(browser, url, {"viewport": {"width": width, "height": height}}, shots, f"w{width}")
            visit.fits()
            visit.shot("welcome")
            visit.say("Name a colour, and say " + "x" * 200)
            visit.page.click("#options")
            visit.fits()
            visit.shot("chat")
            for view in ("cache", "requests"):
                if width < 1020:
                    visit.page.click(f"[data-show={view}]")
                visit.page.wait_for_timeout(300)
                visit.fits()
                visit.shot(view)
            visit.leave()


def check_sessions(browser, url, shots):
    """Sessions as a tree: forks below what they came from, opened, forked and deleted, with the keyboard alone."""
    visit = Visit(browser, url, DESKTOP, shots, "sessions")
    page = visit.page
    visit.until("document.querySelectorAll('#sessions [role=treeitem]').length >= 4")
    names = page.locator("#sessions .name").all_inner_texts()
    assert names.index("agent-7") < names.index("agent-7-plan") < names.index("agent-7-plan-b"), names
    levels = [int(t.get_attribute("aria-level")) for t in page.locator("#sessions [role=treeitem]").all()]
    assert levels[:3] == [1, 2, 3], levels
    page.locator("#sessions [role=treeitem]").first.focus()
    focused = "document.activeElement.dataset.session"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "agent-7-plan"
    page.keyboard.press("ArrowRight")
    visit.until("document.activeElement.getAttribute('aria-expanded') === 'true'")
    assert "forked from agent-7" in page.locator(".session-detail").inner_text()
    visit.shot("open")
    page.wait_for_timeout(1500)  # the page is brought up to date, and the focus stays
    assert page.evaluate(focused) == "agent-7-plan"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Fork
    visit.until("[...document.querySelectorAll('#sessions .name')].some((n) => n.textContent === 'agent-7-plan-fork1')")
    page.click("[data-session=agent-7-plan-fork1]")
    page.click(".session-detail >> text=Delete")
    visit.until("![...document.querySelectorAll('#sessions .name')].some((n) => n.textContent === 'agent-7-plan-fork1')")
    visit.leave()


def check_what_if(browser, url, shots):
    """One question with two caches, side by side with their bytes."""
    visit = Visit(browser, url, DESKTOP, shots, "whatif")
    page = visit.page
    visit.until("document.getElementById('other-format').children.length > 2")
    page.fill("#whatif-words", "Why is the sky blue?")
    page.select_option("#other-format", "int8")
    page.click("#whatif-run")
    visit.until("document.querySelectorAll('.column').length === 2")
    assert "50 % of the bytes" in page.locator("#whatif-note").inner_text(), page.locator("#whatif-note").inner_text()
    assert [n for n in page.locator(".column h3").all_inner_texts()] == ["as served", "changed"]
    page.select_option("#other-format", "")
    page.select_option("#other-budget", index=1)
    page.click("#whatif-run")
    visit.until("document.querySelector('#whatif-note').textContent.includes('25 %')")
    visit.shot("compared")
    if MOCK:
        asked = [b["kv"] for b in MOCK.bodies if "kv" in b]
        assert asked and all(kv["reuse"] == "none" and kv["write"] == "none" for kv in asked), asked  # it leaves no trace in the cache
    visit.leave()


def check_access(browser, url, shots):
    """axe-core finds nothing: names, roles, contrast, in three widths, by day and by night."""
    try:
        import axe_core_python
    except ImportError:
        print("check_access: skipped, axe-core-python is not installed")
        return
    axe = next(pathlib.Path(axe_core_python.__file__).parent.glob("axe*.js")).read_text()
    for scheme in ("light", "dark"):
        for width in (1200, 768, 375):
            kind = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "reduced_motion": "reduce"}
            visit = Visit(browser, url, kind, shots, f"access-{scheme}-{width}")
            page = visit.page
            visit.say("Name a colour.")
            page.evaluate(axe)
            for view in ("chat", "cache", "requests", "sessions") if width < 1020 else ("chat",):
                if width < 1020:
                    page.click(f"[data-show={view}]")
                if view == "sessions" or width >= 1020:
                    page.click("[data-session=agent-7]")
                page.wait_for_timeout(200)
                found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
                assert not found, [(scheme, width, view, v["id"], v["help"], [n["target"] for n in v["nodes"]][:5],
                                    v["nodes"][0].get("failureSummary")) for v in found]
                visit.fits()
                visit.shot(view)
            visit.leave()


def check_tenant(browser, page_file, shots):
    """With a key that is no administrator's the chat works; only what is locked says so."""
    with mock(page_file, tenant_key="tenant-key") as url:
        visit = Visit(browser, url, DESKTOP, shots, "tenant", ready=".state.down")
        page = visit.page
        assert "API key" in page.locator("#state").inner_text()
        page.click("#options")
        page.fill("#key", "tenant-key")
        page.press("#key", "Tab")
        page.wait_for_selector(".state.up")
        visit.say("Name a colour.")
        assert page.locator("#memory .locked").inner_text() == "This needs an admin key."
        assert page.locator("#charts .locked").count() == 1
        visit.until("document.querySelectorAll('#tree .node').length > 0 && document.querySelectorAll('.request').length > 0")
        assert page.locator("#tree .locked, #requests .locked").count() == 0
        visit.shot("locked")
        assert all("401" in c or "403" in c for c in visit.complaints), visit.complaints  # the browser notes them
        visit.complaints.clear()
        visit.leave()


def check_dead_server(browser, page_file, shots):
    with mock(page_file) as url:
        visit = Visit(browser, url, DESKTOP, shots, "dead")
        visit.page.context.set_offline(True)
        visit.page.fill("#words", "Are you there?")
        visit.page.press("#words", "Enter")
        visit.page.wait_for_selector(".said.problem")
        said = visit.page.locator(".said.problem").inner_text()
        assert "does not answer" in said and "fetch" not in said, said
        visit.page.wait_for_selector(".state.down")
        visit.shot("chat")
        visit.complaints.clear()
        visit.leave()


def check_real_tenant(browser, program, model, shots):
    """The same against the real server: keys from a file, one of them a tenant's."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:  # readable by its owner alone
        keys.write("tenant-key tenant=acme\nadmin-key-1 admin\n")
        keys.flush()
        with quire(program, model, "--api-key-file", keys.name) as url:
            visit = Visit(browser, url, DESKTOP, shots, "real-tenant", ready=".state.down")
            visit.page.click("#options")
            visit.page.fill("#key", "tenant-key")
            visit.page.press("#key", "Tab")
            visit.page.wait_for_selector(".state.up")
            visit.say("Name a colour.")
            assert visit.page.locator("#memory .locked").inner_text() == "This needs an admin key."
            visit.page.fill("#key", "admin-key-1")
            visit.page.press("#key", "Tab")
            visit.page.wait_for_selector("#memory .tier")
            visit.complaints.clear()
            visit.leave()


def check_places(browser, url, shots):
    """Memory, and below it a disk and a shared store: what they hold, what moves, on narrow and wide windows."""
    for width in (1200, 768, 375):
        visit = Visit(browser, url, {"viewport": {"width": width, "height": 900}}, shots, f"places-{width}")
        visit.page.wait_for_selector("#memory .below", state="attached")
        if visit.page.locator(".tabs button[data-show=cache]").is_visible():
            visit.page.click(".tabs button[data-show=cache]")
        assert visit.page.locator("#memory .below").count() == 2
        for name, tier in (("disk", "disk"), ("shared store", "remote")):
            text = visit.page.locator(f"#memory .below[data-tier={tier}]").inner_text()
            assert name in text and "written" in text and "loaded" in text, text
        visit.shot("cache")
        visit.fits()
        if width == 1200:  # a second turn is written and read: something moves
            visit.say("What moves?")
            visit.until("[...document.querySelectorAll('.below .way')].some((w) => parseFloat(w.textContent.slice(2)) > 0)")
        visit.leave()


def check_real_places(browser, program, model, shots):
    """What one server left on disk, another one loads, and its page says so."""
    with tempfile.TemporaryDirectory() as top:
        for turn in ("down", "up"):
            with quire(program, model, "--kv-dir", f"{top}/kv") as url:
                visit = Visit(browser, url, DESKTOP, shots, f"real-places-{turn}")
                visit.say("Tell me about the sea. " * 40)
                visit.until(f"!/^. 0 B/.test(document.querySelector('.below[data-tier=disk] .way.{turn}')?.textContent || '↓ 0 B')")
                visit.shot("cache")
                visit.leave()


def check_real_stop(browser, url, shots):
    visit = Visit(browser, url, DESKTOP, shots, "real-stop")
    # Of the most likely tokens of this answer, none ends it for a long time.
    visit.page.evaluate("document.getElementById('tokens').value = ''; document.getElementById('temperature').value = '0'")
    visit.page.fill("#words", "Write a story about a lighthouse.")
    visit.page.press("#words", "Enter")
    visit.page.wait_for_selector(".said.growing")
    visit.page.click("#send.stop")
    visit.page.wait_for_selector(".foot")
    assert "stopped" in visit.page.locator(".foot").inner_text()
    visit.until("[...document.querySelectorAll('.request .chip')].some((c) => c.textContent === 'stopped')")
    assert visit.page.locator(".said.problem, .chip.failed").count() == 0
    visit.leave()


MOCK = None  # the server that is made up, while there is one


@contextlib.contextmanager
def mock(page, **options):
    global MOCK
    import mock_server
    before, MOCK = MOCK, mock_server.start(page, busy=True, **options)
    server = MOCK
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        MOCK = before


@contextlib.contextmanager
def quire(program, model, *options):
    if not pathlib.Path(model).exists():
        skip(f"{model} is not there (scripts/fetch-model)")
    server = subprocess.Popen([program, "serve", model, "--port", "0", *options], stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r"http://[\d.]+:\d+", line):
                yield found.group() + "/"
                break
        else:
            raise SystemExit("error: quire serve ended before it listened")
    finally:
        server.terminate()
        server.wait(60)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["mock", "real"])
    parser.add_argument("of", nargs="+")
    parser.add_argument("--shots", type=pathlib.Path)
    args = parser.parse_args()
    if args.shots:
        args.shots.mkdir(parents=True, exist_ok=True)
    checks = [check_desktop, check_hostile_words, check_dark, check_phone]
    checks += [check_trouble, check_cut, check_reload, check_words, check_places, check_sessions, check_what_if, check_access] if args.kind == "mock" else [check_real_stop]
    alone = [check_widths, check_tenant, check_dead_server] if args.kind == "mock" else [check_real_tenant, check_real_places]
    server = mock(pathlib.Path(args.of[0])) if args.kind == "mock" else quire(*args.of)
    with server as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for check in checks:
            check(browser, url, args.shots)
            print(f"{check.__name__}: passed", flush=True)
        for check in alone:  # with servers of their own
            check(browser, *map(pathlib.Path, args.of), args.shots)
            print(f"{check.__name__}: passed", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
