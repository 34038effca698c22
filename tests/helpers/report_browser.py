"""Visits pages of reports in a real Chromium, without a network."""

CONTRAST = """() => {
  const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map((v) => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c)) return c; } return "rgb(255, 255, 255)"; };
  return [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() &&
      [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
    .map((e) => { const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), e.tagName, e.className]; }).sort((x, y) => x[0] - y[0])[0];
}"""


class Visit:
    """A page opened from disk with every request but its own aborted, and all it asked for and complained about."""

    def __init__(self, browser, path, width=390, **context):
        self.asked, self.complaints, self.path = [], [], path
        self.context = browser.new_context(viewport={"width": width, "height": 800}, **context)
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.page.route("**/*", self._answer)
        self.page.on("console", lambda m: self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("dialog", lambda d: (self.complaints.append(d.message), d.dismiss()))
        self.page.on("framenavigated", lambda f: self.asked.append(f.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_timeout(300)  # what a script or refresh would do, it would do by now

    def _answer(self, route):
        self.asked.append(route.request.url)
        (route.continue_ if route.request.url == self.path.as_uri() else route.abort)()

    def check(self):
        """Nothing ran, nothing else was asked for, images are there, and the page is no wider than the window."""
        assert {url.partition("#")[0] for url in self.asked if not url.startswith("data:")} == {self.path.as_uri()}
        assert self.complaints == []
        assert self.page.evaluate("window.ran") is None
        assert self.page.evaluate("[...document.images].every(i => i.alt.trim() && i.naturalWidth > 0)")
        width = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1]

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()
