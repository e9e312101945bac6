"""Asks the API for completions: /health is 200 while generation fails, so only tokens count."""

import http.client
import json
import os
import re
import select
import sys
import time
import urllib.parse
from typing import Any

METRICS_SECONDS = 2.0
"""An API tells its metrics at once, whatever its engine does: one that does not in this time is stuck itself."""


def ask(url: str, model: str, tokens: int, limit: float) -> tuple[float, float, int]:
    """One streamed completion; returns seconds to the first token, seconds in all and tokens."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "127.0.0.1", where.port, timeout=limit)
    headers = {"Content-Type": "application/json"}
    if os.environ.get("VLLM_API_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["VLLM_API_KEY"]
    body: dict[str, Any] = {
        "model": model,
        "prompt": "Hello",
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    body.update(stream=True, stream_options={"include_usage": True})
    began = time.monotonic()
    try:
        connection.request("POST", where.path + "/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            text = f"HTTP {answer.status}: " + answer.read(400).decode(errors="replace")
            raise PermissionError(text) if answer.status < 500 else RuntimeError(text)
        first: float | None = None
        count = 0
        for line in answer:
            if time.monotonic() - began > limit:
                raise RuntimeError(f"no end within {limit:.0f} s")
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(json.dumps(event["error"])[:400])
            if event.get("choices") and first is None:
                first = time.monotonic() - began
            count = (event.get("usage") or {}).get("completion_tokens", count)
        if first is None or count < 1:
            raise RuntimeError("the answer had no token")
        return first, time.monotonic() - began, count
    finally:
        connection.close()


def flowed(url: str) -> float:
    """Tokens that the engine has read and generated so far, by its metrics; 0 where the API does not tell.

    Raises:
        ConnectionRefusedError, TimeoutError: nobody answers.
    """
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "127.0.0.1", where.port, timeout=METRICS_SECONDS)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode(errors="replace")
        return sum(map(float, re.findall(r"^vllm:(?:prompt|generation)_tokens_total\S* (\S+)$", text, re.MULTILINE)))
    except (ConnectionRefusedError, TimeoutError):
        raise
    except (OSError, http.client.HTTPException, ValueError):
        return 0
    finally:
        connection.close()


def flows(url: str, done: float) -> bool:
    """Whether there are more tokens now."""
    try:
        return flowed(url) > done
    except OSError:
        return False


def read(url: str, model: str, limit: float, *, measure: bool, before: str) -> dict[str, Any]:
    """One reading: state refused, mute, silent, busy, failing, denied or verified. `before`: that of the last one."""
    done: float | None = None
    try:
        done = flowed(url)
        if measure and before not in ("failing", "silent"):  # somebody waits, and the first completion may take long
            print(json.dumps({"state": "asked"}), flush=True)
        ask(url, model, 1, limit)
        reading: dict[str, Any] = {"state": "verified"}
        if measure:  # a second one: the first compiles lazily and would be measured with it
            print(json.dumps({"state": "completed"}), flush=True)
            first, total, tokens = ask(url, model, 16, limit)
            rate = (tokens - 1) / max(total - first, 1e-6)
            reading |= {"first_token_seconds": round(first, 3), "tokens_per_second": round(rate, 1)}
    except ConnectionRefusedError:
        return {"state": "refused"}
    except TimeoutError as error:
        if done is None:
            return {"state": "mute", "error": f"no answer within {METRICS_SECONDS:.0f} s, not even its metrics"}
        # Others may keep it so busy that this one waits: then tokens flow.
        state = "busy" if flows(url, done) else "silent"
        return {"state": state, "error": f"no answer within {limit:.0f} s ({error})"}
    except PermissionError as error:
        return {"state": "denied", "error": str(error)[:500]}
    except Exception as error:  # noqa: BLE001 - every failure is a reading
        return {"state": "failing", "error": f"{type(error).__name__}: {error}"[:500]}
    return reading


def main(url: str, model: str, limit: float, pause: float) -> None:
    """Print readings until the input closes."""
    before: dict[str, Any] = {"state": ""}
    while True:
        reading = read(url, model, limit, measure=pause > 0, before=before["state"])
        if reading != before:  # a load takes minutes, of which every line would cost the node some CPU
            print(json.dumps(reading), flush=True)
        before = reading
        if not pause or select.select([sys.stdin], [], [], pause)[0]:
            return


main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
