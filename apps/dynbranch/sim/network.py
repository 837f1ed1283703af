"""The network between simulated nodes: it delays, reorders, drops and duplicates.

Unary calls may be lost either way, overtake each other, and arrive twice. A stream is one ordered connection,
as in gRPC: it can break at any message, and then both ends learn of it, each in its own time. A message does
not outlive the process that it was sent to.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Generic, TypeVar, cast

from dynbranch.clients.ports import Unreachable
from dynbranch.domain.errors import DomainError
from dynbranch.sim.heap import Action, EventHeap, Timer
from dynbranch.sim.weather import Weather

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Message = TypeVar("Message")

Failure = DomainError | Unreachable
Respond = Callable[[Reply | DomainError], None]
Done = Callable[[Any], None]
"""Told the reply, or a Failure."""

Codec = Callable[[object], object]
"""What a value becomes on its way: itself, or what is left of it after the wire."""

_RESET_S = 0.001
_STREAM_IDLE_S = 2.0


class Node:
    """Something that can crash. ``life`` counts its lives."""

    def __init__(self, name: str, heap: EventHeap) -> None:
        self.name = name
        self.heap = heap
        self.up = True
        self.life = 0
        self.ends: dict[StreamEnd, None] = {}

    def later(self, seconds: float, action: Action) -> Timer:
        """Something that dies with this life of the node."""
        life = self.life

        def alive() -> None:
            if self.up and self.life == life:
                action()

        return self.heap.after(seconds, alive)

    def crash(self) -> None:
        self.up = False
        self.life += 1
        ends, self.ends = tuple(self.ends), {}
        for end in ends:
            end.node_crashed()

    def restart(self) -> None:
        self.up = True


class StreamEnd:
    """One end of a stream, told when the node that it is on goes."""

    def node_crashed(self) -> None:
        raise NotImplementedError


class Network:
    """``carry`` turns each message into what arrives."""

    def __init__(self, heap: EventHeap, rng: Random, weather: Weather, carry: Codec) -> None:
        self.heap = heap
        self.rng = rng
        self.weather = weather
        self.carry = carry
        self.faults = 0

    def delay_s(self) -> float:
        rng, weather = self.rng, self.weather
        if weather.slow_share and rng.random() < weather.slow_share:
            return rng.random() * weather.slow_ms / 1000.0
        return rng.expovariate(1.0) * weather.delay_ms / 1000.0

    def dropped(self) -> bool:
        drop = self.weather.drop
        return bool(drop) and self.rng.random() < drop

    def copies(self) -> int:
        """How often one message arrives."""
        if self.dropped():
            self.faults += 1
            return 0
        duplicate = self.weather.duplicate
        if duplicate and self.rng.random() < duplicate:
            self.faults += 1
            return 2
        return 1

    # Unary calls

    def call(
        self,
        caller: Node,
        target: Node,
        request: Request,
        handle: Callable[[Request, Respond[Reply]], None],
        done: Done,
        *,
        timeout_s: float,
    ) -> None:
        """``done`` is told once, unless the caller crashes."""
        _Unary(self, caller, target, handle, done, timeout_s).send(request)

    def open_call(
        self,
        caller: Node,
        target: Node,
        handle: Callable[[Request, Respond[Reply]], None],
        done: Done,
        *,
        timeout_s: float,
    ) -> _Unary[Request, Reply]:
        """A call whose request may be sent more than once."""
        return _Unary(self, caller, target, handle, done, timeout_s)

    # Streams

    def open(
        self,
        caller: Node,
        target: Node,
        serve: Callable[[ServerEnd[Message]], None],
        heard: Callable[[Message], None],
        lost: Callable[[Failure], None],
    ) -> ClientEnd[Message]:
        client: ClientEnd[Message] = ClientEnd(self, caller, heard, lost)
        if not target.up:
            client.lose_later(_RESET_S, "connection refused")
            return client
        copies = self.copies()
        if copies == 0:
            client.lose_later(self.rng.random() * _STREAM_IDLE_S, "the request was lost")
        for copy in range(copies):
            server: ServerEnd[Message] = ServerEnd(self, target, client if copy == 0 else None)
            if copy == 0:
                client.server = server
            self.heap.after(self.delay_s(), _arrival(server, target, target.life, serve))
        return client


def _arrival(
    server: ServerEnd[Message], target: Node, life: int, serve: Callable[[ServerEnd[Message]], None]
) -> Action:
    def arrive() -> None:
        if not target.up or target.life != life:
            server.never_arrived()
        elif not server.over:
            target.ends[server] = None
            server.arrived = True
            serve(server)
            if server.client is None:
                server.cancel_later()  # a copy: nobody listens to it

    return arrive


class _Unary(Generic[Request, Reply]):
    def __init__(
        self,
        network: Network,
        caller: Node,
        target: Node,
        handle: Callable[[Request, Respond[Reply]], None],
        done: Done,
        timeout_s: float,
    ) -> None:
        self._network = network
        self._caller = caller
        self._target = target
        self._target_life = target.life
        self._handle = handle
        self._done = done
        self._life = caller.life
        self.over = False
        self._timer = caller.later(timeout_s, lambda: self._finish(Unreachable("the deadline passed")))

    def send(self, request: Request) -> None:
        network, target = self._network, self._target
        if not target.up:
            network.heap.after(_RESET_S, lambda: self._finish(Unreachable("connection refused")))
            return
        life = target.life

        def arrive() -> None:
            if not target.up or target.life != life:
                self._finish(Unreachable("connection reset"))
                return
            self._handle(cast(Request, network.carry(request)), self._respond)

        for _ in range(network.copies()):
            network.heap.after(network.delay_s(), arrive)

    def _respond(self, reply: Reply | DomainError) -> None:
        network = self._network
        for _ in range(network.copies()):
            network.heap.after(network.delay_s(), lambda: self._arrived(reply))

    def _arrived(self, reply: Reply | DomainError) -> None:
        if not self.over:
            carried = reply if isinstance(reply, DomainError) else cast(Reply, self._network.carry(reply))
            self._finish(carried)

    def _finish(self, outcome: Reply | Failure) -> None:
        if self.over or not self._caller.up or self._caller.life != self._life:
            return
        self.over = True
        self._timer.cancel()
        self._done(outcome)


class ClientEnd(StreamEnd, Generic[Message]):
    """The caller's end. ``closed``: it listens no more."""

    def __init__(
        self,
        network: Network,
        node: Node,
        heard: Callable[[Message], None],
        lost: Callable[[Failure], None],
    ) -> None:
        self._network = network
        self._node = node
        self._life = node.life
        self._heard = heard
        self._lost = lost
        self.server: ServerEnd[Message] | None = None
        self.closed = False
        node.ends[self] = None

    def close(self) -> None:
        """Cancel the call."""
        if not self.closed:
            self._stop()
            if self.server is not None:
                self.server.cancel_later()

    def node_crashed(self) -> None:
        self.closed = True
        if self.server is not None:
            self.server.cancel_later()

    def arrived(self, message: Message) -> None:
        if not self.closed:
            self._heard(message)

    def lose(self, failure: Failure) -> None:
        if not self.closed:
            self._stop()
            self._lost(failure)

    def lose_later(self, seconds: float, why: str) -> None:
        self._network.heap.after(seconds, lambda: self.lose(Unreachable(why)))

    def finished(self) -> None:
        """The last message was heard."""
        self._stop()

    def _stop(self) -> None:
        self.closed = True
        self._node.ends.pop(self, None)


class ServerEnd(StreamEnd, Generic[Message]):
    """The served end. ``cancelled`` is called once when the caller is gone."""

    def __init__(self, network: Network, node: Node, client: ClientEnd[Message] | None) -> None:
        self._network = network
        self._node = node
        self.client = client
        self.cancelled: Action = _nothing
        self.arrived = False
        self.over = False
        self._broken = False
        self._next_arrival = 0.0

    def push(self, message: Message, *, last: bool = False) -> None:
        if self.over or self._broken:
            return
        network = self._network
        break_stream = network.weather.break_stream
        if break_stream and network.rng.random() < break_stream:
            network.faults += 1
            self.break_off()
            return
        if last:
            self._stop()
        client = self.client
        if client is None:
            return
        at = max(self._next_arrival, network.heap.now + network.delay_s())
        self._next_arrival = at
        carried = cast(Message, network.carry(message))
        network.heap.at(at, lambda: client.arrived(carried))

    def refuse(self, error: DomainError) -> None:
        """An error in place of a first message."""
        self._stop()
        client = self.client
        if client is not None:
            self._network.heap.after(self._network.delay_s(), lambda: client.lose(error))

    def break_off(self) -> None:
        """The connection is lost."""
        self._broken = True
        if self.client is not None:
            self.client.lose_later(self._network.delay_s() + _RESET_S, "the stream broke")
        self.cancel_later()

    def cancel_later(self) -> None:
        self._network.heap.after(self._network.delay_s(), self._cancel)

    def never_arrived(self) -> None:
        self.over = True
        if self.client is not None:
            self.client.lose(Unreachable("connection reset"))

    def node_crashed(self) -> None:
        self.over = True
        if self.client is not None:
            self.client.lose_later(_RESET_S, "connection reset")

    def _cancel(self) -> None:
        if not self.over:
            self._stop()
            if self.arrived:
                self.cancelled()

    def _stop(self) -> None:
        self.over = True
        self._node.ends.pop(self, None)


def _nothing() -> None:
    """Nobody is told."""
