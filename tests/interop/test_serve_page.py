"""The page of `megatron serve` in headless Chromium, driven by its DevTools protocol. Needs Debian's chromium."""
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from program import RunFolder  # noqa: E402
from server import TEMPLATE, Server  # noqa: E402

CHROMIUM = shutil.which("chromium")


class Browser:
    """A page, and JavaScript evaluated in it."""

    def __init__(self, url):
        self.profile = tempfile.TemporaryDirectory(prefix="megatron-chromium-", ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.answers, to_write = os.pipe()
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", CHROMIUM, "--headless=new", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--window-size=1200,800",
             f"--user-data-dir={self.profile.name}", "about:blank"],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.number, self.held, self.session = 0, b"", None
        self.errors = []
        page = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        self.call("Runtime.enable")
        self.call("Page.enable")
        self.call("Page.navigate", url=url)

    def message(self):
        while b"\0" not in self.held:
            piece = os.read(self.answers, 65536)
            if not piece:
                raise AssertionError("chromium has ended")
            self.held += piece
        message, self.held = self.held.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.message()).get("id") != self.number:
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(answer["params"]["exceptionDetails"])
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def value(self, script):
        """What a piece of JavaScript is, once its promise is kept."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.answers)
        self.profile.cleanup()


# Sends a message and waits until the answer is whole.
ASK = """new Promise((done) => {
  const watch = new MutationObserver(() => {
    if (document.getElementById("talk").getAttribute("aria-busy") === "false") { watch.disconnect(); done(true); }
  });
  document.getElementById("text").value = %s;
  document.getElementById("ask").requestSubmit();
  watch.observe(document.getElementById("talk"), {attributes: true, attributeFilter: ["aria-busy"]});
})"""
READY = """new Promise((done) => {
  const look = () => document.title === "run" ? done(true) : requestAnimationFrame(look);
  look();
})"""

# Names of the run's pictures, and whether each could be drawn.
IMAGES = """new Promise((done) => {
  const look = () => {
    const all = [...document.querySelectorAll("#run img")];
    if (all.length && all.every((one) => one.complete)) done(all.map((one) => [one.alt, one.naturalWidth > 0]));
    else requestAnimationFrame(look);
  };
  look();
})"""


@unittest.skipUnless(CHROMIUM, "chromium is not installed")
class Page(unittest.TestCase):
    def setUp(self):
        self.place = place = RunFolder()
        self.addCleanup(place.close)
        place.train("run", "--train-iters", 6, "--seq-length", 128, "--world-size", 2, "--pp", 2)
        (place.path / "run/chat_template.jinja").write_text(TEMPLATE)
        self.server = Server(place.path / "run")
        self.addCleanup(self.server.close)
        self.browser = Browser(f"http://{self.server.host}:{self.server.port}/")
        self.addCleanup(self.browser.close)

    def settings(self, **values):
        for name, value in values.items():
            self.browser.value(f"document.getElementById('{name}').value = {json.dumps(value)}")

    def test_asks_the_adapter_that_is_chosen(self):
        self.assertTrue(self.browser.value(READY))
        self.assertTrue(self.browser.value("document.getElementById('choice').hidden"))
        lora = self.place.path / "lora"
        self.place.train("lora", "--train-iters", 4, "--seq-length", 128, "--lr", 0.05, "--lora.rank", 4,
                         "--lora.base", self.place.path / "run")
        server = Server(self.place.path / "run", "--adapters", f"lora={lora}")
        self.addCleanup(server.close)
        self.browser.call("Page.navigate", url=f"http://{server.host}:{server.port}/")
        self.assertTrue(self.browser.value(READY))
        self.settings(temperature="0", max_tokens="12", top_p="1", mode="text", models="lora")
        self.browser.value("document.getElementById('models').dispatchEvent(new Event('change'))")
        self.browser.value(ASK % json.dumps("my friend"))
        request = {"temperature": 0, "max_tokens": 12, "prompt": "my friend", "top_p": 1}
        texts = {name: server.post("/v1/completions", {"model": name, **request})["choices"][0]["text"]
                 for name in ("run", "lora")}
        self.assertNotEqual(texts["run"], texts["lora"])
        shown = self.browser.value("document.getElementById('talk').textContent")
        self.assertIn(texts["lora"].strip(), shown)
        self.assertNotIn(texts["run"].strip(), shown)

    def test_talks_streams_and_shows_tokens(self):
        browser = self.browser
        self.assertTrue(browser.value(READY))
        self.settings(temperature="0", max_tokens="12", top_p="1")
        turns = "[...document.querySelectorAll('.turn div')].map((one) => one.textContent)"
        asked = {"temperature": 0, "max_tokens": 12}
        messages = []
        for text in ("the cat", "a <b>dog</b>"):
            browser.value(ASK % json.dumps(text))
            messages.append({"role": "user", "content": text})
            answer = self.server.post("/v1/chat/completions", {**asked, "messages": messages})
            messages.append(answer["choices"][0]["message"] | {"role": "assistant"})
            self.assertEqual(browser.value(turns)[-2:], [text, messages[-1]["content"]])
        self.settings(mode="text")
        browser.value("document.getElementById('probabilities').checked = true")
        browser.value(ASK % json.dumps("my friend"))
        choice = self.server.post("/v1/completions", {**asked, "prompt": "my friend", "logprobs": 5})["choices"][0]
        tokens = browser.value("[...document.querySelectorAll('.token')].map((one) => one.textContent)")
        self.assertEqual(tokens, choice["logprobs"]["tokens"])
        browser.value("document.querySelector('.token').click()")
        self.assertEqual(browser.value("document.querySelectorAll('#detail tr').length"), 2 + 5)
        self.assertRegex(browser.value("document.getElementById('status').textContent"), r"^\d+ tokens, ")
        browser.value("document.getElementById('run').open = true")
        names = ["curves", "learning_rate", "grad_norm", "tokens_per_s", "memory", "schedule"]
        self.assertEqual(browser.value(IMAGES), [[name, True] for name in names])
        # Everything that can be used has a name.
        unnamed = """[...document.querySelectorAll('button, input, select, textarea')].filter((one) =>
          !one.labels?.length && !one.textContent.trim() && !one.getAttribute('aria-label')).length"""
        self.assertEqual(browser.value(unnamed), 0)
        if folder := os.environ.get("MEGATRON_SCREENSHOTS"):
            browser.screenshot(pathlib.Path(folder) / "serve.png")
        self.settings(temperature="9")
        browser.value("document.getElementById('ask').noValidate = true")
        browser.value(ASK % json.dumps("refused"))
        self.assertIn("temperature", browser.value(turns)[-1])
        self.assertEqual(browser.errors, [])


if __name__ == "__main__":
    unittest.main()
