//! Whiteouts, and a mount as the upper layer of the kernel's overlay file system.

mod common;

use common::{c, check, device, in_another_process, mounted};
use std::ffi::{CStr, CString};
use std::fs::{self as sys, File};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const NOBODY: u32 = 65_534;

fn rename(from: &Path, to: &Path, flags: u32) -> Result<(), i32> {
    let (from, to, here) = (c(from), c(to), libc::AT_FDCWD);
    // SAFETY: both strings end with a zero.
    check(unsafe { libc::renameat2(here, from.as_ptr(), here, to.as_ptr(), flags) }).map(drop)
}

/// Checks whether a name is a whiteout: a character device 0/0 without permissions.
fn is_whiteout(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| {
        meta.file_type().is_char_device() && (meta.rdev(), meta.mode() & 0o7777) == (0, 0)
    })
}

#[test]
fn a_rename_leaves_a_whiteout_for_root_and_for_others() {
    let device = device();
    mounted(&device, |dir| {
        sys::set_permissions(dir, sys::Permissions::from_mode(0o777)).expect("set");
        let (a, b, sub) = (dir.join("a"), dir.join("b"), dir.join("sub"));
        sys::write(&a, "a").expect("written");
        sys::create_dir(&sub).expect("made");
        rename(&a, &sub.join("a"), libc::RENAME_WHITEOUT).expect("renamed");
        assert!(is_whiteout(&a));
        assert_eq!(sys::read(sub.join("a")).expect("readable"), b"a");
        assert_eq!(sys::read_dir(dir).expect("listed").count(), 2);

        sys::write(&b, "b").expect("written");
        let both = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
        assert_eq!(rename(&b, &sub, both), Err(libc::EEXIST));
        assert_eq!(sys::read(&b).expect("nothing has happened"), b"b");
        rename(&b, &dir.join("c"), both).expect("renamed");
        assert!(is_whiteout(&b));
        let wrong = libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE;
        assert_eq!(rename(&sub, &b, wrong), Err(libc::EINVAL));
        // A directory, over an empty one.
        sys::create_dir(dir.join("empty")).expect("made");
        rename(&sub, &dir.join("empty"), libc::RENAME_WHITEOUT).expect("renamed");
        assert!(is_whiteout(&sub) && dir.join("empty/a").exists());
        // The kernel takes whiteouts away as it does other names.
        sys::remove_file(&a).expect("removed");

        let paths = [dir.join("own"), dir.join("moved")].map(|path| c(&path));
        in_another_process(|| {
            let [own, moved] = &paths;
            // SAFETY: system calls of a single-threaded process, with zero-terminated strings.
            unsafe {
                libc::setresgid(NOBODY, NOBODY, NOBODY) == 0
                    && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0
                    && libc::open(own.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o644) >= 0
                    && libc::renameat2(
                        libc::AT_FDCWD,
                        own.as_ptr(),
                        libc::AT_FDCWD,
                        moved.as_ptr(),
                        libc::RENAME_WHITEOUT,
                    ) == 0
            }
        });
        assert!(is_whiteout(&dir.join("own")));
        assert_eq!(
            dir.join("own").symlink_metadata().expect("there").uid(),
            NOBODY
        );
    });
    mounted(&device, |dir| {
        assert!(is_whiteout(&dir.join("b")) && is_whiteout(&dir.join("own")));
    });
}

/// Mounted overlay, which ends with the value.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(layers: &Path, upper: &Path, options: &str) -> Overlay {
        let merged = layers.join("merged");
        let text = format!(
            "lowerdir={},upperdir={},workdir={},{options}",
            layers.join("lower").display(),
            upper.join("upper").display(),
            upper.join("work").display(),
        );
        let (at, text) = (c(&merged), CString::new(text).expect("no zero in it"));
        let kind: &CStr = c"overlay";
        // SAFETY: all strings end with a zero.
        let mounted = unsafe {
            libc::mount(
                kind.as_ptr(),
                at.as_ptr(),
                kind.as_ptr(),
                0,
                text.as_ptr().cast(),
            )
        };
        check(mounted).unwrap_or_else(|errno| panic!("{text:?}: errno {errno}"));
        Overlay(merged)
    }

    /// Returns the options of the mount as the kernel lists them.
    fn options(&self) -> String {
        let mounts = sys::read_to_string("/proc/self/mountinfo").expect("readable");
        let at = self.0.to_str().expect("text");
        let line = mounts
            .lines()
            .find(|line| line.split(' ').nth(4) == Some(at));
        line.expect("it is listed").to_owned()
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let at = c(&self.0);
        // SAFETY: the string ends with a zero.
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Makes the directories of an overlay, with some files in the lower one.
fn layers(upper: &Path) -> tempfile::TempDir {
    let layers = tempfile::tempdir().expect("a directory");
    for sub in ["lower/dir/sub", "lower/gone", "lower/again", "merged"] {
        sys::create_dir_all(layers.path().join(sub)).expect("made");
    }
    for file in ["file", "removed", "dir/inside", "gone/x", "again/old"] {
        sys::write(layers.path().join("lower").join(file), file).expect("written");
    }
    for sub in ["upper", "work"] {
        sys::create_dir(upper.join(sub)).expect("made");
    }
    layers
}

fn names(dir: &Path) -> Vec<String> {
    let listed = sys::read_dir(dir).expect("listed");
    let mut names: Vec<_> = listed
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    names.sort();
    names
}

#[test]
fn an_overlay_has_a_mount_as_its_upper_layer() {
    let device = device();
    mounted(&device, |dir| {
        let layers = layers(dir);
        let options = "redirect_dir=on,index=on,metacopy=off";
        let overlay = Overlay::mount(layers.path(), dir, options);
        for option in ["redirect_dir=on", "index=on"] {
            assert!(overlay.options().contains(option), "{}", overlay.options());
        }
        let (merged, upper) = (overlay.0.clone(), dir.join("upper"));
        sys::write(merged.join("new"), "new").expect("written");
        let mut file = File::options()
            .append(true)
            .open(merged.join("file"))
            .expect("opened");
        file.write_all(b" and more").expect("written");
        drop(file);
        assert_eq!(
            sys::read(upper.join("file")).expect("copied up"),
            b"file and more"
        );
        sys::remove_file(merged.join("removed")).expect("removed");
        assert!(is_whiteout(&upper.join("removed")));
        sys::rename(merged.join("dir"), merged.join("moved")).expect("renamed");
        assert!(is_whiteout(&upper.join("dir")));
        assert_eq!(
            sys::read(merged.join("moved/inside")).expect("readable"),
            b"dir/inside"
        );
        sys::remove_dir_all(merged.join("gone")).expect("removed");
        sys::remove_dir_all(merged.join("again")).expect("removed");
        sys::create_dir(merged.join("again")).expect("made");
        assert_eq!(
            names(&merged.join("again")),
            [""; 0],
            "the old entries stay hidden"
        );
        let mut unnamed = File::options();
        unnamed.write(true).custom_flags(libc::O_TMPFILE);
        if !common::kernel_before(6, 3) {
            unnamed.open(&merged).expect("a file without a name");
        }
        sys::hard_link(merged.join("file"), merged.join("link")).expect("linked");
        assert_eq!(merged.join("file").metadata().expect("there").nlink(), 2);
        assert_eq!(names(&merged), ["again", "file", "link", "moved", "new"]);
        drop(overlay);

        let overlay = Overlay::mount(layers.path(), dir, options);
        assert_eq!(names(&overlay.0), ["again", "file", "link", "moved", "new"]);
        assert_eq!(names(&overlay.0.join("moved")), ["inside", "sub"]);
        assert_eq!(names(&overlay.0.join("again")), [""; 0]);
        drop(overlay);
        common::wait_until("the kernel has released the layers", || {
            let mounts = sys::read_to_string("/proc/self/mountinfo").expect("readable");
            !mounts.contains(merged.to_str().expect("text"))
        });
    });
}
