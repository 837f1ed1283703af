"""Channel arguments that both ends of a connection agree on."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 64 * 2**20
_KEEPALIVE_MS = 20_000
_KEEPALIVE_TIMEOUT_MS = 10_000

_BOTH: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
)

SERVER_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *_BOTH,
    # Two services on one port would share its connections; better that the second one fails.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
)

CLIENT_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *_BOTH,
    # A headless name resolves to many addresses; the default policy would pin the first.
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.keepalive_permit_without_calls", 1),
    # A restarted peer must be found again within a second, not after the two minutes that back-off may reach.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also how long one attempt to connect may take: a busy peer needs more than the back-off.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Each channel its own connections, so that closing one ends what it holds.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
