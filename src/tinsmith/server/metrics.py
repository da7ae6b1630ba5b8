"""Metrics in Prometheus' text format: what the service knows about itself, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from tinsmith.service import Service
from tinsmith.types import Forbidden

from .call import Call
from .routes import Route

# Gauges: name, what it says, and where it stands.
_GAUGES: list[tuple[str, str, Callable[[Service], int]]] = [
    ("tinsmith_runs_live", "Training runs that are live.", lambda s: s.runs.live_count),
    ("tinsmith_runs_resident", "Training runs the engine holds.", lambda s: s.runs.resident_count),
    ("tinsmith_samplers_open", "Samplers the engine has open.", lambda s: s.samplers.live_count),
    ("tinsmith_sessions_active", "Sessions that are active.", lambda s: len(s.sessions.all_active())),
    ("tinsmith_operations_queued", "Training operations waiting their turn.", lambda s: s.runs.waiting_count),
    ("tinsmith_samples_running", "Samples in flight.", lambda s: s.samplers.running_count),
    ("tinsmith_futures_pending", "Operations without an answer.", lambda s: s.futures.pending),
]


class Metrics(Collector):
    """Counts requests; everything else is read from the service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tinsmith_http_requests",
            "Requests, by route and status.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._registry.register(self)

    def count(self, route: Route, status: int) -> None:
        """A request was answered."""
        self._requests.labels(route.method, route.path, str(status)).inc()

    def collect(self) -> Iterator[Metric]:
        """Everything that is not about HTTP."""
        operations = CounterMetricFamily(
            "tinsmith_operations", "Operations answered, by kind and outcome.", labels=("kind", "outcome")
        )
        for (kind, outcome), count in self._service.futures.outcomes.items():
            operations.add_metric((kind, outcome), count)
        yield operations
        tokens = CounterMetricFamily("tinsmith_tokens", "Tokens, by what was done.", labels=("kind",))
        for kind, count in self._service.usage.totals.items():
            tokens.add_metric((kind,), count)
        yield tokens
        for name, says, read in _GAUGES:
            yield GaugeMetricFamily(name, says, value=read(self._service))

    async def handler(self, call: Call) -> Response:
        """All of it, for whoever runs the service: it tells how busy everybody is together."""
        if not call.caller.admin:
            raise Forbidden("metrics are for the operator's key, or an admin's", field="X-API-Key")
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)
