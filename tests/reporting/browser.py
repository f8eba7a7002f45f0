"""A real browser without a window, asked over its own protocol what it makes of a page."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SECONDS = 60
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip
MEASURED = """(() => {
    const seen = element => {
        const box = element.getBoundingClientRect();
        const decoded = element.tagName !== 'IMG' || element.naturalWidth > 0;
        const {width, height, left, right} = box;
        return {kind: element.tagName, width, height, left, right, decoded};
    };
    return JSON.stringify({
        width: document.scrollingElement.scrollWidth, inner: innerWidth,
        height: document.scrollingElement.scrollHeight, title: document.title,
        plots: [...document.querySelectorAll('figure svg, figure img, figure .bar')].map(seen),
        cut: [...document.querySelectorAll('.scroll')]
            .filter(element => !element.closest('details'))
            .filter(element => element.scrollWidth > element.clientWidth)
            .map(element => element.getAttribute('aria-label')),
        fetched: performance.getEntriesByType('resource').map(entry => entry.name),
    });
})()"""


@dataclass(frozen=True)
class Look:
    """A page in a window of some width, with light or dark colours."""

    page: Path
    width: int
    dark: bool = False


@dataclass(frozen=True)
class Seen:
    """A page as a browser shows it at some width.

    complaints : whatever the browser wrote to its console or log, and exceptions
    picture : a screenshot of the whole page, as PNG
    """

    measured: dict
    complaints: list[str]
    picture: bytes


def look_at(looks: list[Look], profile: Path) -> list[Seen]:
    """What a browser shows; profile : a new directory for it."""
    return asyncio.run(asyncio.wait_for(_look_at(looks, profile), SECONDS))


async def _look_at(looks, profile):
    with _running(profile) as process:
        address = await _debugger_address(profile, process)
        return [await _seen(address, look) for look in looks]


@contextlib.contextmanager
def _running(profile):
    process = subprocess.Popen(
        [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=20)


async def _debugger_address(profile, process):
    """Where the browser listens: it writes that to a file when it does."""
    place = profile / "DevToolsActivePort"
    while True:
        assert process.poll() is None, f"chromium ended with code {process.returncode}"
        lines = place.read_text().splitlines() if place.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        await asyncio.sleep(0.05)


class Session:
    """Commands to the browser, or to one of its pages, and what it tells meanwhile."""

    def __init__(self, socket):
        self._socket, self._numbers = socket, itertools.count(1)
        self.page, self.events = None, []

    async def call(self, method, **parameters):
        message = {"id": next(self._numbers), "method": method, "params": parameters}
        if self.page is not None:
            message["sessionId"] = self.page
        await self._socket.write_message(json.dumps(message))
        while True:
            answer = await self._next()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]

    async def wait_for(self, event):
        while not any(one["method"] == event for one in self.events):
            await self._next()

    async def _next(self):
        text = await self._socket.read_message()
        assert text is not None, "the browser closed the connection"
        answer = json.loads(text)
        if "method" in answer:
            self.events.append(answer)
        return answer


async def _seen(address, look):
    request = HTTPRequest(address, connect_timeout=SECONDS)
    socket = await websocket_connect(request, max_message_size=2**28)
    try:
        session = Session(socket)
        target = await session.call("Target.createTarget", url="about:blank")
        attached = await session.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        session.page = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await session.call(f"{domain}.enable")
        await session.call(
            "Emulation.setDeviceMetricsOverride",
            width=look.width, height=900, deviceScaleFactor=1, mobile=look.width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if look.dark else "light"}
        await session.call("Emulation.setEmulatedMedia", features=[scheme])
        await session.call("Page.navigate", url=look.page.as_uri())
        await session.wait_for("Page.loadEventFired")
        answer = await session.call("Runtime.evaluate", expression=MEASURED)
        measured = json.loads(answer["result"]["value"])
        shot = await session.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "width": look.width, "height": measured["height"], "scale": 1},
        )  # fmt: skip
        return Seen(measured, _complaints(session.events), base64.b64decode(shot["data"]))
    finally:
        socket.close()


def _complaints(events):
    told = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    return [json.dumps(event["params"]) for event in events if event["method"] in told]
