//! Rx calls observed on a network: procedure, order, and errors.
//!
//! `tcpdump` writes the traffic to a file; datagrams to [`MARKS`] between the calls name the step
//! to which the following calls belong.

use super::{Machine, first_line};
use crate::{Killed, wait_until};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Port of the marks, without a listener.
pub const MARKS: u16 = 7777;

const FILES: u16 = 7000;
const LOCATION: u16 = 7003;

/// Length of an Ethernet header, which loopback frames have too.
const FRAME: usize = 14;
const UDP: usize = 8;
/// Length of an Rx header.
const RX: usize = 28;

/// A mark, and the calls after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Text of the mark.
    pub name: String,
    /// Names of the calls, with `!CODE` after those that were aborted.
    pub calls: Vec<String>,
}

/// A recording in progress.
pub struct Recording {
    child: Killed,
    _answers: Killed,
    file: PathBuf,
}

impl Recording {
    /// Records the traffic on the loopback of a machine from now on. `ops` is the program that
    /// sends and answers marks.
    pub fn start(machine: &Machine<'_>, name: &str, ops: &Path) -> Recording {
        let mut command = machine.command(ops);
        command.args(["--answer", &MARKS.to_string()]);
        let answers = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut answers = Killed(answers.expect("nsenter is of util-linux"));
        let said = first_line(answers.0.stdout.as_mut().expect("piped"));
        assert_eq!(said, "answering");
        let file = machine.s.path(name);
        let said = file.with_extension("said");
        let mut command = machine.command("tcpdump");
        command.args(["-i", "lo", "-s", "600", "-B", "16384", "-U", "-Z", "root"]);
        command.args(["--immediate-mode", "-w"]).arg(&file);
        command.arg(format!(
            "udp port {FILES} or udp port {LOCATION} or udp port {MARKS}"
        ));
        let log = fs::File::create(&said).expect("a log");
        let child = command.stdin(Stdio::null()).stderr(log).spawn();
        let child = Killed(child.expect("nsenter is of util-linux"));
        wait_until("it records", || {
            fs::read_to_string(&said).is_ok_and(|said| said.contains("listening"))
        });
        Recording {
            child,
            _answers: answers,
            file,
        }
    }

    /// Returns the steps up to the mark `last`, which must occur.
    #[track_caller]
    pub fn up_to(self, last: &str) -> Vec<Step> {
        let mut steps = Vec::new();
        wait_until("the last mark is recorded", || {
            steps = steps_of(&fs::read(&self.file).unwrap_or_default());
            steps.iter().any(|step| step.name == last)
        });
        drop(self.child);
        let end = steps.iter().position(|step| step.name == last);
        steps.truncate(end.expect("it is there"));
        steps
    }
}

/// Parses a file of tcpdump.
fn steps_of(file: &[u8]) -> Vec<Step> {
    let mut reading = Reading {
        steps: vec![Step {
            name: String::from("mount"),
            calls: Vec::new(),
        }],
        calls: HashMap::new(),
    };
    let mut rest = file.get(24..).unwrap_or_default();
    while let Some(length) = rest.get(8..12) {
        let length = u32::from_le_bytes(length.try_into().expect("four")) as usize;
        let Some(packet) = rest.get(16..16 + length) else {
            break;
        };
        reading.packet(packet);
        rest = &rest[16 + length..];
    }
    reading.steps
}

struct Reading {
    steps: Vec<Step>,
    /// Step and index in it, by connection and call.
    calls: HashMap<(u32, u32, u32), (usize, usize)>,
}

impl Reading {
    fn packet(&mut self, frame: &[u8]) -> Option<()> {
        let ip = frame.get(FRAME..)?;
        let udp = ip.get(usize::from(ip.first()? & 15) * 4..)?;
        let port = |at: usize| Some(u16::from_be_bytes(udp.get(at..at + 2)?.try_into().ok()?));
        let (from, to) = (port(0)?, port(2)?);
        let rx = udp.get(UDP..)?;
        if to == MARKS {
            let name = String::from_utf8_lossy(rx).into_owned();
            let calls = Vec::new();
            // A mark is repeated if it may have been lost.
            if self.steps.last().is_none_or(|step| step.name != name) {
                self.steps.push(Step { name, calls });
            }
            return Some(());
        }
        let word = |at: usize| Some(u32::from_be_bytes(rx.get(at..at + 4)?.try_into().ok()?));
        let key = (word(0)?, word(4)?, word(8)?);
        let (sequence, kind, flags) = (word(12)?, *rx.get(20)?, *rx.get(21)?);
        let from_client = flags & 1 != 0;
        if kind == 1 && sequence == 1 && from_client && !self.calls.contains_key(&key) {
            let service = if to == FILES || to == LOCATION { to } else { 0 };
            // Calls between servers are ignored.
            if from == FILES && (LOCATION - 1..=LOCATION).contains(&to) || from == LOCATION {
                return None;
            }
            self.call(key, name_of(service, word(RX)?));
        } else if kind == 4 && !from_client {
            let code = word(RX)?.cast_signed();
            if let Some((step, place)) = self.calls.get(&key) {
                let call = &mut self.steps[*step].calls[*place];
                if !call.contains('!') {
                    *call += &format!(" !{code}");
                }
            }
        }
        Some(())
    }

    fn call(&mut self, key: (u32, u32, u32), name: String) {
        let mut step = self.steps.len() - 1;
        // A call that a client makes after its program has closed the file may be late.
        if let Some((_, causes)) = LATE.iter().find(|(late, _)| *late == name) {
            let causes = |step: &Step| causes.iter().any(|cause| step.name.starts_with(cause));
            step = self.steps.iter().rposition(causes).unwrap_or(step);
        }
        let calls = &mut self.steps[step].calls;
        calls.push(name);
        self.calls.insert(key, (step, calls.len() - 1));
    }
}

/// Calls at arbitrary times, and the prefixes of the names of the steps to which they belong.
const LATE: &[(&str, &[&str])] = &[("ReleaseLock", &["lock"])];

/// Returns the name of a procedure, by the called port.
fn name_of(port: u16, opcode: u32) -> String {
    let names: &[(u32, &str)] = match port {
        FILES => FILE_PROCEDURES,
        LOCATION => LOCATION_PROCEDURES,
        _ => CALLBACK_PROCEDURES,
    };
    let known = names.iter().find(|(number, _)| *number == opcode);
    known.map_or_else(
        || format!("{port}/{opcode}"),
        |(_, name)| (*name).to_owned(),
    )
}

const FILE_PROCEDURES: &[(u32, &str)] = &[
    (130, "FetchData"),
    (131, "FetchACL"),
    (132, "FetchStatus"),
    (133, "StoreData"),
    (134, "StoreACL"),
    (135, "StoreStatus"),
    (136, "RemoveFile"),
    (137, "CreateFile"),
    (138, "Rename"),
    (139, "Symlink"),
    (140, "Link"),
    (141, "MakeDir"),
    (142, "RemoveDir"),
    (147, "GiveUpCallBacks"),
    (149, "GetVolumeStatus"),
    (153, "GetTime"),
    (155, "BulkStatus"),
    (156, "SetLock"),
    (157, "ExtendLock"),
    (158, "ReleaseLock"),
    (65536, "InlineBulkStatus"),
    (65537, "FetchData64"),
    (65538, "StoreData64"),
    (65539, "GiveUpAllCallBacks"),
    (65540, "GetCapabilities"),
];

const LOCATION_PROCEDURES: &[(u32, &str)] = &[
    (514, "VL ProbeServer"),
    (527, "VL GetEntryByNameU"),
    (526, "VL GetEntryByIDU"),
    (533, "VL GetAddrsU"),
    (65537, "VL GetCapabilities"),
];

const CALLBACK_PROCEDURES: &[(u32, &str)] = &[
    (204, "CB CallBack"),
    (205, "CB InitCallBackState"),
    (206, "CB Probe"),
    (213, "CB InitCallBackState3"),
    (214, "CB ProbeUuid"),
    (65538, "CB TellMeAboutYourself"),
];
