"""The work that is measured."""

import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path

from sides import Failed

# Number of runs of a command that one measurement adds up.
REPEAT = {"git-status": 5, "ls": 5}
# Rows that use the unpacked tree. The last one removes it.
TREE_ROWS = ("untar", "git-status", "git-status-cold", "find-cold", "ls", "rm")
SMALL = ("create-unlink", "create-write-unlink", "stat", "read", "read-direct", "read-cached")
DEFAULT = (*SMALL, "postmark", "untar", "git-status", "ls", "rm")
PIECES = 16  # of the file that is read
MORE = ("create-write-unlink-4", "find-cold", "git-status-cold", "directory")


class Sizes:
    """Amount of work: of each row, so that a round of one side takes about a second, or less."""

    def __init__(self, quick, directory):
        self.operations = 200 if quick else 2000
        self.files = 150 if quick else 3000  # of the tree
        self.mails = 100 if quick else 2000  # files and transactions of PostMark
        self.directory = directory


class Done:
    """Result of one measurement."""

    def __init__(self, names, seconds, cpu):
        self.names = names  # operations, or files
        self.seconds = seconds
        self.cpu = cpu  # seconds, of the client


def timed(argv, output=None, **options):
    """Runs a command. Returns seconds by the clock and of CPU."""
    with open(output or os.devnull, "wb") as out:
        began = time.monotonic()
        child = subprocess.Popen(argv, stdout=out, stderr=subprocess.PIPE, **options)
        said = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        took = time.monotonic() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stderr.close()
    if child.returncode:
        raise Failed(f"`{' '.join(map(str, argv))}` failed: {said.decode()}")
    return took, usage.ru_utime + usage.ru_stime


class Rows:
    def __init__(self, work_program, scratch, sizes):
        self.program, self.sizes = work_program, sizes
        self.scratch = Path(scratch)
        self.environment = {**os.environ, "HOME": str(scratch), "GIT_CONFIG_NOSYSTEM": "1"}

    # ---- the tree

    def make_tree(self, given):
        """Makes the tar file to unpack: the given one, or a Git repository of its own."""
        if given:
            self.tar = Path(given)
        else:
            self.tar = self.scratch / "tree.tar"
            self.write_tree(self.scratch / "tree")
            subprocess.run(["tar", "cf", self.tar, "-C", self.scratch, "tree"], check=True)
            shutil.rmtree(self.scratch / "tree")
        listed = subprocess.run(["tar", "tf", self.tar], capture_output=True, text=True, check=True)
        names = listed.stdout.splitlines()
        self.tree_names, self.tree_top = len(names), names[0].split("/")[0]

    def write_tree(self, top):
        """Writes files of the sizes of sources: median 3 KB, mean 6 KB, 25 in a directory."""
        chance = random.Random(1)
        words = [f"word{n}" for n in range(500)]
        for number in range(self.sizes.files):
            at = top / f"part{number // 250}" / f"module{number // 25}"
            at.mkdir(parents=True, exist_ok=True)
            size = min(int(chance.lognormvariate(8, 1.2)), 200_000)
            line = " ".join(chance.choices(words, k=10)) + "\n"
            text = (line * (size // len(line) + 1))[:size]
            (at / f"file{number}.c").write_text(text)
        git = ["git", "-C", top, "-c", "user.name=evfs", "-c", "user.email=evfs@localhost"]
        for args in (["init", "-q"], ["add", "."], ["commit", "-qm", "tree"], ["gc", "-q"]):
            subprocess.run([*git, *args], env=self.environment, check=True)

    # ---- one row on one side

    def prepare_side(self, side):
        """Makes the files that rows use, on a fresh file system."""
        (side.mnt / "work").mkdir()
        self.small("prepare", side.mnt / "work", 1, 4)

    def before(self, row, side):
        """Does the part of a row that is not measured."""
        tree = side.mnt / "work" / self.tree_top
        if row in TREE_ROWS and row != "untar" and not tree.exists():
            timed(["tar", "xf", self.tar, "-C", side.mnt / "work"])
        if row == "read-cached":
            self.small(row, side.mnt / "work", PIECES, 1)
        if row.startswith("git-status"):
            # Git reads all files once, as the index has the inodes of another file system.
            timed(self.git_status(tree), env=self.environment)
        if row.endswith("-cold"):
            side.settle()
            side.make_cold()
            Path("/proc/sys/vm/drop_caches").write_text("3")

    def git_status(self, tree):
        return ["git", "-C", tree, "status", "--porcelain"]

    def run(self, row, side):
        """Runs a row, and returns its result."""
        work = side.mnt / "work"
        tree = work / self.tree_top
        if row in SMALL:
            return self.small(row, work, self.sizes.operations, 1)
        if row == "create-write-unlink-4":
            return self.small("create-write-unlink", work, self.sizes.operations, 4)
        if row == "directory":
            return self.small("create", work, self.sizes.directory, 1)
        if row == "postmark":
            return self.postmark(work)
        command = {
            "untar": ["tar", "xf", self.tar, "-C", work],
            "git-status": self.git_status(tree),
            "git-status-cold": self.git_status(tree),
            "find-cold": ["find", tree, "-size", "+1000k"],
            "ls": ["ls", "-lR", tree],
            "rm": ["rm", "-r", tree],
        }[row]
        runs = [timed(command, env=self.environment) for _ in range(REPEAT.get(row, 1))]
        names = self.tree_names * len(runs)
        return Done(names, sum(took for took, _ in runs), sum(cpu for _, cpu in runs))

    def after(self, row, side):
        """Removes the files that a row leaves, unless the next ones use them."""
        if row == "directory":
            for file in os.scandir(side.mnt / "work" / "client0"):
                if file.name.startswith("x"):
                    os.unlink(file.path)

    def remove_tree(self, side):
        """Removes the tree, if rows have left it."""
        subprocess.run(["rm", "-rf", side.mnt / "work" / self.tree_top], check=True)

    def small(self, row, work, count, clients):
        """The program measures itself, because its start takes as long as a hundred operations."""
        argv = [self.program, row, str(count), str(clients)]
        ended = subprocess.run(argv, cwd=work, capture_output=True, text=True)
        if ended.returncode:
            raise Failed(f"{row} failed: {ended.stderr}")
        seconds, cpu = map(float, ended.stdout.split())
        return Done(count * clients, seconds, cpu)

    def postmark(self, work):
        mails = work / "mails"
        mails.mkdir(exist_ok=True)
        script, output = self.scratch / "postmark", self.scratch / "postmark.out"
        settings = {
            "location": mails,
            "number": self.sizes.mails,
            "transactions": self.sizes.mails,
            "size": "500 10000",
            "read": 8192,
            "write": 8192,
            "buffering": "false",
            "seed": 42,
        }
        lines = [f"set {name} {value}\n" for name, value in settings.items()]
        script.write_text("".join(lines) + "run\nquit\n")
        with open(script) as typed:
            seconds, cpu = timed(["postmark"], output, stdin=typed)
        printed = output.read_text()
        created = re.search(r"(\d+) created", printed)
        if not created or "Error" in printed:
            raise Failed(f"postmark failed: {printed}")
        return Done(int(created[1]), seconds, cpu)
