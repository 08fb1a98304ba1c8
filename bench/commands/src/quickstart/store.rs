//! Storage of the tree: a file system on a loop device, or, without root, an archive written to the
//! volume over NBD.

use super::tree::{Amount, Copied, Stopped, Tree, changed};
use nbd_client::Client;
use serde_json::Value;
use stack::{Error, Result};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Bytes written to the volume in one request.
const PIECE_BYTES: usize = 1 << 20;

/// Method of storing files on the attached volume.
pub enum Store {
    /// ext4 on a loop device, mounted.
    FileSystem,
    /// A tar archive at the start of the volume, over NBD.
    Archive,
}

impl Store {
    /// Chooses a file system if this user may create loop devices and mount them.
    pub fn choose() -> Store {
        let loop_devices = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/loop-control")
            .is_ok();
        let fuse = stack::filesystem::no_mounts().is_none();
        let mkfs = system("mkfs.ext4")
            .arg("-V")
            .output()
            .is_ok_and(|o| o.status.success());
        if loop_devices && fuse && mkfs {
            Store::FileSystem
        } else {
            Store::Archive
        }
    }

    /// Returns the name in the report.
    pub fn name(&self) -> &'static str {
        match self {
            Store::FileSystem => "ext4 on a loop device",
            Store::Archive => "archive over NBD",
        }
    }

    /// Returns the title of the step.
    pub fn title(&self) -> &'static str {
        match self {
            Store::FileSystem => {
                "attach as a loop device, create a file system, copy a real tree to it"
            }
            Store::Archive => {
                "attach over NBD (no root, no mount), write a real tree as an archive"
            }
        }
    }

    /// Returns the flags for `evfs attach`.
    pub fn flags(&self) -> &'static [&'static str] {
        match self {
            Store::FileSystem => &["--loop"],
            Store::Archive => &[],
        }
    }

    /// Writes the tree to the attached volume and puts it on stable storage.
    pub fn fill(
        &self,
        dir: &Path,
        attached: &Value,
        tree: &Tree,
        stopped: Stopped<'_>,
    ) -> Result<Copied> {
        match self {
            Store::FileSystem => {
                let device = export(attached, "loop")?;
                checked(system("mkfs.ext4").args(["-q", "-F"]).arg(&device))?;
                let mount = Mounted::mount(dir, &device, "rw")?;
                let copied = copy_into(&mount.path, tree, stopped)?;
                mount.unmount()?;
                Ok(copied)
            }
            Store::Archive => {
                let out = Stream::open(attached)?;
                let mut archive = tar::Builder::new(io::BufWriter::with_capacity(PIECE_BYTES, out));
                let copied = tree.copy(stopped, |file, bytes| {
                    let mut header = tar::Header::new_gnu();
                    header.set_size(bytes.len() as u64);
                    header.set_mode(0o644);
                    archive.append_data(&mut header, file, bytes)
                })?;
                let writer = archive.into_inner().map_err(nbd)?;
                let mut stream = writer.into_inner().map_err(|e| nbd(e.into_error()))?;
                stream.finish().map_err(nbd)?;
                Ok(copied)
            }
        }
    }

    /// Compares the content of the attached volume with the files written to it.
    pub fn verify(
        &self,
        dir: &Path,
        attached: &Value,
        copied: &Copied,
        stopped: Stopped<'_>,
    ) -> Result<Amount> {
        match self {
            Store::FileSystem => {
                let mount = Mounted::mount(dir, &export(attached, "loop")?, "ro")?;
                let amount = compare_with(&mount.path, copied, stopped)?;
                mount.unmount()?;
                Ok(amount)
            }
            Store::Archive => {
                let stream = Stream::open(attached)?;
                let mut archive =
                    tar::Archive::new(io::BufReader::with_capacity(PIECE_BYTES, stream));
                let mut amount = Amount::default();
                let mut expected = copied.files.iter();
                for entry in archive.entries().map_err(nbd)? {
                    stopped()?;
                    let mut entry = entry.map_err(nbd)?;
                    let mut bytes = Vec::new();
                    entry.read_to_end(&mut bytes).map_err(nbd)?;
                    let path = entry.path().map_err(nbd)?.into_owned();
                    match expected.next() {
                        Some(file) if file.path == path => file.check(&bytes)?,
                        _ => return Err(changed(&path)),
                    }
                    amount.add(&bytes);
                }
                Ok(amount)
            }
        }
    }
}

/// Copies the tree into a directory.
pub fn copy_into(folder: &Path, tree: &Tree, stopped: Stopped<'_>) -> Result<Copied> {
    tree.copy(stopped, |file, bytes| {
        let to = folder.join(file);
        std::fs::create_dir_all(to.parent().unwrap_or(folder))?;
        std::fs::write(to, bytes)
    })
}

/// Compares the content of a directory with the files copied there.
pub fn compare_with(folder: &Path, copied: &Copied, stopped: Stopped<'_>) -> Result<Amount> {
    let mut amount = Amount::default();
    for file in &copied.files {
        stopped()?;
        let path = folder.join(&file.path);
        let bytes = std::fs::read(&path).map_err(|e| Error::io("cannot read", &path, e))?;
        file.check(&bytes)?;
        amount.add(&bytes);
    }
    Ok(amount)
}

/// Finds the location of an export of this kind, from the JSON of `evfs attach`.
fn export(attached: &Value, kind: &str) -> Result<PathBuf> {
    let exports = attached["exports"].as_array().into_iter().flatten();
    let found = exports
        .filter(|e| e["kind"] == kind)
        .find_map(|e| e["at"].as_str());
    found
        .map(PathBuf::from)
        .ok_or_else(|| Error::Failed(format!("the volume has no {kind} export")))
}

fn nbd(e: io::Error) -> Error {
    Error::Failed(format!("I/O on the attached volume failed: {e}"))
}

/// Creates a command for a system program, including directories that an ordinary user's PATH
/// lacks.
pub fn system(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::null());
    command
}

fn checked(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let output = command
        .output()
        .map_err(|e| Error::Failed(format!("{shown}: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Failed(format!("{shown}: {}", said.trim())))
}

/// A mounted file system, unmounted on drop.
struct Mounted {
    path: PathBuf,
    mounted: bool,
}

impl Mounted {
    fn mount(dir: &Path, device: &Path, mode: &str) -> Result<Mounted> {
        let path = dir.join("mnt");
        std::fs::create_dir_all(&path).map_err(|e| Error::io("cannot create", &path, e))?;
        checked(
            system("mount")
                .args(["-t", "ext4", "-o", mode])
                .arg(device)
                .arg(&path),
        )?;
        Ok(Mounted {
            path,
            mounted: true,
        })
    }

    fn unmount(mut self) -> Result<()> {
        self.mounted = false;
        checked(system("umount").arg(&self.path))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted {
            let _ = checked(system("umount").arg("-l").arg(&self.path));
        }
    }
}

/// The volume as a stream from its first byte, over NBD. Reads and writes whole blocks.
struct Stream {
    client: Client,
    at: u64,
    rest: Vec<u8>,
}

impl Stream {
    fn open(attached: &Value) -> Result<Stream> {
        let uri = export(attached, "nbd")?;
        let socket = uri
            .to_str()
            .and_then(|u| u.split_once("socket="))
            .map(|(_, path)| PathBuf::from(path))
            .ok_or_else(|| Error::Failed(format!("no socket in {}", uri.display())))?;
        let name = attached["name"].as_str().unwrap_or_default();
        let client = Client::connect(&socket, name).map_err(nbd)?;
        Ok(Stream {
            client,
            at: 0,
            rest: Vec::new(),
        })
    }

    /// Writes the remaining data, padded to a block, and puts all of it on stable storage.
    fn finish(&mut self) -> io::Result<()> {
        self.rest.resize(self.rest.len().next_multiple_of(4096), 0);
        let rest = std::mem::take(&mut self.rest);
        self.client.write_at(self.at, &rest)?;
        self.client.flush()
    }
}

impl Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.rest.extend_from_slice(data);
        let whole = self.rest.len() - self.rest.len() % 4096;
        if whole >= PIECE_BYTES {
            let tail = self.rest.split_off(whole);
            let piece = std::mem::replace(&mut self.rest, tail);
            self.client.write_at(self.at, &piece)?;
            self.at += piece.len() as u64;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            let left = self.client.size().saturating_sub(self.at);
            let mut piece = vec![0; left.min(PIECE_BYTES as u64) as usize];
            self.client.read_at(self.at, &mut piece)?;
            self.at += piece.len() as u64;
            self.rest = piece;
        }
        let len = out.len().min(self.rest.len());
        out[..len].copy_from_slice(&self.rest[..len]);
        self.rest.drain(..len);
        Ok(len)
    }
}
