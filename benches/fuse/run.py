#!/usr/bin/env python3
"""Compares the mount of EVFS with a null FUSE server, which does as little as possible.

All sides are mounted at the same time, their storage is in memory, and they are idle while one is
measured. A round takes each row through all sides next to each other; the order rotates and is
reversed in every second round. Runs of one row in one round are a pair. A round before the others
counts the kernel's requests; its times are not used. Seconds contain no sync: after each run, and
outside its time, its side makes everything durable.

Before a cold row, its side is mounted again, except for the null server, whose files would be lost,
and the kernel drops the caches of all sides. So name cold rows last.

Needs root, Linux 6.12 to count requests, a C compiler, mkfs.ext4, postmark, git.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # root would leave files in the source

import report
import rows
import sides
from tracing import Counter

HERE = Path(__file__).resolve().parent
EVFS = HERE.parent.parent / "target/dist/evfs"  # what users install
SIDES = ("null", "evfs", "ext4")
ENCRYPTED = ("evfs-encrypted", "gocryptfs", "securefs", "cryfs")
POLICIES = {"real-time": (os.SCHED_RR, 5), "ordinary": (os.SCHED_OTHER, 0)}
# Programs and their packages of Debian.
NEEDED = {"cc": "gcc", "mkfs.ext4": "e2fsprogs", "postmark": "postmark", "git": "git"}


def say(text):
    print(f"run.py: {text}", file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--binary", default=EVFS, type=Path, help="EVFS, the side `evfs` [target/dist/evfs]")
    add("--binary2", type=Path, help="another EVFS, for the side `evfs2`")
    known = " ".join((*SIDES, "null-blocking-N", *ENCRYPTED))
    add("--sides", nargs="+", default=SIDES, metavar="SIDE", help=f"{known} [{' '.join(SIDES)}]")
    add("--encrypted", action="store_true", help=f"also: {' '.join(ENCRYPTED)}")
    all_rows = " ".join((*rows.DEFAULT, *rows.MORE))
    add("--rows", nargs="+", default=rows.DEFAULT, metavar="ROW", help=f"of {all_rows}")
    add("--rounds", type=int, default=9)
    add("--cpus", nargs="+", default=["one", "free"], choices=["one", "free"],
        help="all processes on one CPU, or on all")
    add("--priority", nargs="+", default=list(POLICIES), choices=list(POLICIES),
        help="real-time: as by `chrt -r 5`")
    add("--base", default="null", metavar="SIDE", help="side that the ratios refer to [null]")
    add("--tree", type=Path, metavar="TAR", help="tree to unpack, with a Git repository")
    add("--directory", type=int, default=1_000_000, help="files of the row `directory` [1000000]")
    add("--evfs-option", action="append", default=[], metavar="OPTION",
        help="of `evfs mount`, as in --evfs-option=--threads=1")
    add("--quick", action="store_true", help="one round of small sizes, to see that all works")
    add("--json", type=Path, metavar="FILE", help="write all runs and the summary")
    add("--memory", default="80%", help="limit of the memory for storage, as of tmpfs [80%%]")
    return parser.parse_args()


def compile_programs(into):
    sources = ["null.c", "names.c", "content.c", "serve.c", "tree.c", "policy.c"]
    for program, files in (("null", sources), ("work", ["work.c"])):
        files = [HERE / file for file in files]
        argv = ["cc", "-O2", "-flto", "-Wall", "-Wextra", "-pthread", "-o", into / program, *files]
        subprocess.run(argv, check=True)


class Bench:
    def __init__(self, args, scratch):
        self.args, self.scratch = args, Path(scratch)
        self.memory = self.scratch / "memory"
        self.memory.mkdir()
        limit = f"size={args.memory}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", limit, "tmpfs", self.memory], check=True)
        compile_programs(self.scratch)
        sizes = rows.Sizes(args.quick, args.directory)
        self.rows = rows.Rows(self.scratch / "work", self.memory, sizes)
        self.rows.make_tree(args.tree)
        self.counter = Counter()
        self.counts = self.counter.start()
        if not self.counts:
            say("requests are not counted: the kernel has no tracepoint fuse_request_send")

    def end(self):
        self.counter.stop()
        subprocess.run(["umount", "-l", self.memory], check=False)

    def make_side(self, name, below):
        args, options = self.args, self.args.evfs_option
        if name == "null":
            return sides.Null(name, self.memory, self.scratch / "null", [])
        if name.startswith("null-blocking-"):
            threads = ["--blocking", "--threads", name.rsplit("-", 1)[1]]
            return sides.Null(name, self.memory, self.scratch / "null", threads)
        if name in ("evfs", "evfs2"):
            program = args.binary if name == "evfs" else args.binary2
            return sides.Evfs(name, self.memory, program.resolve(), options)
        if name == "evfs-encrypted":
            return sides.Evfs(name, self.memory, args.binary.resolve(), options, below)
        if name == "ext4":
            return sides.Ext4(name, self.memory)
        if name in ENCRYPTED:
            return sides.Other(name, self.memory, below)
        sys.exit(f"run.py: no side `{name}`; see --help")

    def start_sides(self):
        """Mounts the sides, and below the encrypted ones an ext4."""
        names, below = list(self.args.sides), None
        started = []
        try:
            if any(name in ENCRYPTED for name in names):
                below = sides.Ext4("below", self.memory)
                started.append(below)
                below.create()
                below.mount()
            for name in names:
                side = self.make_side(name, below and below.mnt)
                started.append(side)
                side.create()
                side.mount()
                self.rows.prepare_side(side)
        except BaseException:
            self.stop_sides(started)
            raise
        return started

    def stop_sides(self, started):
        for side in reversed(started):
            side.unmount()
            side.destroy()

    def measure(self, row, side, is_counted):
        """Runs a row on a side. Returns the result, the server's CPU seconds, and requests."""
        self.rows.before(row, side)
        side.settle()
        requests, before = None, side.cpu()
        if is_counted:
            device = os.stat(side.mnt).st_dev
            done, requests = self.counter.count(device, lambda: self.rows.run(row, side))
        else:
            done = self.rows.run(row, side)
        server_cpu = side.cpu_since(before)
        self.rows.after(row, side)
        side.settle()
        return done, server_cpu, requests

    def one_setting(self, setting):
        """Measures all rows with this process's scheduling. Returns runs and requests."""
        started = self.start_sides()
        measured = [side for side in started if side.name != "below"]
        runs, requests = [], {}
        first = 0 if self.counts else 1
        try:
            for round_ in range(first, self.args.rounds + 1):
                turn = max(round_ - 1, 0) // 2 % len(measured)
                order = measured[turn:] + measured[:turn]
                if round_ % 2 == 0:
                    order.reverse()
                for row in self.args.rows:
                    say(f"{setting}, round {round_} of {self.args.rounds}: {row}")
                    for side in order:
                        is_counted = round_ == 0 and side.is_fuse
                        done, server_cpu, counted = self.measure(row, side, is_counted)
                        if round_ == 0:
                            requests[row, side.name] = counted
                            continue
                        runs.append(
                            {
                                "setting": setting,
                                "round": round_,
                                "row": row,
                                "side": side.name,
                                "names": done.names,
                                "seconds": done.seconds,
                                "client_cpu": done.cpu,
                                "server_cpu": server_cpu,
                            }
                        )
                for side in measured:
                    self.rows.remove_tree(side)
                    side.settle()
        finally:
            self.stop_sides(started)
        return runs, requests

    def run(self):
        args, runs, summaries = self.args, [], []
        cpus = os.sched_getaffinity(0)
        print(f"# {machine()}\n")
        for one in args.cpus:
            # This process waits while a client runs; servers and clients inherit its scheduling.
            os.sched_setaffinity(0, {max(cpus)} if one == "one" else cpus)
            for priority in args.priority:
                policy, level = POLICIES[priority]
                os.sched_setscheduler(0, policy, os.sched_param(level))
                setting = f"{one}, {priority}"
                measured, requests = self.one_setting(setting)
                entries = report.summary(measured, requests, args.base)
                print(f"## CPUs: {one}; priority: {priority}\n")
                print(report.table(entries, args.base), flush=True)
                print()
                runs += measured
                summaries.append({"cpus": one, "priority": priority, "rows": entries})
        return {"machine": machine(), "base": args.base, "settings": summaries, "runs": runs}


def machine():
    models = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    facts = [
        datetime.date.today().isoformat(),
        f"Linux {platform.release()}",
        f"{os.cpu_count()} CPUs {(models or [platform.machine()])[0]}",
        "load " + " ".join(f"{value:.1f}" for value in os.getloadavg()),
    ]
    return "; ".join(facts)


def main():
    args = arguments()
    if os.geteuid():
        sys.exit("run.py: run as root")
    if args.quick:
        args.rounds, args.cpus, args.priority = 1, ["free"], ["ordinary"]
    args.sides = list(args.sides)
    if args.binary2:
        args.sides.append("evfs2")
    if args.encrypted:
        args.sides += [name for name in ENCRYPTED if name not in args.sides]
    unknown = [row for row in args.rows if row not in (*rows.DEFAULT, *rows.MORE)]
    if unknown:
        sys.exit(f"run.py: no row `{unknown[0]}`; see --help")
    for program, package in NEEDED.items():
        if not shutil.which(program):
            sys.exit(f"run.py: {program} is not installed; apt-get install {package}")
    for binary in filter(None, (args.binary, args.binary2)):
        if not binary.is_file():
            sys.exit(f"run.py: no program {binary}; `cargo build --profile dist -p evfs`, or --binary")
    for name in list(args.sides):
        why = sides.missing(name)
        if why:
            say(f"skipped: {why}")
            args.sides.remove(name)
    # A mount namespace of its own: another process's copy would keep the mounts alive.
    if not os.environ.get("EVFS_FUSE_APART"):
        os.environ["EVFS_FUSE_APART"] = "1"
        apart = ["unshare", "--mount", "--propagation", "private"]
        os.execvp(apart[0], [*apart, sys.executable, *sys.argv])
    # The mounts end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="evfs-fuse-") as scratch:
        bench = Bench(args, scratch)
        try:
            document = bench.run()
        except sides.Failed as failed:
            sys.exit(f"run.py: {failed}")
        finally:
            bench.end()
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
