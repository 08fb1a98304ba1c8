//! Guests: other kernels and whole systems under emulation, which `tests/guest/boot.sh` boots.

use crate::{Killed, Ran, Sandbox, program};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use test_support::needs_file;

/// Kernel of the system.
const KERNEL: &str = "linux-image-6.12-amd64";

/// Modules that the system cannot load itself: automounts, loop devices, dm-crypt.
const MODULES: &str = "autofs4 loop dm-crypt xts aesni-intel algif_skcipher";

/// Words for its kernel: a console on which nothing but questions appear.
const WORDS: &str = "systemd.show_status=no systemd.getty_auto=no";

/// Character that is typed at a prompt before the answer, and the one that erases it.
const PROBE: [&str; 2] = ["x", "\x7f"];

/// Characters that systemd shows instead of those of an answer, depending on its version.
const MASKS: [char; 2] = ['*', '\u{2022}'];

/// MiB of memory of the system.
const MEMORY: &str = "1024";

/// Returns the directory of the scripts.
pub fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}

/// Returns the directory of kernels and systems.
pub fn cache() -> PathBuf {
    let built = program();
    let target = built.ancestors().nth(2).expect("target/PROFILE/evfs");
    target.join("guest")
}

/// Returns a command that boots a guest, without options, script and programs.
pub fn boot() -> Command {
    let mut boot = Command::new(scripts().join("boot.sh"));
    boot.arg("--cache").arg(cache());
    boot
}

/// A Debian system with systemd, which keeps what changes from one boot to the next. `system.sh`
/// names the files of its share.
pub struct System<'s> {
    s: &'s Sandbox,
    root: PathBuf,
    disks: Vec<PathBuf>,
}

/// One boot of a system, which has ended.
pub struct Booted {
    /// Lines that `run` in the share has printed.
    pub printed: String,
    /// Text on the console.
    pub console: String,
}

impl<'s> System<'s> {
    /// Creates a system that has never been booted, with an empty share.
    pub fn new(s: &'s Sandbox) -> System<'s> {
        let image = cache().join("debian/root.img");
        needs_file(&image);
        let root = s.path("root.qcow2");
        let mut create = Command::new("qemu-img");
        create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]);
        Ran::of(create.arg(image).arg(&root)).ok();
        fs::create_dir(s.path("share")).expect("a share");
        let disks = Vec::new();
        System { s, root, disks }
    }

    /// Adds a disk: `/dev/vdb`, then `/dev/vdc`, and so on.
    pub fn add_disk(&mut self, image: &Path) {
        self.disks.push(image.to_owned());
    }

    /// Returns a path in its share, and creates the directories above.
    pub fn share(&self, name: &str) -> PathBuf {
        let path = self.s.path("share").join(name);
        fs::create_dir_all(path.parent().expect("the share")).expect("a directory");
        path
    }

    /// Boots it, and waits until it is powered off, or restarts. When `prompt` appears on its
    /// console, the answer is typed.
    #[track_caller]
    pub fn boot(&self, patience: Duration, prompt: Option<(&str, &str)>) -> Booted {
        let (printed, said) = (self.s.path("printed"), self.s.path("said"));
        let mut command = boot();
        command
            .args(["--kernel", KERNEL, "--modules", MODULES])
            .args(["--words", WORDS, "--memory", MEMORY])
            .args(["--seconds", &patience.as_secs().to_string()]);
        command.arg("--root").arg(&self.root);
        for disk in &self.disks {
            command.arg("--disk").arg(disk);
        }
        command.arg("--share").arg(self.s.path("share"));
        command.arg("--printed").arg(&printed);
        command
            .arg(scripts().join("system.sh"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&said).expect("a file"));
        let mut guest = Killed(command.spawn().expect("bash is installed"));
        let console = converse(&mut guest, prompt);
        let status = guest.0.wait().expect("it is a child");
        let text = |file: &Path| {
            let bytes = fs::read(file).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let printed = text(&printed);
        assert!(
            status.success(),
            "{status}: {}\n--- console\n{console}\n--- printed\n{printed}",
            text(&said)
        );
        Booted { printed, console }
    }
}

/// Reads the console of a guest to its end, and answers a prompt.
///
/// systemd shows the prompt before it turns the echo off. A probe that is typed in between is
/// echoed, and then read as a character of the answer. So the answer is typed once a mask appears
/// after the prompt: from then on, nothing is echoed. A prompt that shows none lasts until the guest
/// is ended by its time limit.
fn converse(guest: &mut Killed, prompt: Option<(&str, &str)>) -> String {
    let mut from = guest.0.stdout.take().expect("piped");
    let mut to = guest.0.stdin.take().expect("piped");
    // If the guest has ended, its console ends as well.
    let mut typed = |text: &str| drop(to.write_all(text.as_bytes()));
    let [probe, erase] = PROBE;
    let (mut unanswered, mut probed_at) = (prompt, None);
    let (mut console, mut room) = (Vec::new(), [0; 4096]);
    loop {
        let len = from.read(&mut room).expect("a console");
        if len == 0 {
            return String::from_utf8_lossy(&console).into_owned();
        }
        console.extend_from_slice(&room[..len]);
        let Some((prompt, answer)) = unanswered else {
            continue;
        };
        let shown = String::from_utf8_lossy(&console);
        if let Some(at) = probed_at {
            if shown[at..].contains(MASKS) {
                typed(&format!("{erase}{answer}\n"));
                unanswered = None;
            }
        } else if let Some(at) = shown.find(prompt) {
            typed(probe);
            probed_at = Some(at + prompt.len());
        }
    }
}

impl Booted {
    /// Returns the rest of the line that begins with this word.
    #[track_caller]
    pub fn fact(&self, name: &str) -> &str {
        let mut all = self.facts(name);
        let first = all.next();
        first.unwrap_or_else(|| panic!("no `{name}`: {}", self.printed))
    }

    /// Returns the rest of each line that begins with this word.
    pub fn facts(&self, name: &str) -> impl Iterator<Item = &str> {
        let lines = self.printed.lines().map(str::trim_end);
        lines.filter_map(move |line| {
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            (first == name).then_some(rest)
        })
    }
}
