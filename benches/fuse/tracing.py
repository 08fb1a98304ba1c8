"""Counts the requests that the kernel sends to a FUSE server, by its tracepoint (Linux 6.12)."""

import collections
import os
import re
import subprocess
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
BUFFER_KIB = 16384  # of each CPU: about 400,000 requests
OPCODE = re.compile(r"fuse_request_send: .* opcode \d+ \((?:FUSE_)?(\w+)\)")


class Counter:
    """One instance of the kernel's tracing. FORGET and BATCH_FORGET are not counted."""

    def __init__(self):
        if not (TRACING / "instances").exists():
            subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACING], check=False)
        self.instance = TRACING / "instances" / f"evfs-fuse-{os.getpid()}"
        self.event = self.instance / "events/fuse/fuse_request_send"
        self.exists = False

    def start(self):
        """Returns whether the kernel can count."""
        if (TRACING / "events/fuse/fuse_request_send").exists():
            self.instance.mkdir()
            self.exists = True
            (self.instance / "buffer_size_kb").write_text(str(BUFFER_KIB))
        return self.exists

    def stop(self):
        if self.exists:
            self.instance.rmdir()

    def count(self, device, work):
        """Calls `work`. Returns its result and the number of requests by operation of the mount
        with this device number; None if there were too many for the buffer."""
        # As the kernel numbers devices.
        connection = os.major(device) << 20 | os.minor(device)
        (self.event / "filter").write_text(f"connection == {connection}")
        (self.instance / "trace").write_text("")
        (self.event / "enable").write_text("1")
        try:
            result = work()
        finally:
            (self.event / "enable").write_text("0")
        stats = [file.read_text() for file in self.instance.glob("per_cpu/cpu*/stats")]
        if any(not re.search(r"^overrun: 0$", text, re.M) for text in stats):
            return result, None
        counts = collections.Counter()
        with open(self.instance / "trace") as lines:
            counts.update(found[1] for found in map(OPCODE.search, lines) if found)
        return result, dict(counts)
