"""For tests: a real service in a process of its own, one that misbehaves on request, and a pytest plugin."""

from .fault_table import Faults, Misbehaving
from .faults import Drop, Failed, Fault, Garbled, Late, Pending, RetryAfter, Slow, Status, Truncate
from .faulty_service import FaultyService
from .process import ServiceProcess

__all__ = [
    "Drop",
    "Failed",
    "Fault",
    "Faults",
    "FaultyService",
    "Garbled",
    "Late",
    "Misbehaving",
    "Pending",
    "RetryAfter",
    "ServiceProcess",
    "Slow",
    "Status",
    "Truncate",
]
