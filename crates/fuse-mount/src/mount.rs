//! A mount, from the start of its session to its end.

use crate::apart::apart;
use crate::attach::attach;
use crate::device::Device;
use crate::mountpoint::{
    self, At, KINDS, WhenBusy, clear_dead, is_at, mounted_at, no_mounts, topmost, unmount,
};
use crate::notifier::Notifier;
use crate::serve::Serve;
use crate::session::{Hold, Session};
use crate::settings::Settings;
use crate::table::mounts;
use crate::{Error, users};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Kinds of users that keep a mount busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// Processes with open files or a working directory in it.
    Processes,
    /// Processes, and users within the kernel, such as loop devices.
    All,
}

/// Checks whether this user may mount at a directory: an ordinary user must be able to write to it.
fn may_mount_at(dir: &Path) -> std::io::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Ok(rustix::fs::access(dir, rustix::fs::Access::WRITE_OK)?)
}

/// A mounted directory. Dropping it unmounts it even if it is in use.
pub struct Mount {
    mountpoint: PathBuf,
    /// Number of its file system. As long as the kernel's session lasts, no other has it.
    device: String,
    /// The kernel's session.
    kernel: Arc<Device>,
    /// `None` once the mount has ended.
    session: Option<Session>,
}

impl Mount {
    /// Mounts a file system. First unmounts the mount of a killed process at the same place.
    ///
    /// # Errors
    /// [`Error::Busy`] if something else is mounted there; errors of the system, for example if the
    /// user may not open `/dev/fuse`.
    pub fn start(settings: &Settings, served: impl Serve) -> Result<Mount, Error> {
        Mount::start_held(settings, served, None)
    }

    /// As [`Mount::start`]; hands the descriptors to `hold` before the first request is served.
    ///
    /// # Errors
    /// As [`Mount::start`]; that of `hold`.
    pub fn start_held(
        settings: &Settings,
        served: impl Serve,
        hold: Hold<'_>,
    ) -> Result<Mount, Error> {
        let mountpoint = &settings.mountpoint;
        let shown = mountpoint.display().to_string();
        let failed = |e| Error::io(format!("cannot mount {shown}"), e);
        match mounted_at(mountpoint) {
            Some(At::Dead) => drop(clear_dead(mountpoint, |_| ())?),
            Some(At::Alive) => {
                let hint = "a file system is already mounted there".into();
                return Err(Error::Busy { what: shown, hint });
            }
            None => {}
        }
        let mountpoint = std::fs::canonicalize(mountpoint).map_err(failed)?;
        if let Err(e) = may_mount_at(&mountpoint) {
            let what = format!(
                "cannot mount {shown}, because this user may not write to that directory; mount at \
                 a directory of your own"
            );
            return Err(Error::io(what, e));
        }
        Mount::at(settings, mountpoint, served, hold).map_err(|e| match no_mounts() {
            Some(needs) => Error::io(format!("cannot mount {shown}, which needs {needs}"), e),
            None => failed(e),
        })
    }

    /// Mounts a file system at a full path, over whatever is mounted there.
    fn at(
        settings: &Settings,
        mountpoint: PathBuf,
        served: impl Serve,
        hold: Hold<'_>,
    ) -> std::io::Result<Mount> {
        let kernel = attach(settings, &mountpoint)?;
        Mount::over(settings, (kernel, None), mountpoint, served, hold)
    }

    /// Continues a mount whose server has died: the kernel repeats the requests that were not answered.
    /// The mountpoint of `settings` is a full path, and nothing here accesses it, which would wait for
    /// this server. On an error the mount stays, for another successor.
    ///
    /// # Errors
    /// The mount is no longer there, or the kernel cannot repeat requests.
    pub fn resume(
        settings: &Settings,
        served: impl Serve,
        (device, offer): (OwnedFd, Vec<u8>),
        hold: Hold<'_>,
    ) -> Result<Mount, Error> {
        let (mountpoint, device) = (settings.mountpoint.clone(), Device::from(device));
        let failed = |e| {
            Error::io(
                format!("cannot continue the mount {}", mountpoint.display()),
                e,
            )
        };
        let offered = (device, Some(offer));
        Mount::over(settings, offered, mountpoint.clone(), served, hold).map_err(failed)
    }

    /// Serves an attached mount, or continues to, if there is an offer of the kernel.
    fn over(
        settings: &Settings,
        (kernel, offer): (Device, Option<Vec<u8>>),
        mountpoint: PathBuf,
        served: impl Serve,
        hold: Hold<'_>,
    ) -> std::io::Result<Mount> {
        let (kernel, is_new) = (Arc::new(kernel), offer.is_none());
        let mut mounts = mounts();
        if !is_new {
            // Something else may be mounted over it.
            mounts.retain(|mount| KINDS.contains(&&*mount.kind));
        }
        let mount = topmost(mounts, &mountpoint).filter(|mount| KINDS.contains(&&*mount.kind));
        let device = mount.map(|mount| mount.device).ok_or_else(|| {
            if is_new {
                let why = "/proc/self/mountinfo does not list the mount; mount /proc";
                std::io::Error::other(why)
            } else {
                std::io::Error::new(std::io::ErrorKind::NotConnected, "it was unmounted")
            }
        })?;
        let mut mount = Mount {
            mountpoint,
            device,
            kernel,
            session: None,
        };
        let settings = Settings {
            mountpoint: mount.mountpoint.clone(),
            ..settings.clone()
        };
        match Session::start(&mount.kernel, served, &settings, offer, hold) {
            Ok(session) => mount.session = Some(session),
            Err(e) => {
                if is_new {
                    let _ = mount.take_off(WhenBusy::Detach);
                }
                return Err(e);
            }
        }
        Ok(mount)
    }

    /// Unmounts, unless another program has done so. A mount of another program stays.
    fn take_off(&self, when_busy: WhenBusy) -> Result<(), Error> {
        if self.has_ended() {
            return Ok(());
        }
        unmount(&self.mountpoint, &self.device, when_busy).map(drop)
    }

    /// Reports whether another program has unmounted it.
    pub fn has_ended(&self) -> bool {
        self.kernel.has_ended() && !self.is_aborted()
    }

    /// Reports whether the mount remains although the kernel has ended the session, for example after
    /// `umount -f` of a mount in use. The number alone does not tell: once the file system is gone,
    /// the kernel assigns it to the next one, which is alive. The trigger of an automount has another
    /// number and is not accessed, which would mount again.
    fn is_aborted(&self) -> bool {
        is_at(&self.mountpoint, &self.device)
            && matches!(mounted_at(&self.mountpoint), Some(At::Dead))
    }

    /// Returns the path of the directory.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns a handle for notifications to the kernel.
    pub fn notifier(&self) -> Option<Notifier> {
        self.session.as_ref()?;
        Some(Notifier::new(&self.kernel))
    }

    /// Reports whether the kernel forwards sync(2) and syncfs(2), which is tested once by a
    /// syncfs(2). It waits at most for `within`, because the answer may need the disk.
    pub fn receives_sync(&self, within: Duration) -> bool {
        let is_asked = || {
            self.session
                .as_ref()
                .is_some_and(Session::has_received_sync)
        };
        if is_asked() {
            return true;
        }
        let (done, ended) = mpsc::channel::<()>();
        let Ok(mountpoint) = CString::new(self.mountpoint.as_os_str().as_bytes()) else {
            return false;
        };
        let ask = move || {
            let sync = || {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let dir = rustix::fs::open(&*mountpoint, flags, Mode::empty())?;
                rustix::fs::syncfs(&dir)
            };
            // SAFETY: only system calls.
            let _ = unsafe { apart(sync) };
            drop(done);
        };
        let thread = std::thread::Builder::new().name("fuse-sync-test".into());
        if thread.spawn(ask).is_ok() {
            let _ = ended.recv_timeout(within);
        }
        is_asked()
    }

    /// Checks whether an unmount would succeed, as far as these users are concerned.
    ///
    /// # Errors
    /// [`Error::Busy`], with the processes that use the mount.
    pub fn in_use(&self, users: Users) -> Result<(), Error> {
        if self.kernel.has_ended() {
            return Ok(());
        }
        /// Serializes callers: two of them at the same time would unmount it.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
        if users == Users::All && is_at(&self.mountpoint, &self.device) {
            // Marks an unused mount as expired, which is reported as an error, and has no other
            // effect here: any use clears the mark. An ordinary user has no permission for it.
            match rustix::mount::unmount(&self.mountpoint, UnmountFlags::EXPIRE) {
                Err(rustix::io::Errno::AGAIN) => {
                    let flags = OFlags::PATH | OFlags::CLOEXEC;
                    let _ = rustix::fs::open(&self.mountpoint, flags, Mode::empty());
                    return Ok(());
                }
                Err(rustix::io::Errno::BUSY) => return Err(mountpoint::busy(&self.mountpoint)),
                _ => {}
            }
        }
        match users::of(&self.mountpoint) {
            Some(_) => Err(mountpoint::busy(&self.mountpoint)),
            None => Ok(()),
        }
    }

    /// Unmounts and waits for the session to end. Returns false if the mount is in use and was
    /// detached, and if `has_ended`, which is called after the unmount, returns false: if another
    /// mount namespace, such as a container's, has a copy of the mount, the last request may be a
    /// long time coming.
    ///
    /// # Errors
    /// Returned together with the unchanged mount.
    pub fn unmount(
        mut self,
        when_busy: WhenBusy,
        has_ended: impl FnOnce() -> bool,
    ) -> Result<bool, Box<(Mount, Error)>> {
        let unmounted = match self.take_off(WhenBusy::Refuse) {
            Err(Error::Busy { .. }) if when_busy == WhenBusy::Detach => {
                self.take_off(WhenBusy::Detach).map(|()| false)
            }
            unmounted => unmounted.map(|()| true),
        };
        let over = match unmounted {
            Ok(over) => over,
            // If another program has unmounted it, for example a manual `umount`, that is success.
            Err(_) if self.kernel.has_ended() => true,
            Err(e) => return Err(Box::new((self, e))),
        };
        let over = over && has_ended();
        // Otherwise its threads continue: the kernel ends the session when the last user closes its
        // files, which may be never.
        match (self.session.take(), over) {
            (Some(session), true) => session.join(),
            (Some(session), false) => drop(session),
            (None, _) => {}
        }
        Ok(over)
    }

    /// Unmounts a mount that no other program has noticed, and waits for the session to end, as
    /// [`Mount::unmount`]. Returns the mount if it is in use, or if another program has unmounted
    /// it, which the kernel may not have completed yet.
    pub fn withdraw(mut self, has_ended: impl FnOnce() -> bool) -> Result<(), Box<Mount>> {
        if !unmount(&self.mountpoint, &self.device, WhenBusy::Refuse)
            .is_ok_and(|was_there| was_there)
        {
            return Err(Box::new(self));
        }
        if let Some(session) = self.session.take().filter(|_| has_ended()) {
            session.join();
        }
        Ok(())
    }

    /// Waits until the mount is unmounted by another program.
    pub fn wait(mut self) {
        if let Some(session) = self.session.take() {
            session.join();
            let _ = self.take_off(WhenBusy::Detach);
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.session.is_some() {
            let _ = self.take_off(WhenBusy::Detach);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reply;
    use fuse_proto::{Operation, Request, Wanted};
    use rustix::mount::MountFlags;
    use std::ffi::CStr;

    struct Empty;

    impl Serve for Empty {
        fn wanted(&self) -> Wanted {
            Wanted::default()
        }

        fn serve(&self, _: &Request<'_>, reply: Reply<'_>) {
            reply.error(rustix::io::Errno::NOSYS);
        }
    }

    /// Interval at which a condition is read.
    const TICK: Duration = Duration::from_millis(1);

    /// Time that nothing takes.
    const LONG: Duration = Duration::from_secs(30);

    /// Reports a request to sync everything, and answers it after the next message.
    struct OnSync {
        asked: Mutex<mpsc::Sender<()>>,
        is_unmounted: Mutex<mpsc::Receiver<()>>,
    }

    impl Serve for OnSync {
        fn wanted(&self) -> Wanted {
            Wanted::default()
        }

        fn serve(&self, request: &Request<'_>, reply: Reply<'_>) {
            if !matches!(request.operation, Operation::SyncFs) {
                return Empty.serve(request, reply);
            }
            self.asked.lock().unwrap().send(()).unwrap();
            let answered = self.is_unmounted.lock().unwrap().recv_timeout(LONG);
            reply.result(answered.map_err(|_| rustix::io::Errno::TIMEDOUT));
        }
    }

    fn settings(mountpoint: &Path) -> Settings {
        Settings {
            mountpoint: mountpoint.to_owned(),
            source: "a,b".into(),
            threads: 2,
            read_only: true,
            allow_other: false,
            suid: false,
            dev: false,
            exec: false,
            on_block_device: false,
        }
    }

    /// A directory at which file systems are mounted over each other.
    struct Place {
        dir: PathBuf,
        _temporary: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Place {
            let temporary = tempfile::tempdir().unwrap();
            Place {
                dir: temporary.path().canonicalize().unwrap(),
                _temporary: temporary,
            }
        }

        fn mount(&self) -> Mount {
            Mount::at(&settings(&self.dir), self.dir.clone(), Empty, None).unwrap()
        }

        /// Mounts as another program.
        fn mount_other(&self) {
            let options = None::<&CStr>;
            rustix::mount::mount("other", &self.dir, "tmpfs", MountFlags::empty(), options)
                .unwrap();
        }

        fn unmount_topmost(&self) -> rustix::io::Result<()> {
            rustix::mount::unmount(&self.dir, UnmountFlags::empty())
        }

        /// Returns the types of the mounts, the topmost last.
        fn kinds(&self) -> Vec<String> {
            let mut mounts = mounts();
            mounts.retain(|mount| mount.point == self.dir);
            mounts.into_iter().map(|mount| mount.kind).collect()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            while rustix::mount::unmount(&self.dir, UnmountFlags::DETACH).is_ok() {}
        }
    }

    mod needs_root {
        use super::*;
        use test_support::needs_root;

        #[test]
        fn a_mount_beneath_stays_however_the_mount_over_it_ends() {
            needs_root("mounts");
            let place = Place::new();
            place.mount_other();
            let ends: [fn(&Place, Mount); 6] = [
                |_, mount| {
                    let unmounted = mount.unmount(WhenBusy::Refuse, || true);
                    assert!(unmounted.map_err(|failed| failed.1).unwrap());
                },
                |_, mount| {
                    let unmounted = mount.unmount(WhenBusy::Detach, || true);
                    assert!(unmounted.map_err(|failed| failed.1).unwrap());
                },
                |_, mount| drop(mount),
                |place, mount| {
                    place.unmount_topmost().unwrap();
                    mount.wait();
                },
                |place, mount| {
                    place.unmount_topmost().unwrap();
                    drop(mount);
                },
                |place, mount| {
                    let flags = OFlags::PATH | OFlags::CLOEXEC;
                    let user = rustix::fs::open(&place.dir, flags, Mode::empty()).unwrap();
                    let forced = rustix::mount::unmount(&place.dir, UnmountFlags::FORCE);
                    assert_eq!(
                        forced,
                        Err(rustix::io::Errno::BUSY),
                        "it is aborted and stays"
                    );
                    drop(user);
                    mount.wait();
                },
            ];
            for (number, end) in ends.into_iter().enumerate() {
                let mount = place.mount();
                assert_eq!(place.kinds(), ["tmpfs", KINDS[0]], "{number}");
                end(&place, mount);
                assert_eq!(place.kinds(), ["tmpfs"], "{number}");
            }
        }

        /// The kernel assigns the numbers of a mount that has ended to the next one.
        #[test]
        fn a_mount_at_the_place_of_one_that_was_unmounted_stays() {
            needs_root("mounts");
            let place = Place::new();
            let ends: [fn(Mount); 2] = [
                |mount| {
                    let unmounted = mount.unmount(WhenBusy::Detach, || true);
                    assert!(unmounted.map_err(|failed| failed.1).unwrap());
                },
                drop::<Mount>,
            ];
            for end in ends {
                let mount = place.mount();
                place.unmount_topmost().unwrap();
                place.mount_other();
                mount.in_use(Users::All).unwrap();
                mount.in_use(Users::All).unwrap();
                end(mount);
                assert_eq!(place.kinds(), ["tmpfs"]);
                place.unmount_topmost().unwrap();
            }
        }

        /// An administrator may unmount at any moment of the test for sync(2).
        #[test]
        fn a_mount_that_is_unmounted_while_its_sync_is_tested_has_ended() {
            needs_root("mounts");
            let on_block_device = |place: &Place| Settings {
                on_block_device: true,
                ..settings(&place.dir)
            };
            // Before the test opens the directory.
            let place = Place::new();
            let before =
                Mount::at(&on_block_device(&place), place.dir.clone(), Empty, None).unwrap();
            assert!(!before.has_ended());
            place.unmount_topmost().unwrap();
            assert!(!before.receives_sync(LONG), "another mount answered");
            assert!(before.has_ended());
            before.wait();
            assert_eq!(place.kinds(), [""; 0]);

            // While the test waits for the answer, if this kernel forwards the request.
            let (asked, is_asked) = mpsc::channel();
            let (unmounted, is_unmounted) = mpsc::channel();
            let served = OnSync {
                asked: Mutex::new(asked),
                is_unmounted: Mutex::new(is_unmounted),
            };
            let during =
                Mount::at(&on_block_device(&place), place.dir.clone(), served, None).unwrap();
            std::thread::scope(|scope| {
                let tested = scope.spawn(|| during.receives_sync(LONG));
                let mut waiting = is_asked.recv_timeout(TICK);
                while waiting.is_err() && !tested.is_finished() {
                    waiting = is_asked.recv_timeout(TICK);
                }
                if waiting.is_ok() {
                    assert_eq!(place.unmount_topmost(), Err(rustix::io::Errno::BUSY));
                    rustix::mount::unmount(&place.dir, UnmountFlags::DETACH).unwrap();
                    unmounted.send(()).unwrap();
                    assert!(tested.join().unwrap());
                } else {
                    assert!(!tested.join().unwrap());
                    place.unmount_topmost().unwrap();
                }
            });
            // Ends once the test has closed the directory.
            during.wait();
            assert_eq!(place.kinds(), [""; 0]);
        }

        #[test]
        fn a_mount_is_withdrawn_unless_another_program_uses_or_unmounts_it() {
            needs_root("mounts");
            let place = Place::new();
            assert!(place.mount().withdraw(|| true).is_ok());
            assert_eq!(place.kinds(), [""; 0]);

            let mount = place.mount();
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let user = rustix::fs::open(&place.dir, flags, Mode::empty()).unwrap();
            let mount = *mount.withdraw(|| true).expect_err("it is in use");
            assert_eq!(place.kinds(), [KINDS[0]]);
            // The kernel ends the session later.
            rustix::mount::unmount(&place.dir, UnmountFlags::DETACH).unwrap();
            assert!(!mount.has_ended());
            let mount = *mount.withdraw(|| true).expect_err("it is unmounted");
            drop(user);
            mount.wait();
        }

        #[test]
        fn a_mount_on_top_stays_and_is_named() {
            needs_root("mounts");
            let place = Place::new();
            let mut mount = place.mount();
            place.mount_other();
            for when_busy in [WhenBusy::Refuse, WhenBusy::Detach] {
                let failed = mount.unmount(when_busy, || true);
                let (kept, error) = *failed.expect_err("another mount is on top");
                assert!(error.is_busy(), "{error}");
                assert!(error.to_string().contains("mounted over it"), "{error}");
                assert_eq!(place.kinds(), [KINDS[0], "tmpfs"]);
                mount = kept;
            }
            place.unmount_topmost().unwrap();
            let unmounted = mount.unmount(WhenBusy::Refuse, || true);
            assert!(unmounted.map_err(|failed| failed.1).unwrap());
            assert_eq!(place.kinds(), [""; 0]);
        }
    }
}
