"""Work in a process of its own: its result, its errors, and its end when somebody presses Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from flare.measure import alone


def test_the_result_and_the_error_of_another_process_come_back():
    assert alone(os.getpid) != os.getpid()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, []), "this process still hears of Ctrl-C"
    with pytest.raises(ZeroDivisionError):
        alone(divmod, 1, 0)


SLEEPER = """
import signal
import sys
import time

if __name__ != "__main__":  # the other process, before it has imported anything that takes long
    open(sys.argv[1] + ".starts", "w").close()

import flare.cli
from flare.measure import alone

def wait(mark):
    open(mark, "w").close()
    time.sleep(600)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as at a terminal: what a shell starts behind ignores it
    flare.cli._dispatch = lambda words: alone(wait, words[0])
    raise SystemExit(flare.cli.main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of a terminal")
@pytest.mark.parametrize("early", [True, False], ids=["while it starts", "while it works"])
def test_ctrl_c_is_one_word_and_ends_both(tmp_path, early):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    words = [sys.executable, str(tmp_path / "sleeper.py"), str(tmp_path / "mark")]
    mark = tmp_path / ("mark.starts" if early else "mark")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as job:
        try:
            while not mark.exists():
                assert job.poll() is None
                time.sleep(0.02)
            os.killpg(job.pid, signal.SIGINT)
            said = job.communicate(timeout=120)[1]  # long before 600 s; ends when no process holds the pipe
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    assert (said, job.returncode) == ("stopped\n", 130)
