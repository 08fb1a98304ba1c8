//! The list of all workloads.

/// Target that a workload requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// A directory, or any other target with files.
    Files,
    /// A directory of this machine, because the workload runs programs in it.
    Folder,
    /// A device, which is overwritten.
    Device,
    /// No target.
    Machine,
}

impl Needs {
    /// Returns the name for lists.
    pub fn name(self) -> &'static str {
        match self {
            Needs::Files => "files",
            Needs::Folder => "folder",
            Needs::Device => "device",
            Needs::Machine => "none",
        }
    }
}

/// Description of a workload, for lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Name on the command line.
    pub name: &'static str,
    /// Original benchmark.
    pub after: &'static str,
    /// One-line description.
    pub what: &'static str,
    /// Unit of the headline figure.
    pub unit: &'static str,
    /// Required target.
    pub needs: Needs,
}

const fn entry(
    name: &'static str,
    needs: Needs,
    unit: &'static str,
    after: &'static str,
    what: &'static str,
) -> Entry {
    Entry {
        name,
        after,
        what,
        unit,
        needs,
    }
}

/// All workloads in the order of lists.
pub const CATALOGUE: &[Entry] = &[
    entry(
        "seqrand",
        Needs::Files,
        "MiB/s",
        "IOzone 3.489, throughput mode",
        "sequential and random file I/O, by number of threads",
    ),
    entry(
        "sweep",
        Needs::Files,
        "MiB/s",
        "IOzone 3.489, automatic mode",
        "the same with one thread, by file and record size",
    ),
    entry(
        "mailmix",
        Needs::Files,
        "tx/s",
        "PostMark 1.53",
        "small files of a mail server: create, read, append, delete",
    ),
    entry(
        "nfsbasic",
        Needs::Files,
        "µs/op",
        "Connectathon 2004, basic tests",
        "nine tests of the basic operations of a file server",
    ),
    entry(
        "micro",
        Needs::Files,
        "µs/op",
        "Ousterhout 1990",
        "system call, context switch, open and close, temporary file",
    ),
    entry(
        "devmix",
        Needs::Device,
        "IOPS",
        "HP Disk Bench",
        "requests per second, by size, depth and threads",
    ),
    entry(
        "scriptmix",
        Needs::Folder,
        "scripts/h",
        "SPEC SDET",
        "scripts of small commands, by number of users",
    ),
    entry(
        "mounts",
        Needs::Folder,
        "ms",
        "the unified file cache report's mount test",
        "mount and unmount by given commands",
    ),
    entry(
        "clientload",
        Needs::Files,
        "s",
        "the 1990 report's client load test",
        "clients that drop their caches and read one file simultaneously",
    ),
    entry(
        "packets",
        Needs::Machine,
        "µs/exchange",
        "the 1990 report's packet pumping",
        "UDP requests and echoes of 4, 1500 and 1526 bytes, Rx calls of 1500 bytes",
    ),
    entry(
        "dhrystone",
        Needs::Machine,
        "Dhrystones/s",
        "Dhrystone 2.1",
        "performance of CPU and compiler",
    ),
    entry(
        "build",
        Needs::Folder,
        "s",
        "the reports' compile tests",
        "unpack, build and rebuild a generated C program",
    ),
    entry(
        "fio",
        Needs::Folder,
        "MiB/s",
        "fio, which is executed",
        "fio on the same target, to check the other workloads",
    ),
    entry(
        "coherence",
        Needs::Files,
        "ops/s",
        "the unified file cache report's mixed mode test",
        "pages written by a call and read through a mapping, and the reverse",
    ),
    entry(
        "sendfile",
        Needs::Folder,
        "MiB/s",
        "the unified file cache report's sendfile test",
        "a file sent to a socket by read, mmap and sendfile",
    ),
    entry(
        "solver",
        Needs::Files,
        "s",
        "the unified file cache report's Nastran row",
        "linear equation solver with its factor in a scratch file",
    ),
];
