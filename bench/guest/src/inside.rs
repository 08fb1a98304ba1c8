//! The agent: the first process of a guest, which sets up the machine and then serves requests.
//!
//! It is this program on a bare kernel, so it mounts the kernel's pseudo file systems, loads
//! modules and enables the loopback interface. When the host closes the port, it powers the machine
//! off.

use super::message::{AgentReply, AgentRequest, lost, receive, send};
use super::{FOLDER, MODULES, PORT, TAG};
use bench_core::caches::drop_caches;
use bench_core::{Error, Facts, Result, Target};
use bench_load::Job;
use rustix::mount::{MountFlags, mount};
use rustix::net::{AddressFamily, SendFlags, SocketType, send as send_to, socket};
use rustix::system::{RebootCommand, finit_module, reboot};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

/// Sets up the guest and serves requests until the host disconnects, then powers the machine off.
///
/// `open` creates a target from the value passed to [`super::Guest::boot`].
///
/// # Errors
/// [`Error::Spec`] in a process that is not the first of its machine; any error of the kernel.
pub fn serve(open: &mut dyn FnMut(&Value) -> Result<(Target, Facts)>) -> Result<()> {
    if std::process::id() != 1 {
        return Err(Error::Spec(
            "the benchmark agent runs only as the first process of a guest, which `--env guest` \
             starts"
                .into(),
        ));
    }
    let served = make_ready().and_then(|port| answer_all(&port, open));
    if let Err(error) = &served {
        // Goes to the guest's console, whose last lines are part of the host's error message.
        eprintln!("benchmark agent: {}", error.in_words());
    }
    reboot(RebootCommand::PowerOff).map_err(|e| failed("cannot power off", e.into()))
}

fn make_ready() -> Result<PathBuf> {
    let none = MountFlags::empty();
    for (what, place) in [
        ("devtmpfs", "/dev"),
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("tmpfs", "/tmp"),
    ] {
        mount(what, place, what, none, None).map_err(|e| failed(place, e.into()))?;
    }
    load_modules()?;
    loopback().map_err(|e| failed("cannot enable the loopback interface", e))?;
    find_port()
}

/// Loads all modules of [`MODULES`] in the order of their names.
fn load_modules() -> Result<()> {
    let entries = fs::read_dir(MODULES).map_err(|e| failed(MODULES, e))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files {
        let name = file.display().to_string();
        let open = File::open(&file).map_err(|e| failed(&name, e))?;
        finit_module(open, c"", 0).map_err(|e| failed(&name, e.into()))?;
    }
    Ok(())
}

/// Enables the loopback, the first interface of every machine: rtnetlink(7), RTM_NEWLINK.
fn loopback() -> io::Result<()> {
    const NEW_LINK: u16 = 16;
    const REQUEST: u16 = 1;
    const UP: u32 = 1;
    let mut message = Vec::with_capacity(32);
    // A header of length, type, flags, sequence number and port; then family and type of the
    // interface, its index, its flags and the mask of flags to change.
    message.extend_from_slice(&32u32.to_ne_bytes());
    message.extend_from_slice(&NEW_LINK.to_ne_bytes());
    message.extend_from_slice(&REQUEST.to_ne_bytes());
    message.extend_from_slice(&[0; 8 + 4]);
    for field in [1, UP, UP] {
        message.extend_from_slice(&u32::to_ne_bytes(field));
    }
    // Protocol 0 is NETLINK_ROUTE.
    let kernel = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    send_to(&kernel, &message, SendFlags::empty())?;
    Ok(())
}

/// Finds the device of the virtio port named [`PORT`].
fn find_port() -> Result<PathBuf> {
    let entries = fs::read_dir("/sys/class/virtio-ports")
        .map_err(|e| failed("cannot list the virtio ports", e))?;
    let named = |path: &Path| fs::read_to_string(path.join("name")).is_ok_and(|n| n.trim() == PORT);
    entries
        .flatten()
        .find(|entry| named(&entry.path()))
        .map(|entry| Path::new("/dev").join(entry.file_name()))
        .ok_or_else(|| lost("no virtio port to the host found"))
}

fn answer_all(port: &Path, open: &mut dyn FnMut(&Value) -> Result<(Target, Facts)>) -> Result<()> {
    let port = File::options().read(true).write(true).open(port);
    let mut to = port.map_err(|e| failed("cannot open the virtio port", e))?;
    let mut from = BufReader::new(
        to.try_clone()
            .map_err(|e| failed("cannot open the virtio port", e))?,
    );
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    send(&mut to, &AgentReply::Here(release))?;
    let mut target = None;
    while let Some(ask) = receive(&mut from)? {
        let answer = answer(ask, &mut target, open).unwrap_or_else(|error| AgentReply::of(&error));
        send(&mut to, &answer)?;
    }
    Ok(())
}

fn answer(
    ask: AgentRequest,
    target: &mut Option<Target>,
    open: &mut dyn FnMut(&Value) -> Result<(Target, Facts)>,
) -> Result<AgentReply> {
    let opened = || lost("no target is open");
    match ask {
        AgentRequest::Open(what) => {
            let (new, facts) = open(&what)?;
            *target = Some(new);
            Ok(AgentReply::Opened(facts))
        }
        AgentRequest::Prepare(job) => {
            let target = target.as_ref().ok_or_else(opened)?;
            job_of(job)?.prepare(target).map(|()| AgentReply::Done)
        }
        AgentRequest::Run(job, times) => {
            let target = target.as_ref().ok_or_else(opened)?;
            let record = job_of(job)?.run(target, times)?;
            target.sync()?;
            Ok(AgentReply::Record(Box::new(record)))
        }
        AgentRequest::DropCaches => drop_caches().map(|()| AgentReply::Done),
        AgentRequest::CountLayers => {
            layer_cpu::count();
            Ok(AgentReply::Done)
        }
    }
}

fn job_of(json: Value) -> Result<Job> {
    serde_json::from_value(json).map_err(|e| lost(&format!("cannot read a job: {e}")))
}

/// Creates the target for the directory that the host shares; `name` is its path on the host.
///
/// # Errors
/// The kernel refuses the mount.
pub fn shared(name: String) -> Result<Target> {
    let options = c"trans=virtio,version=9p2000.L,msize=262144,cache=none";
    mount(TAG, FOLDER, "9p", MountFlags::empty(), Some(options))
        .map_err(|e| failed("cannot mount the shared directory", e.into()))?;
    let target = Target::folder(Path::new(FOLDER))?;
    Ok(Target { name, ..target })
}

fn failed(what: &str, error: io::Error) -> Error {
    lost(&format!("{what}: {error}"))
}
