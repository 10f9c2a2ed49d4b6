"""Asynchronous scheduling on a CPU, for tests: the next step is scheduled while one is computed, as GPUs do it by
default. vLLM has all of it in the scheduler, in the engine and in the model runner, and its CPU platform turns it off
without a word ("not required on CPU"). schedule_ahead() turns it on again, in the process that configures an engine;
Worker gives the model runner the streams and events that it asks for then. On a CPU a step has ended when its call
returns, so they have nothing to do."""
from __future__ import annotations

import contextlib

import torch
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.worker.cpu_worker import CPUWorker


def schedule_ahead():
    check = CpuPlatform.check_and_update_config.__func__

    def check_and_turn_on(cls, vllm_config):
        check(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True
    CpuPlatform.check_and_update_config = classmethod(check_and_turn_on)


class _Done:
    """A stream, or an event, of work that is done already."""

    def __init__(self, *_, **__):
        pass

    def record(self, *_):
        pass

    def synchronize(self):
        pass

    def wait_stream(self, other):
        pass


class Worker(CPUWorker):
    def init_device(self):
        torch.cuda.Stream = torch.cuda.Event = _Done
        torch.cuda.current_stream = _Done
        torch.cuda.stream = contextlib.nullcontext
        super().init_device()
