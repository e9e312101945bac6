"""What the Python plugins have in common: one gRPC server, a port on stdout, and an end with the engine's."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc  # type: ignore[import-untyped]

from toolchain.process_groups import SIGNAL_SECONDS

# Operations wait for programs and commands, so each holds a thread; Cancel must find a free one all the same.
_WORKERS = 256
_MESSAGE_BYTES = 400 << 20  # the engine's own limit (rpcutil.GrpcChannelOptions)
GRPC_OPTIONS = [
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
]
# A channel without calls goes idle after half an hour, which would look like the engine's end.
_NEVER_IDLE = [("grpc.client_idle_timeout_ms", (1 << 31) - 1)]


def engine_address(arguments: list[str]) -> str:
    """The engine's address: the last positional argument of a plugin ("" where a person started it)."""
    positional = [a for a in arguments if not a.startswith("-")]
    return positional[-1] if positional else ""


def serve(register: Callable[[grpc.Server], None], engine: str, end_work: Callable[[], None]) -> None:
    """Serves until the engine interrupts this process or is gone; then ends the work in hand and returns.

    Args:
        register: Adds the servicer to the server.
        engine: The engine's address, "" for none.
        end_work: Ends what runs on behalf of the engine; called once, and must return soon.
    """
    stop = threading.Event()
    # The engine's way of ending a plugin is SIGINT to its process group: an ordinary end, not a KeyboardInterrupt.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    server = grpc.server(ThreadPoolExecutor(_WORKERS), options=GRPC_OPTIONS)
    register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    # Held until the end: a channel that is collected is no longer watched.
    channel = grpc.insecure_channel(engine, options=_NEVER_IDLE) if engine else None
    if channel is not None:
        _when_gone(channel, stop.set)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    while not stop.wait(SIGNAL_SECONDS):
        pass
    end_work()
    server.stop(grace=None)
    if channel is not None:
        channel.close()


def _when_gone(channel: grpc.Channel, action: Callable[[], None]) -> None:
    """Calls the action when a server has closed the connection, or is not there: a killed engine cannot say goodbye.

    It listens before it starts a plugin.
    """
    met = False

    def changed(state: grpc.ChannelConnectivity) -> None:
        nonlocal met
        if state is grpc.ChannelConnectivity.READY:
            met = True
        elif met or state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            action()

    channel.subscribe(changed, try_to_connect=True)


def run_plugin(serve_forever: Callable[[str], None]) -> None:
    """Entry point of a plugin: serves, then leaves at once.

    `os._exit` instead of a normal end: threads that still wait for a process which does not heed SIGTERM, or gRPC's own
    after an exception, would keep the interpreter alive, where the engine is gone for good.
    """
    code = 1
    engine = engine_address(sys.argv[1:])
    try:
        serve_forever(engine)
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    except BrokenPipeError:
        pass  # nobody reads any more: the engine is gone
    except Exception:  # noqa: BLE001 (told, as by the interpreter)
        traceback.print_exc()
    finally:
        os._exit(code)
