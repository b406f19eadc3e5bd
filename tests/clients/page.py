"""Uses the page of a running server in Chromium, by keyboard alone, in both colour schemes and at two widths.

Usage: page.py BASE_URL [--shots DIR] [--browser PATH]

The server runs without API keys, and with a context that it cannot fill in minutes: an answer as long as that lasts until it
is stopped. Needs `pip install playwright`, and the path of a Chromium or `playwright install chromium`. Ends with 0 when
everything held, and else with the first thing that did not.
"""

import argparse
import json
import pathlib
import re
import sys
import time

from playwright.sync_api import sync_playwright

PROMPT = "Write def total(items) and def count(items) in Python, each with a loop over items."
DEADLINE_S = 120
# More at once than any model writes in a second.
FLOOD = [f"{i} = {i * i}{chr(10) if i % 9 == 0 else ', '}" for i in range(20000)]
STOPS = ["log", "prompt", "send", "clear", "colour", "strategy", "policy", "temperature", "limit", "key", "live"]


def check(held, what):
    if not held:
        sys.exit(f"FAILED: {what}")


def press_until(page, key, wanted, most=40):
    """Presses a key until the element with this id has the focus."""
    for _ in range(most):
        if page.evaluate("document.activeElement.id") == wanted:
            return
        page.keyboard.press(key)
    sys.exit(f"FAILED: {key} does not lead to #{wanted}")


def until(page, held):
    """Waits for an expression to hold. The page's policy forbids the driver's own way, which compiles text in the page."""
    end = time.monotonic() + DEADLINE_S
    while not page.evaluate(held):
        check(time.monotonic() < end, f"it never came to {held}; {page.inner_text('#health')}; {page.inner_text('#log')[-300:]}")
        page.wait_for_timeout(50)


def wait_idle(page):
    until(page, "!document.getElementById('send').disabled")


def fits(page, where):
    width, inner = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    check(width <= inner, f"{where}: the page is {width} px wide in a window of {inner} px")


def stops(page):
    """Tab leads through the page in the order in which it is read, and shows where it is."""
    page.keyboard.press("Tab")
    check(page.evaluate("document.activeElement.className") == "skip", "the first stop of Tab skips to the message")
    found = []
    for _ in STOPS:
        page.keyboard.press("Tab")
        found.append(page.evaluate("document.activeElement.id"))
        style, width = page.evaluate(
            "(({ outlineStyle, outlineWidth }) => [outlineStyle, parseFloat(outlineWidth)])(getComputedStyle(document.activeElement))"
        )
        check(style != "none" and width >= 2, f"the focus is seen at #{found[-1]}: {style}, {width} px")
    check(found == STOPS, f"stops of Tab: {found}")


def refused(page):
    """An error is read out in the server's words, and what was not answered can be sent again."""
    why = "the model is resting; ask again in a minute"
    # In the page itself: what a driver intercepts from outside has passed it by on a busy machine.
    page.evaluate(
        """(why) => {
        const ask = window.fetch;
        window.fetch = (url, how) => {
          if (!String(url).endsWith('/v1/chat/completions')) return ask(url, how);
          window.fetch = ask;
          return Promise.resolve(Response.json({ error: { message: why } }, { status: 503 }));
        };
        }""",
        why,
    )
    page.keyboard.press("Enter")
    until(page, "document.querySelector('article.assistant .error')")
    wait_idle(page)
    check(page.locator(".error[role=alert]").inner_text() == why, "the error is the server's")
    check("waiting" not in page.locator("article.assistant").inner_text(), "nothing is waited for behind an error")
    check(page.locator("#prompt").input_value() == PROMPT, "what was not answered is in the message again")


def chat(page, base, strategies, where, shot):
    """A chat with nothing but keys: one turn refused, one answered, one stopped."""
    press_until(page, "Shift+Tab", "prompt")
    page.keyboard.type("two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("lines")
    check(page.locator("#prompt").input_value() == "two\nlines", "Shift and Enter make a new line")
    page.keyboard.press("Control+A")
    page.keyboard.type(PROMPT)
    refused(page)
    fits(page, where + " with an error")
    contrast(page, where + " with an error")
    shot("error")
    press_until(page, "Tab", "clear")
    page.keyboard.press("Enter")
    check(page.locator("article").count() == 0, "a new chat is empty")
    press_until(page, "Tab", "strategy")
    page.keyboard.press("End")
    check(page.evaluate("document.getElementById('strategy').value") == strategies[-1], "End chooses the last strategy")
    press_until(page, "Tab", "policy")
    page.keyboard.press("End")
    check(page.evaluate("document.getElementById('policy').value") == "fixed", "End chooses a fixed window")
    press_until(page, "Tab", "width")
    page.keyboard.press("Control+A")
    page.keyboard.type("6")
    press_until(page, "Tab", "limit")
    page.keyboard.press("Control+A")
    page.keyboard.type("120")
    press_until(page, "Shift+Tab", "prompt")
    with page.expect_request(base + "/v1/chat/completions") as asked:
        page.keyboard.press("Enter")
    wish = asked.value.post_data_json
    check(wish["speculative"]["strategy"] == strategies[-1], f"the strategy is sent: {wish}")
    check(wish["speculative"]["window"] == {"policy": "fixed", "initial": 6, "max": 6}, f"the window is sent: {wish}")
    check(wish["max_tokens"] == 120, f"the limit is sent: {wish}")
    wait_idle(page)
    answer = page.locator("article.assistant").first
    check(page.locator(".error").count() == 0, f"no error: {answer.inner_text()}")
    spans = answer.locator("span[title]")
    sources = set(spans.evaluate_all("all => all.map(one => one.title)"))
    check("target" in sources, f"tokens of the target are marked: {sources}")
    drafters = {name for name in ("mtp", "suffix") if any(name in strategy for strategy in strategies)}
    check(not drafters or sources & drafters, f"drafted tokens are marked: {sources}")
    for name in sources - {"target"}:
        line = answer.locator(f"span.{name}").first.evaluate("one => getComputedStyle(one).textDecorationLine")
        check(line == "underline", f"{name} is not told by its colour alone: {line}")
    figures = answer.locator(".figures").inner_text()
    check(re.search(r"\d+ tokens\s· [\d,.]+ tokens/s\s· first after [\d,]+ ms", figures), f"figures: {figures}")
    check(not drafters or "drafts accepted" in figures, f"acceptance: {figures}")
    check("complete" in page.locator("#spoken").inner_text(), "the end of an answer is announced")
    check(page.evaluate("document.activeElement.id") == "prompt", "the focus goes back to the message")

    # However short the model would be.
    page.evaluate(
        """() => {
        const ask = window.fetch;
        const endless = (how) => ({ ...how, body: JSON.stringify({ ...JSON.parse(how.body), ignore_eos: true }) });
        window.fetch = (url, how) => ask(url, String(url).endsWith('/v1/chat/completions') ? endless(how) : how);
        }"""
    )
    page.keyboard.type("And now write all of it once more, a hundred times.")
    press_until(page, "Tab", "limit")
    page.keyboard.press("Control+A")
    page.keyboard.type(page.locator("#limit").get_attribute("max"))
    press_until(page, "Shift+Tab", "prompt")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('article.assistant')[1]?.querySelector('span[title]')")
    until(page, "document.querySelectorAll('#slots li.busy').length > 0")
    shot("busy")
    page.keyboard.press("Escape")
    wait_idle(page)
    check("ended: stopped" in page.locator("article.assistant").nth(1).inner_text(), "Escape stops an answer")
    until(page, "document.querySelectorAll('#slots li.busy').length === 0")


def flood(browser, base):
    """However fast a model writes, all of it is shown, and the page hears a key in between."""
    context = browser.new_context()
    page = context.new_page()
    events = []
    for text in FLOOD:
        told = {"tokens": [{"text": text, "source": "target"}], "drafted": 0, "accepted": 0}
        events.append(json.dumps({"choices": [{"delta": {"content": text}}], "speculation": told}))
    stream = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
    page.goto(base + "/")
    until(page, "document.querySelectorAll('#strategy option').length > 0")
    page.locator("#prompt").press_sequentially("All of it.")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('article.assistant .figures').length === 1")
    wait_idle(page)
    shown = page.locator("article.assistant .text").inner_text()
    check(shown == "".join(FLOOD), f"all of it is shown: {len(shown)} characters of {len(''.join(FLOOD))}, {shown[-40:]!r} at the end")
    # The page itself presses the key, with the first frame that shows anything: no driver is too late for that.
    page.evaluate(
        """() => {
        const look = () => {
          if (!document.querySelectorAll('article.assistant')[1]?.querySelector('span')) return requestAnimationFrame(look);
          document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }));
        };
        requestAnimationFrame(look);
        }"""
    )
    page.keyboard.type("Some of it.")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('article.assistant').length === 2")
    wait_idle(page)
    answer = page.locator("article.assistant").nth(1)
    check("ended: stopped" in answer.locator(".figures").inner_text(), "Escape stops a flood")
    check(len(answer.locator(".text").inner_text()) < len(shown) / 2, "Escape stops a flood at once")
    context.close()


def still(browser, base):
    """Nothing moves where that is not wanted."""
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(base + "/")
    moving = page.evaluate(
        """() => [...document.querySelectorAll('*')].map((one) => getComputedStyle(one))
        .filter((how) => how.transitionDuration !== '0s' || how.animationName !== 'none').length"""
    )
    check(moving == 0, f"{moving} things move although less motion is asked for")
    context.close()


def board(page, base):
    """The dashboard shows what the server says."""
    until(page, "document.querySelectorAll('#systems tr').length === 11")
    slots = page.request.get(base + "/slots").json()
    check(page.locator("#slots li").count() == len(slots), "every slot is shown")
    until(page, "document.getElementById('pages-text').textContent.startsWith('0 used')")
    text = page.locator("#pages-text").inner_text()
    check(re.match(r"0 used, [\d,]+ cached, [\d,]+ free", text), f"pages: {text}")
    check(page.locator("#proposers tr").count() == 2, "both proposers are shown")
    check(page.locator("#health").inner_text() == "ready", "the state of the server is shown")


def labelled(page):
    """Every control has a name that is read out."""
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('input, select, textarea, button')]
        .filter(one => !(one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim()))
        .map(one => one.id)"""
    )
    check(nameless == [], f"controls without a label: {nameless}")


def contrast(page, where):
    """Text of tokens against what is behind it: at least 4.5 to 1."""
    worst = page.evaluate(
        """() => {
        const light = (rgb) => {
          const [r, g, b] = rgb.match(/[\\d.]+/g).map(Number).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const behind = (one) => {
          for (let at = one; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (colour !== 'rgba(0, 0, 0, 0)') return colour;
          }
          return 'rgb(255, 255, 255)';
        };
        const ratio = (one) => {
          const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
          return (a + 0.05) / (b + 0.05);
        };
        const all = [...document.querySelectorAll('h1, h2, h3, p, label, li, span, td, th, dt, dd, button, input, select, textarea')];
        return all.filter((one) => one.offsetParent && !one.disabled && one.textContent.trim()).map((one) => [ratio(one), one.tagName + '.' + one.className + ' ' + one.textContent.slice(0, 30)]).sort((x, y) => x[0] - y[0])[0];
        }"""
    )
    check(worst[0] >= 4.5, f"{where}: contrast {worst[0]:.2f} of {worst[1]!r}")


def run(browser, base, strategies, scheme, width, shots):
    where = f"{scheme}-{width}"
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(base + "/")
    until(page, "document.querySelectorAll('#strategy option').length > 0")
    offered = page.eval_on_selector_all("#strategy option", "all => all.slice(1).map(one => one.value)")
    check(offered == strategies, f"strategies: {offered} instead of {strategies}")
    fits(page, where + " at first")

    def shot(name, **how):
        if shots:
            page.screenshot(path=shots / f"{where}-{name}.png", **how)

    shot("first", full_page=True)
    stops(page)
    chat(page, base, strategies, where, shot)
    board(page, base)
    labelled(page)
    fits(page, where)
    contrast(page, where)
    page.evaluate("document.getElementById('log').scrollTop = 0; window.scrollTo(0, 0)")
    shot("answer", full_page=True)
    page.keyboard.press("Tab")
    shot("focus")
    foreign = [url for url in asked if not url.startswith((base + "/", "data:"))]
    check(foreign == [], f"{where}: requests to others: {foreign}")
    check(said == [], f"{where}: the console says something: {said}")
    context.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("--shots", type=pathlib.Path)
    parser.add_argument("--browser")
    args = parser.parse_args()
    base = args.base.rstrip("/")
    if args.shots:
        args.shots.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.browser)
        context = browser.new_context()
        strategies = context.request.get(base + "/v1/models").json()["data"][0]["meta"]["strategies"]
        for scheme in ("light", "dark"):
            for width in (1280, 360):
                run(browser, base, strategies, scheme, width, args.shots)
        flood(browser, base)
        still(browser, base)
        browser.close()
    print(f"ok: chat by keyboard, dashboard, labels, contrast and width, in both schemes at 1280 and 360 px; {len(FLOOD)} tokens at once")


if __name__ == "__main__":
    main()
