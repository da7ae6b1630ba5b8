"""Everything an operator can set, each also as TINSMITH_... in the environment."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, StringConstraints, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tinsmith.engine.interface import EngineOptions

from .client_flags import ClientFlags
from .limits import Quota
from .prices import Price


def default_data_dir() -> Path:
    """Where a user's own service keeps its state."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "tinsmith"


def is_loopback(host: str) -> bool:
    """Whether only this machine is reached there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Settings(BaseSettings):
    """Settings of one service."""

    model_config = SettingsConfigDict(env_prefix="TINSMITH_", extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8600, description="port to listen on")
    data_dir: Path = Field(default_factory=default_data_dir, description="where everything durable lies")
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        ("HuggingFaceTB/SmolLM2-135M-Instruct",), description="base models to offer: names or folders"
    )
    aliases: Annotated[tuple[str, ...], NoDecode] = Field((), description="second names, NAME=MODEL")
    device: Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        "auto", description="what they are computed on: auto (a GPU where there is one), cpu, cuda, cuda:1"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of the base models' weights; auto: float32 on a CPU, bfloat16 on a GPU"
    )
    lora_alpha: float = Field(32.0, gt=0, description="LoRA alpha, for every rank")
    engine: Literal["process", "local", "ray"] = Field(
        "process", description="where the numbers are computed: a process of their own, this one, or Ray"
    )
    engine_patience: float = Field(
        600.0, gt=0, description="seconds without a step after which the engine's process is started again"
    )
    api_key: SecretStr | None = Field(
        None, description="the key clients must present; none: open to this machine"
    )
    session_ttl: float = Field(1800.0, gt=0, description="seconds without a heartbeat until a session ends")
    poll_hold: float = Field(28.0, gt=0, le=40, description="seconds a poll for a future is held open")
    gap_timeout: float = Field(60.0, gt=0, description="seconds to wait for a seq_id that never comes")
    result_ttl: float = Field(6 * 3600.0, gt=0, description="seconds a finished result is kept")
    history_ttl: float = Field(
        30 * 86400.0,
        gt=0,
        description="seconds it is remembered what ended sessions and answered samples were",
    )
    housekeeping_interval: float = Field(10.0, gt=0, description="seconds between looks for what has expired")
    max_body_bytes: int = Field(256 * 2**20, gt=0, description="largest request body, uncompressed")
    max_connections: int = Field(
        8192, gt=0, description="connections at a time; when more come, idle ones go, or requests get 503"
    )
    max_pending_samples: int = Field(4096, gt=0, description="samples in flight, of all owners, before 429")
    quota: Quota = Field(default_factory=Quota, description="what one owner may have")
    max_rank: int = Field(256, gt=0, description="largest LoRA rank")
    adapter_memory: int = Field(
        4 * 2**30, gt=0, description="bytes of runs the engine holds; idle ones beyond are written out"
    )
    sampler_memory: int = Field(
        2 * 2**30, gt=0, description="bytes of samplers the engine holds; idle ones beyond are closed"
    )
    snapshot_operations: int = Field(256, gt=0, description="operations of a run after which it is saved")
    snapshot_bytes: int = Field(
        64 * 2**20, gt=0, description="bytes of a run's operations after which it is saved"
    )
    snapshot_seconds: float = Field(
        30.0, gt=0, description="seconds of work on a run after which it is saved"
    )
    data_budget: int | None = Field(
        None, gt=0, description="bytes the data directory may hold; beyond them new work is refused with 503"
    )
    disk_reserve: int = Field(
        256 * 2**20, ge=0, description="bytes free on its disk below which new work is refused with 503"
    )
    drain_seconds: float = Field(
        20.0, ge=0, description="seconds that what is being carried out may take when the service is stopped"
    )
    token_ttl: int = Field(900, ge=120, le=86400, description="seconds a token made from a key is valid")
    url_ttl: int = Field(3600, ge=60, description="seconds a download address is valid")
    public_url: str | None = Field(
        None, description="how clients reach this service, if not by the address they ask"
    )
    prices: dict[str, Price] = Field(
        default_factory=dict, description="prices by base model, '*' for all others; none: no costs are shown"
    )
    price_gigabyte_month: float | None = Field(
        None, ge=0, description="US dollars for a gigabyte of checkpoints over 720 hours"
    )
    client: ClientFlags = Field(
        default_factory=ClientFlags, description="how official clients are told to behave"
    )
    legacy_load_restores_optimizer: bool = Field(
        True, description="load_weights without an `optimizer` field (SDK 0.4.1) restores the optimizer too"
    )

    @field_validator("models", "aliases", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    def engine_options(self) -> EngineOptions:
        """What of this is the engine's."""
        return EngineOptions(self.device, self.dtype, self.lora_alpha)
