"""The file systems that are compared. Each is mounted at DIR/NAME/mnt, its storage in memory."""

import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path

IMAGE_BYTES = 8 << 30
PASSWORD = "correct-horse-battery"
STARTS_WITHIN = 600  # seconds; cryfs derives its key for long
# The server of a mount gets SIGTERM when this process is killed.
ENDS_WITH_US = ["setpriv", "--pdeathsig", "TERM"]
# Linux with which EVFS mounts by the type fuseblk as root, so that sync(2) reaches it. With this
# type, close(2) waits for the server.
BLOCK_MOUNT_SINCE = (6, 18)
# Packages of Debian.
PACKAGES = {"gocryptfs": "gocryptfs", "cryfs": "cryfs", "securefs": "securefs"}


class Failed(Exception):
    """A program failed; the message says which and why."""


def run(argv, log, **options):
    with open(log, "a") as out:
        ended = subprocess.run(argv, stdout=out, stderr=out, **options)
    if ended.returncode:
        raise Failed(f"`{' '.join(map(str, argv))}` failed: see {log}:\n{Path(log).read_text()}")


class Side:
    """A mounted file system, and its server if that is a process."""

    is_fuse = True
    is_lost_at_unmount = False

    def __init__(self, name, memory):
        self.name = name
        self.memory = Path(memory)  # a tmpfs
        self.home = self.memory / name
        self.mnt = self.home / "mnt"
        self.log = self.home / "log"
        self.server = None
        self.mnt.mkdir(parents=True)

    def create(self):
        """Makes the storage."""

    def command(self):
        """Returns the command of the server, which stays in the foreground."""
        raise NotImplementedError

    def environment(self):
        return os.environ

    def mount(self):
        with open(self.log, "a") as log:
            self.server = subprocess.Popen(
                [*ENDS_WITH_US, *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
            )
        until = time.monotonic() + STARTS_WITHIN
        while not os.path.ismount(self.mnt):
            if self.server.poll() is not None or time.monotonic() > until:
                self.server.kill()
                raise Failed(f"{self.name} did not mount:\n{self.log.read_text()}")
            time.sleep(0.01)

    def unmount(self):
        if os.path.ismount(self.mnt):
            ended = subprocess.run(["umount", self.mnt], stderr=subprocess.DEVNULL)
            if ended.returncode:
                # A program still uses it, or its server has unmounted it in the meantime.
                subprocess.run(["umount", "-l", self.mnt], stderr=subprocess.DEVNULL)
        if self.server:
            try:
                self.server.wait(STARTS_WITHIN)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
            self.server = None

    def destroy(self):
        """Removes the storage, after the unmount."""
        shutil.rmtree(self.home)

    def settle(self):
        """Makes everything durable, so that no work is left for the time of another side."""
        subprocess.run(["sync", "-f", self.mnt], check=True)

    def make_cold(self):
        """Drops caches: the server's by another start, unless it would lose the files."""
        if not self.is_lost_at_unmount:
            self.unmount()
            self.mount()

    def cpu(self):
        """Returns the CPU nanoseconds of each of the server's threads so far."""
        used = {}
        if self.server:
            for task in Path(f"/proc/{self.server.pid}/task").iterdir():
                try:
                    used[task.name] = int((task / "schedstat").read_text().split()[0])
                except FileNotFoundError:
                    pass  # the thread has ended
        return used

    def cpu_since(self, before):
        """Returns the CPU seconds since then of the server's threads that have not ended."""
        return sum(now - before.get(task, 0) for task, now in self.cpu().items()) / 1e9


class Null(Side):
    is_lost_at_unmount = True

    def __init__(self, name, memory, program, options):
        super().__init__(name, memory)
        self.program, self.options, self.device = program, options, None

    def create(self):
        if evfs_mounts_on_device():
            file = self.home / "device"
            file.touch()
            os.truncate(file, 4096)
            made = subprocess.run(
                ["losetup", "--find", "--show", "--sector-size", "4096", file],
                capture_output=True, text=True, check=True,
            )
            self.device = made.stdout.strip()

    def command(self):
        device = ["--on-device", self.device] if self.device else []
        return [self.program, *self.options, *device, self.mnt]

    def destroy(self):
        if self.device:
            run(["losetup", "--detach", self.device], self.log)
        super().destroy()


class Evfs(Side):
    """EVFS with a clear image, or with an encrypted one on the file system `below`."""

    def __init__(self, name, memory, program, options, below=None):
        super().__init__(name, memory)
        self.program, self.options = program, options
        self.is_encrypted = below is not None
        self.image = Path(below or self.home) / f"{name}.img"
        # A name and directories of its own: other processes of EVFS are no part of this.
        self.run_dir, self.keys = self.home / "run", self.home / "keys"
        for private in (self.run_dir, self.keys):
            private.mkdir(mode=0o700)

    def environment(self):
        return {**os.environ, "EVFS_RUN_DIR": str(self.run_dir), "EVFS_KEYS_DIR": str(self.keys)}

    def evfs(self, *args):
        run([self.program, *args], self.log, env=self.environment())

    def key(self):
        return ["--key", "fuse"] if self.is_encrypted else []

    def create(self):
        self.image.touch()
        os.truncate(self.image, IMAGE_BYTES)
        if self.is_encrypted:
            self.evfs("key", "generate", "fuse", "--no-passphrase")
            self.evfs("volume", "create", self.image, "--owner", "fuse", "--key-bits", "256")
        self.evfs("format", self.image, *self.key())

    def command(self):
        named = ["--name", self.name]
        return [self.program, "mount", self.image, self.mnt, *named, *self.key(), *self.options]

    def destroy(self):
        self.image.unlink()
        super().destroy()

    def settle(self):
        super().settle()
        self.evfs("cache", "flush", self.name)


class Ext4(Side):
    """ext4 on a loop device over a file in memory. Its CPU time is the client's, and that of kernel
    threads, which is not counted."""

    is_fuse = False

    def create(self):
        self.image = self.home / "ext4.img"
        self.image.touch()
        os.truncate(self.image, IMAGE_BYTES)
        lazy = "lazy_itable_init=0,lazy_journal_init=0"
        run(["mkfs.ext4", "-q", "-E", lazy, "-N", "3000000", self.image], self.log)

    def mount(self):
        run(["mount", "-o", "loop", self.image, self.mnt], self.log)


class Other(Side):
    """Another encrypting file system, with its own choice of ciphers and caches, on `below`."""

    def __init__(self, name, memory, below):
        super().__init__(name, memory)
        self.store = Path(below) / name

    def environment(self):
        state = str(self.home / "state")
        return {**os.environ, "CRYFS_FRONTEND": "noninteractive", "CRYFS_LOCAL_STATE_DIR": state}

    def password(self):
        file = self.home / "password"
        file.write_text(PASSWORD + "\n")
        return file

    def create(self):
        self.store.mkdir()
        password = self.password()
        if self.name == "gocryptfs":
            run(["gocryptfs", "-q", "-init", "-passfile", password, self.store], self.log)
        elif self.name == "securefs":
            run(["securefs", "create", "--pass", PASSWORD, self.store], self.log)

    def command(self):
        password = self.home / "password"
        if self.name == "gocryptfs":
            return ["gocryptfs", "-q", "-fg", "-passfile", password, self.store, self.mnt]
        if self.name == "securefs":
            return ["securefs", "mount", "--pass", PASSWORD, self.store, self.mnt]
        # It reads the password from its standard input.
        cryfs = 'exec cryfs -f "$1" "$2" < "$0"'
        return ["sh", "-c", cryfs, password, self.store, self.mnt]

    def destroy(self):
        shutil.rmtree(self.store)
        super().destroy()


def evfs_mounts_on_device():
    """Returns whether EVFS mounts by the type fuseblk here."""
    numbers = re.findall(r"\d+", platform.release())
    return tuple(map(int, numbers[:2])) >= BLOCK_MOUNT_SINCE


def missing(name):
    """Returns why a side cannot be measured, or None."""
    if name in PACKAGES and not shutil.which(name):
        return f"{name} is not installed; apt-get install {PACKAGES[name]}"
    return None
