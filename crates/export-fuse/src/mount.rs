//! Mounting and unmounting.

use crate::folder::Folder;
use crate::session::{self, At};
use crate::stats::Stats;
use crate::worker::{self, Hub};
use crate::{Error, loopdev, sys};
use block::BlockDevice;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most threads of a mount.
const THREADS_MAX: usize = 256;
/// Longest file name of the kernel, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A device under a name.
#[derive(Clone)]
pub struct Export {
    /// Name of the file.
    pub name: String,
    /// What is in it.
    pub device: Arc<dyn BlockDevice>,
    /// Refuse writes whatever the device says.
    pub read_only: bool,
}

/// Where to mount, and how.
#[derive(Debug, Clone)]
pub struct Config {
    /// An existing folder.
    pub mountpoint: PathBuf,
    /// Threads, from 1 to 256. Each has requests in flight of its own, so one is enough to keep a
    /// disk busy; more share the work of a cipher.
    pub threads: usize,
    /// Let others than the mounting user come in as far as the mode of the files allows, which is
    /// root alone. An ordinary user may ask for it where `/etc/fuse.conf` says `user_allow_other`.
    pub allow_other: bool,
}

impl Config {
    /// With one thread, for the mounting user alone.
    pub fn new(mountpoint: PathBuf) -> Config {
        Config {
            mountpoint,
            threads: 1,
            allow_other: false,
        }
    }
}

/// A mounted folder. Dropping it takes it away from whoever uses it, when what was begun is done.
pub struct Mount {
    mountpoint: PathBuf,
    hub: Arc<Hub>,
    threads: Vec<JoinHandle<()>>,
}

impl Mount {
    /// Mounts. What a killed server left mounted there is taken away first, with the loop devices
    /// over its files.
    ///
    /// # Errors
    /// [`Error::Busy`] when something else is mounted there; [`Error::Device`] when a device gives
    /// no queue; what the system says, for example for a user who may not open `/dev/fuse`.
    pub fn start(config: Config, exports: Vec<Export>) -> Result<Mount, Error> {
        let shown = config.mountpoint.display().to_string();
        let failed = |e| Error::io(format!("cannot mount {shown}"), e);
        check_names(&exports).map_err(|why| failed(io::Error::other(why)))?;
        clear_place(&config.mountpoint)?;
        let mountpoint = config.mountpoint.canonicalize().map_err(failed)?;
        let count = config.threads.clamp(1, THREADS_MAX);
        let hub = Arc::new(Hub::new(Folder::new(exports), count).map_err(failed)?);
        // The queues are open before anything is mounted, so that what is mounted is served.
        let (threads, sessions) = open_queues(&hub, count)?;
        let mount = Mount {
            mountpoint,
            hub,
            threads,
        };
        let connected = session::connect(&config, &mount.mountpoint);
        match connected {
            Ok(fd) => hand_out(fd, &sessions),
            Err(e) => {
                // Nothing was mounted: there must be no unmounting when this is dropped.
                drop(sessions);
                mount.join();
                return Err(e);
            }
        }
        Ok(mount)
    }

    /// Where it is mounted, without links.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The file of an export.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        Stats::sum(self.hub.counters())
    }

    /// Whether it is served. It ends when somebody else unmounts the folder.
    pub fn is_alive(&self) -> bool {
        self.hub.alive() > 0
    }

    /// Waits until it is no longer served, or for as long as given; says whether that is so.
    pub fn wait(&self, patience: Option<Duration>) -> bool {
        self.hub.wait(patience)
    }

    /// Unmounts and waits until the last request is done. With `force` also when somebody uses it:
    /// what has begun is finished, and later requests fail for them.
    ///
    /// # Errors
    /// The mount comes back with the error; nothing has changed then.
    pub fn unmount(mut self, force: bool) -> Result<(), Box<(Mount, Error)>> {
        if let Err(e) = session::unmount(&self.mountpoint, force) {
            // Unmounted by somebody else, by hand for example, is unmounted.
            if self.is_alive() && session::mounted_at(&self.mountpoint).is_some() {
                return Err(Box::new((self, e)));
            }
        }
        self.end();
        Ok(())
    }

    fn end(&mut self) {
        self.hub.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a FUSE thread had panicked");
            }
        }
    }

    fn join(mut self) {
        self.end();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        // A folder that somebody else unmounted may belong to another mount by now.
        if self.is_alive()
            && let Err(e) = session::unmount(&self.mountpoint, true)
        {
            tracing::warn!("{e}");
        }
        self.end();
    }
}

fn check_names(exports: &[Export]) -> Result<(), String> {
    for (index, Export { name, .. }) in exports.iter().enumerate() {
        let bad = matches!(name.as_str(), "" | "." | "..")
            || name.len() > NAME_BYTES_MAX
            || name.contains(['/', '\0']);
        if bad {
            return Err(format!("{name:?} is no name for a file"));
        }
        if exports[..index].iter().any(|other| other.name == *name) {
            return Err(format!("two volumes have the name {name:?}"));
        }
    }
    Ok(())
}

fn clear_place(mountpoint: &Path) -> Result<(), Error> {
    match session::mounted_at(mountpoint) {
        Some(At::Alive) => Err(Error::Busy {
            what: mountpoint.display().to_string(),
            hint: "something is mounted there already".into(),
        }),
        Some(At::Dead) => {
            tracing::warn!(
                "{} was left by a server that ended: taking it away",
                mountpoint.display()
            );
            if let Ok(real) = session::real_path(mountpoint) {
                loopdev::detach_below(&real);
            }
            session::unmount(mountpoint, true)
        }
        None => Ok(()),
    }
}

type Threads = (Vec<JoinHandle<()>>, Vec<Sender<OwnedFd>>);

/// Starts the threads and waits until each has its queues.
fn open_queues(hub: &Arc<Hub>, count: usize) -> Result<Threads, Error> {
    let (opened, answers) = mpsc::channel();
    let (mut threads, mut sessions) = (Vec::new(), Vec::new());
    for index in 0..count {
        let (sender, session) = mpsc::channel();
        let (hub, opened) = (Arc::clone(hub), opened.clone());
        let thread = std::thread::Builder::new()
            .name(format!("evfs-fuse-{index}"))
            .spawn(move || worker::run(&hub, index, &opened, &session))
            .map_err(|e| Error::io("cannot start a thread", e))?;
        threads.push(thread);
        sessions.push(sender);
    }
    drop(opened);
    let failure = answers.iter().take(count).find_map(Result::err);
    // A thread that panicked has said nothing.
    let failure = match failure {
        Some(e) => Some(Error::Device(e)),
        None if hub.alive() < count => {
            Some(Error::io("a thread ended", io::Error::other("it panicked")))
        }
        None => None,
    };
    let Some(failure) = failure else {
        return Ok((threads, sessions));
    };
    // Threads that wait for a descriptor end with this.
    drop(sessions);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    Err(failure)
}

/// Gives each thread a descriptor of the session: a clone has a queue of its own in the kernel.
fn hand_out(session: OwnedFd, sessions: &[Sender<OwnedFd>]) {
    for sender in sessions.iter().skip(1) {
        let clone = session::open_dev_fuse()
            .and_then(|fresh| sys::clone_session(&session, &fresh).map(|()| fresh));
        // Where a user may not open the device, threads share the descriptor.
        match clone.or_else(|_| session.try_clone()) {
            Ok(fd) => drop(sender.send(fd)),
            Err(e) => tracing::warn!("a FUSE thread is left out: {e}"),
        }
    }
    if let Some(first) = sessions.first() {
        let _ = first.send(session);
    }
}
