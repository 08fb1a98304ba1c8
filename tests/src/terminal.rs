//! A program at a pseudo-terminal, with a user who reads before typing.

use rustix::termios::{LocalModes, tcgetattr};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longer than a program takes to ask, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal, and the program that it controls.
pub struct Terminal {
    ours: File,
    child: Child,
    output: Receiver<Vec<u8>>,
    said: Vec<u8>,
    /// Bytes of the output before the end of the last text that was waited for.
    read: usize,
}

impl Terminal {
    /// Starts `command` in a session of its own, with this terminal for input, output and errors.
    pub fn start(mut command: Command) -> Terminal {
        let (ours, theirs) = pair();
        let end = || Stdio::from(theirs.try_clone().expect("another descriptor"));
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().expect("the program starts");
        drop(command);
        drop(theirs);
        let mut reader = ours.try_clone().expect("another descriptor");
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // A terminal that no process has open any more returns EIO.
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Terminal {
            ours,
            child,
            output,
            said: Vec::new(),
            read: 0,
        }
    }

    /// Waits until the program prints `text`, after the text that was waited for before.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        loop {
            let unread = String::from_utf8_lossy(&self.said[self.read..]);
            if let Some(at) = unread.find(text) {
                // Only tests that print ASCII wait for more than one text.
                self.read += at + text.len();
                return;
            }
            match self.output.recv_timeout(PATIENCE) {
                Ok(bytes) => self.said.extend(bytes),
                Err(why) => panic!("`{text}` is not printed ({why}): {}", self.text()),
            }
        }
    }

    /// Types `text`, which may contain control characters.
    pub fn type_text(&mut self, text: &str) {
        self.ours.write_all(text.as_bytes()).expect("it is typed");
    }

    /// Reports whether the terminal shows typed characters.
    pub fn echoes(&self) -> bool {
        let settings = tcgetattr(&self.ours).expect("the settings of the terminal");
        settings.local_modes.contains(LocalModes::ECHO)
    }

    /// Waits for the end of the program; returns its status and everything that was printed.
    pub fn end(mut self) -> (ExitStatus, String) {
        while let Ok(bytes) = self.output.recv_timeout(PATIENCE) {
            self.said.extend(bytes);
        }
        // It hangs, and must not outlive the test.
        let _ = self.child.kill();
        let status = self.child.wait().expect("a child ends");
        (status, self.text())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.said).into_owned()
    }
}

/// Creates a terminal: the side of the test, and that of the program.
fn pair() -> (File, File) {
    let (mut ours, mut theirs) = (0, 0);
    // SAFETY: openpty writes two descriptors, which are valid when it succeeds and have no other
    // owner.
    unsafe {
        let none = std::ptr::null_mut();
        let made = libc::openpty(&mut ours, &mut theirs, none, none.cast(), none.cast());
        assert_eq!(made, 0, "a terminal");
        for fd in [ours, theirs] {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        (File::from_raw_fd(ours), File::from_raw_fd(theirs))
    }
}

/// Lets `command` run in a session of its own, without the terminal of the tests.
pub fn without(command: &mut Command) {
    // SAFETY: only the child leaves its session.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
}
