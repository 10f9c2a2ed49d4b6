"""Every Python process of an engine under test shows its threads when it is sent SIGUSR1: Engine.reply() asks for it
when there is no answer for long.

And it sleeps for a moment where it would yield. vLLM's workers yield in a loop while they wait for work; on some kernels
(6.18 is one) that keeps others on the same core, a node too, from running for seconds."""
import faulthandler
import os
import signal
import time

_prefix = os.environ.get("AQUIFER_TEST_DUMPS")
if _prefix:
    _file = open(f"{_prefix}.{os.getpid()}", "w")
    faulthandler.register(signal.SIGUSR1, file=_file, all_threads=True)
    os.sched_yield = lambda: time.sleep(20e-6)
