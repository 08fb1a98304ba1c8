//! File handles: `name_to_handle_at` and `open_by_handle_at`, by which NFS servers name files.

mod common;

use common::file_handles::{FileHandle, drop_caches, handle_of, open};
use common::{c, check, configured, device, mounted};
use std::fs::{self as sys, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use test_support::installed;

fn read(mut file: File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).expect("readable");
    text
}

#[test]
fn handles_lead_to_forgotten_files_and_outlive_the_mount() {
    let device = device();
    let mut handles = Vec::new();
    let check_all = |dir: &Path, handles: &[FileHandle]| {
        let [file, sub, link] = handles else {
            panic!("there are three");
        };
        assert_eq!(
            read(open(dir, file, libc::O_RDONLY).expect("a file")),
            "content"
        );
        let sub = open(dir, sub, libc::O_DIRECTORY).expect("a directory");
        let path = sys::read_link(format!("/proc/self/fd/{}", sub.as_raw_fd()));
        let real = dir.canonicalize().expect("there").join("a/b/c");
        assert_eq!(path.expect("it has a path"), real);
        let link = open(dir, link, libc::O_PATH | libc::O_NOFOLLOW).expect("a link");
        let name = c(Path::new(""));
        let mut target = [0u8; 16];
        let (fd, to) = (link.as_raw_fd(), target.as_mut_ptr().cast());
        // SAFETY: an open descriptor, a zero-terminated string, and a buffer of that length.
        let len = check(unsafe { libc::readlinkat(fd, name.as_ptr(), to, 16) } as i64);
        assert_eq!(&target[..len.expect("readable") as usize], b"target");
    };
    mounted(&device, |dir| {
        let sub = dir.join("a/b/c");
        sys::create_dir_all(&sub).expect("made");
        sys::write(sub.join("file"), "content").expect("written");
        std::os::unix::fs::symlink("target", sub.join("link")).expect("linked");
        let paths = [sub.join("file"), sub.clone(), sub.join("link")];
        handles = paths.iter().map(|path| handle_of(path)).collect();
        check_all(dir, &handles);
        drop_caches();
        check_all(dir, &handles);
    });
    // A new mount knows none of the nodes yet.
    mounted(&device, |dir| {
        check_all(dir, &handles);
        sys::remove_file(dir.join("a/b/c/file")).expect("removed");
        let stale = |dir: &Path| open(dir, &handles[0], libc::O_RDONLY).map(drop);
        assert_eq!(stale(dir), Err(libc::ESTALE));
        for i in 0..100 {
            sys::write(dir.join(format!("{i}")), "another").expect("written");
        }
        drop_caches();
        assert_eq!(
            stale(dir),
            Err(libc::ESTALE),
            "no other file has its number"
        );
    });
    mounted(&device, |dir| {
        assert_eq!(
            open(dir, &handles[0], libc::O_RDONLY).map(drop),
            Err(libc::ESTALE)
        );
        // Bytes that no file system made, such as a node number and a generation that do not exist.
        for byte in [0, 1, 0x7f, 0xff] {
            let mut wrong = handles[1];
            let bytes = wrong.bytes as usize;
            wrong.data[..bytes].fill(byte);
            assert_eq!(
                open(dir, &wrong, libc::O_RDONLY).map(drop),
                Err(libc::ESTALE)
            );
        }
        let mut other = handles[1];
        other.data[8] ^= 1;
        let opened = open(dir, &other, libc::O_RDONLY).map(drop);
        assert_eq!(opened, Err(libc::ESTALE), "another generation");
    });
}

#[test]
fn without_the_flag_of_the_kernel_a_forgotten_file_is_stale() {
    let device = device();
    let without = fuse_mount::fuse_proto::abi::FUSE_EXPORT_SUPPORT;
    let mut handle = None;
    mounted(&device, |dir| {
        sys::write(dir.join("file"), "x").expect("written");
        handle = Some(handle_of(&dir.join("file")));
    });
    let handle = handle.expect("made above");
    configured(
        &device,
        |config| config.without = without,
        |dir, _| {
            assert_eq!(
                open(dir, &handle, libc::O_RDONLY).map(drop),
                Err(libc::ESTALE)
            );
            assert_eq!(sys::read(dir.join("file")).expect("readable"), b"x");
            open(dir, &handle, libc::O_RDONLY).expect("the kernel knows it now");
        },
    );
}

/// NFS server in user space that exports a directory, in a network namespace of its own, and its
/// clients.
struct Nfs {
    server: Child,
    dir: PathBuf,
}

impl Nfs {
    fn export(exported: &Path, dir: &Path) -> Nfs {
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 4; Enable_RQUOTA = false; Enable_NLM = false; }}\n\
             NFSv4 {{ RecoveryRoot = {dir}; RecoveryBackend = fs; Graceless = true; }}\n\
             EXPORT {{ Export_Id = 1; Path = {}; Pseudo = /e; Access_Type = RW; SecType = sys; \
             Squash = No_Root_Squash; Filesystem_Id = 42.1; FSAL {{ Name = VFS; }} }}\n",
            exported.display(),
            dir = dir.display(),
        );
        let config = dir.join("config");
        sys::write(&config, text).expect("written");
        let with_loopback = "ip link set lo up && exec \"$@\"";
        let server = Command::new("unshare")
            .args(["--net", "--", "sh", "-c", with_loopback, "sh"])
            .arg(installed("ganesha.nfsd"))
            .arg("-F")
            .args(["-f".as_ref(), config.as_os_str()])
            .args(["-L".as_ref(), dir.join("log").as_os_str()])
            .args(["-p".as_ref(), dir.join("pid").as_os_str()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let dir = dir.to_owned();
        let server = server.expect("it starts");
        Nfs { server, dir }
    }

    fn url(&self, path: &str) -> String {
        format!("nfs://127.0.0.1/e/{path}?version=4")
    }

    /// Prepares a client in the namespace of the server.
    fn client(&self, name: &str) -> Command {
        let mut client = Command::new("nsenter");
        client.arg(format!("--net=/proc/{}/ns/net", self.server.id()));
        client.arg(installed(name));
        client
    }

    fn cat(&self, path: &str) -> String {
        let cat = self.client("nfs-cat").arg(self.url(path)).output();
        String::from_utf8(cat.expect("it starts").stdout).expect("text")
    }

    fn copy(&self, from: &Path, to: &str) -> bool {
        let copied = self.client("nfs-cp").arg(from).arg(self.url(to)).output();
        copied.expect("it starts").status.success()
    }

    fn log(&self) -> String {
        sys::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Nfs {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Needs the packages nfs-ganesha, nfs-ganesha-vfs and libnfs-utils.
mod needs_peer {
    use super::*;

    #[test]
    fn a_server_of_nfs_exports_a_mount_also_after_the_kernel_has_forgotten_its_files() {
        mounted(&device(), |dir| {
            let other = tempfile::tempdir().expect("a directory");
            sys::create_dir_all(dir.join("a/b")).expect("made");
            sys::write(dir.join("a/b/file"), "content").expect("written");
            let nfs = Nfs::export(dir, other.path());
            common::wait_until("the server answers", || nfs.cat("a/b/file") == "content");
            drop_caches();
            assert_eq!(nfs.cat("a/b/file"), "content", "{}", nfs.log());
            sys::write(other.path().join("new"), "written").expect("written");
            assert!(
                nfs.copy(&other.path().join("new"), "a/new"),
                "{}",
                nfs.log()
            );
            assert_eq!(sys::read(dir.join("a/new")).expect("readable"), b"written");
        });
    }
}
