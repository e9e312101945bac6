"""Ask a stack's endpoint: `python -m ask --stack lab "What is a Spark?"`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Annotated, Any

import requests
import typer

from lab import access

LAB = "lab"
"""The stack whose nodes are the lab's: its addresses belong to somebody else while that is down."""


def outputs(stack: str) -> dict[str, Any]:
    """Outputs of a stack; exits with Pulumi's own words where there are none."""
    command = ["pulumi", "stack", "output", "--stack", stack, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"pulumi stack output failed: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    if "endpoint" not in found:
        alone = "its settings say `serve: false`" if "ray" in found else "run pulumi up first"
        sys.exit(f"stack {stack} serves nothing: {alone}")
    return found


def api_key(stack: str) -> str:
    """The key in a stack's file, "" where the API is open."""
    command = ["pulumi", "config", "get", "apiKey", "--stack", stack]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main(
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = "Hello",
    stack: Annotated[str, typer.Option(help="Stack whose endpoint is asked.")] = LAB,
    max_tokens: Annotated[int, typer.Option(min=1, help="Bound of the answer.")] = 16,
) -> None:
    """Send one chat message to the stack's model; an API key is that of API_KEY or of the stack's file."""
    found = outputs(stack)
    if stack == LAB and not access.is_up():
        sys.exit(f"the lab is down: not dialling {found['endpoint']}\nnext: make up")
    body = {
        "model": found["model"],
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
    }
    key = os.environ.get("API_KEY") or api_key(stack)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = requests.post(f"{found['endpoint']}/chat/completions", json=body, headers=headers, timeout=120)
        answer.raise_for_status()
    except requests.RequestException as error:
        text = error.response.text[:400] if error.response is not None else ""
        sys.exit(f"{found['endpoint']} did not answer: {error} {text}\nnext: pulumi preview says what is wrong with it")
    reply = answer.json()
    typer.echo(f"{found['model']}: {reply['choices'][0]['message']['content']!r}")
    typer.echo(f"{reply['usage']['completion_tokens']} tokens from {found['endpoint']}")


if __name__ == "__main__":
    typer.run(main)
