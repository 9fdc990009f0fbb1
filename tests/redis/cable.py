"""A TCP proxy before a server, which a test can stop or cut at a chosen moment."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Cable:
    """Passes bytes between clients and a server.

    Attributes
    ----------
    url : str
    address : tuple
        Where clients reach the server through the cable.
    asked : threading.Event
        Set when something was sent to the server after :meth:`hold` or :meth:`cut_at_next_reply`.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname or "localhost", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.url = f"redis://127.0.0.1:{self.address[1]}"
        self.asked = threading.Event()
        self._passing = threading.Event()
        self._passing.set()
        self._cutting = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Keep replies back until :meth:`release`."""
        self.asked.clear()
        self._passing.clear()

    def release(self) -> None:
        self._passing.set()

    def cut_at_next_reply(self) -> None:
        """Let the next request through, and cut its connection instead of passing the reply."""
        self.asked.clear()
        self._cutting = True

    def cut(self) -> None:
        """Cut all connections."""
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def close(self) -> None:
        self._listener.close()
        self.release()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += (client, server)
                threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, to_server: bool) -> None:
        with suppress(OSError), source, sink:
            while data := source.recv(65_536):
                if to_server:
                    self.asked.set()  # before it is sent, so that no reply is had before this is set
                    sink.sendall(data)
                else:
                    self._passing.wait()
                    if self._cutting:
                        self._cutting = False
                        source.shutdown(socket.SHUT_RDWR)
                        sink.shutdown(socket.SHUT_RDWR)
                        return
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
