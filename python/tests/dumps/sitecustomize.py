"""Every Python process of an engine under test shows its threads when it is sent SIGUSR1: Engine.reply() asks for it
when there is no answer for long."""
import faulthandler
import os
import signal

_prefix = os.environ.get("AQUIFER_TEST_DUMPS")
if _prefix:
    _file = open(f"{_prefix}.{os.getpid()}", "w")
    faulthandler.register(signal.SIGUSR1, file=_file, all_threads=True)
