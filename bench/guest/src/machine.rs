//! QEMU with a guest as a child of this process.
//!
//! **Invariant:** QEMU does not outlive this process, even if it is killed: the kernel kills it
//! with the thread that started it, and the agent in the guest powers off when its port closes.

use super::initramfs::{Archive, programs};
use super::message::{AgentReply, AgentRequest, lost, receive, send};
use super::spawn::spawn;
use super::{AGENT, Disk, FOLDER, MODULES, PORT, Plan, TAG};
use bench_core::facts::Accelerator;
use bench_core::{Error, Result};
use serde_json::json;
use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

const QEMU: &str = "qemu-system-x86_64";
/// Time limit for an emulated guest to start its agent, on a busy machine.
const BOOT: Duration = Duration::from_secs(180);
/// Time limit for a guest with KVM, after which it is considered hung.
const BOOT_KVM: Duration = Duration::from_secs(20);
/// Number of console lines shown in an error.
const LAST_WORDS: usize = 12;

/// A guest whose agent is ready.
pub(super) struct Machine {
    child: Child,
    to: ChildStdin,
    from: Receiver<Result<Option<AgentReply>>>,
    folder: tempfile::TempDir,
    /// Release of the guest's kernel.
    pub(super) kernel: String,
}

impl Machine {
    /// Starts a guest, with KVM if the plan allows it and it works.
    pub(super) fn boot(plan: &Plan) -> Result<(Machine, Accelerator)> {
        let initramfs = initramfs(plan)?;
        let boot = |accelerator, within| Machine::try_boot(plan, &initramfs, accelerator, within);
        let usable = || {
            let kvm = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/kvm");
            kvm.is_ok()
        };
        match plan.accelerator {
            None if usable() => {
                if let Ok(machine) = boot(Accelerator::Kvm, BOOT_KVM) {
                    return Ok((machine, Accelerator::Kvm));
                }
                Ok((boot(Accelerator::Tcg, BOOT)?, Accelerator::Tcg))
            }
            None => Ok((boot(Accelerator::Tcg, BOOT)?, Accelerator::Tcg)),
            Some(Accelerator::Kvm) => Ok((boot(Accelerator::Kvm, BOOT_KVM)?, Accelerator::Kvm)),
            Some(Accelerator::Tcg) => Ok((boot(Accelerator::Tcg, BOOT)?, Accelerator::Tcg)),
        }
    }

    fn try_boot(
        plan: &Plan,
        initramfs: &[u8],
        accelerator: Accelerator,
        within: Duration,
    ) -> Result<Machine> {
        let failed = |e: std::io::Error| lost(&format!("cannot create temporary files: {e}"));
        let folder = tempfile::Builder::new()
            .prefix("evfs-bench-guest-")
            .tempdir();
        let folder = folder.map_err(failed)?;
        let file = folder.path().join("initramfs");
        std::fs::write(&file, initramfs).map_err(failed)?;
        let said = std::fs::File::create(folder.path().join("qemu")).map_err(failed)?;
        let mut command = Command::new(QEMU);
        command
            .args(arguments(plan, folder.path(), accelerator))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(said)
            // ^C is handled by this process, which lets the current run finish.
            .process_group(0);
        let mut child = spawn(&mut command).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::Spec(format!(
                "{QEMU}, which guests need, is not installed; install Debian's package \
                 qemu-system-x86"
            )),
            _ => lost(&format!("cannot start {QEMU}: {e}")),
        })?;
        let to = child.stdin.take().expect("it is a pipe");
        let mut out = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (sender, from) = sync_channel(1);
        std::thread::spawn(move || {
            loop {
                let message = receive(&mut out);
                let more = matches!(message, Ok(Some(_)));
                if sender.send(message).is_err() || !more {
                    break;
                }
            }
        });
        let mut machine = Machine {
            child,
            to,
            from,
            folder,
            kernel: String::new(),
        };
        match machine.answer(Some(within))? {
            AgentReply::Here(kernel) => machine.kernel = kernel,
            _ => return Err(lost("its first message is not that of the benchmark agent")),
        }
        // The guest has loaded it; a killed process leaves no large file behind.
        let _ = std::fs::remove_file(file);
        Ok(machine)
    }

    /// Sends a request and waits for the answer for as long as the guest lives.
    pub(super) fn request(&mut self, ask: &AgentRequest) -> Result<AgentReply> {
        let gone = send(&mut self.to, ask).err();
        match (self.answer(None)?, gone) {
            (_, Some(gone)) => Err(gone),
            (AgentReply::Refused(text), None) => Err(Error::Spec(format!("in the guest: {text}"))),
            (AgentReply::Failed(text), None) => Err(lost(&text)),
            (answer, None) => Ok(answer),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn answer(&mut self, within: Option<Duration>) -> Result<AgentReply> {
        let received = match within {
            Some(within) => self.from.recv_timeout(within),
            None => self.from.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(Ok(Some(answer))) => Ok(answer),
            Ok(Err(error)) => Err(error),
            Ok(Ok(None)) | Err(RecvTimeoutError::Disconnected) => {
                Err(self.last_words("QEMU exited"))
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = within.unwrap_or_default().as_secs();
                Err(self.last_words(&format!("not ready after {seconds} s")))
            }
        }
    }

    /// Creates an error with the last output of QEMU and of the guest's kernel.
    fn last_words(&self, what: &str) -> Error {
        let read = |name| std::fs::read(self.folder.path().join(name)).unwrap_or_default();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\r', "");
        let (qemu, console) = (text(read("qemu")), text(read("console")));
        let mut lines: Vec<&str> = qemu.lines().chain(console.lines()).collect();
        // The lines after a panic concern the end of the agent, not its cause.
        if let Some(panic) = lines.iter().position(|line| line.contains("Kernel panic")) {
            lines.truncate(panic + 1);
        }
        let last = &lines[lines.len().saturating_sub(LAST_WORDS)..];
        lost(&format!("{what}; last output:\n{}", last.join("\n")))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Nothing in the guest needs saving: durable data is in files of the host.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds the initramfs. This program is the guest's init and loads the modules itself.
fn initramfs(plan: &Plan) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["/dev", "/proc", "/sys", "/tmp", "/run", MODULES, FOLDER] {
        archive.folder(Path::new(folder));
    }
    let mut needed = vec!["virtio_pci", "virtio_console", "fuse"];
    if plan.disk.is_some() {
        needed.push("virtio_blk");
    }
    if plan.folder.is_some() {
        needed.extend(["9pnet_virtio", "9p"]);
    }
    for (n, (name, content)) in plan.kernel.modules(&needed)?.into_iter().enumerate() {
        archive.file(&Path::new(MODULES).join(format!("{n:03}-{name}")), &content)?;
    }
    programs(&mut archive)?;
    Ok(archive.finish())
}

fn arguments(plan: &Plan, own: &Path, accelerator: Accelerator) -> Vec<String> {
    let comma = |path: &Path| path.display().to_string().replace(',', ",,");
    let (cpu, accel, clocks) = match accelerator {
        Accelerator::Kvm => ("host", "kvm", ""),
        // Under load, emulation makes a kernel misjudge the time stamp counter and the timer. A CPU
        // model with fewer features is faster to emulate.
        Accelerator::Tcg => (
            "Westmere,+rdrand",
            "tcg,thread=multi",
            "tsc=unstable no_timer_check mitigations=off random.trust_cpu=on cryptomgr.notests",
        ),
    };
    let console = format!("file:{}", comma(&own.join("console")));
    let (memory, cpus) = (format!("{}M", plan.memory_mib), plan.cpus.to_string());
    let kernel = plan.kernel.image.display().to_string();
    let initramfs = own.join("initramfs").display().to_string();
    let append = format!(
        "console=ttyS0 quiet panic=-1 {clocks} -- {}",
        AGENT.join(" ")
    );
    let port = format!("virtserialport,chardev=jobs,name={PORT}");
    let mut all: Vec<String> = [
        "-accel",
        accel,
        "-cpu",
        cpu,
        "-machine",
        "q35",
        "-m",
        &memory,
        "-smp",
        &cpus,
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-monitor",
        "none",
        "-serial",
        &console,
        "-chardev",
        "stdio,id=jobs,signal=off",
        "-device",
        "virtio-serial-pci",
        "-device",
        &port,
        "-kernel",
        &kernel,
        "-initrd",
        &initramfs,
        "-append",
        &append,
    ]
    .map(str::to_owned)
    .to_vec();
    if let Some(disk) = &plan.disk {
        all.extend(["-blockdev".into(), node(disk).to_string()]);
        all.extend(["-device", "virtio-blk-pci,drive=disk"].map(str::to_owned));
    }
    if let Some(folder) = &plan.folder {
        let path = comma(folder);
        let share =
            format!("local,path={path},mount_tag={TAG},security_model=none,multidevs=remap");
        all.extend(["-virtfs".into(), share]);
    }
    all
}

/// Builds the block device configuration with the cache mode of this process; QEMU takes no lock
/// because this process holds it.
fn node(disk: &Disk) -> serde_json::Value {
    let device = std::fs::metadata(&disk.path)
        .is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_block_device(&m.file_type()));
    let driver = if device { "host_device" } else { "file" };
    let cache = json!({ "direct": disk.direct, "no-flush": false });
    json!({
        "driver": "raw", "node-name": "disk", "discard": "unmap", "cache": cache,
        "file": { "driver": driver, "filename": disk.path, "locking": "off", "cache": cache },
    })
}
