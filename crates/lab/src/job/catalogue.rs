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
        "files written and read in order and at random, against threads",
    ),
    entry(
        "sweep",
        Needs::Files,
        "MiB/s",
        "IOzone 3.489, automatic mode",
        "the same by one thread, against sizes of file and record",
    ),
    entry(
        "mailmix",
        Needs::Files,
        "tx/s",
        "PostMark 1.53",
        "the life of small files in a mail server",
    ),
    entry(
        "nfsbasic",
        Needs::Files,
        "µs/op",
        "Connectathon 2004, basic tests",
        "nine tests of what a client asks of a file server",
    ),
    entry(
        "micro",
        Needs::Files,
        "µs/op",
        "Ousterhout 1990",
        "a system call, a switch, opening, a temporary file",
    ),
    entry(
        "devmix",
        Needs::Device,
        "IOPS",
        "HP Disk Bench",
        "requests a second against their size, depth and threads",
    ),
    entry(
        "scriptmix",
        Needs::Folder,
        "scripts/h",
        "SPEC SDET",
        "scripts of small commands, against users",
    ),
    entry(
        "mounts",
        Needs::Folder,
        "ms",
        "the cache document's mount test",
        "mount and unmount by given commands",
    ),
    entry(
        "clientload",
        Needs::Files,
        "s",
        "the 1990 report's clientload",
        "clients that read one file at once after flushing",
    ),
    entry(
        "packets",
        Needs::Machine,
        "µs/exchange",
        "the 1990 report's packet pumping",
        "UDP requests and echoes of 4, 1500 and 1526 bytes, calls over Rx of 1500",
    ),
    entry(
        "dhrystone",
        Needs::Machine,
        "Dhrystones/s",
        "Dhrystone 2.1",
        "the processor and the compiler",
    ),
    entry(
        "build",
        Needs::Folder,
        "s",
        "the reports' compile tests",
        "a C program that comes with it: unpack, build, build again",
    ),
    entry(
        "fio",
        Needs::Folder,
        "MiB/s",
        "fio, which is run",
        "what fio says of the same target",
    ),
    entry(
        "coherence",
        Needs::Files,
        "ops/s",
        "the cache document's mixed mode",
        "a page written by a call and read through a mapping, and back",
    ),
    entry(
        "sendfile",
        Needs::Folder,
        "MiB/s",
        "the cache document's sendfile test",
        "a file to a socket, by read, by mapping and by sendfile",
    ),
    entry(
        "solver",
        Needs::Files,
        "s",
        "the cache document's Nastran row",
        "linear equations whose factor is in a scratch file",
    ),
];
