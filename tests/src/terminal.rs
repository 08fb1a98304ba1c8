//! A program at a pseudo-terminal, with a user who reads before typing.

use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

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

    /// Waits until the screen, as the program has drawn it, satisfies `wanted`; returns its lines.
    #[track_caller]
    pub fn wait_for_screen(
        &mut self,
        what: &str,
        wanted: impl Fn(&[String]) -> bool,
    ) -> Vec<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let lines = screen(&self.said);
            if wanted(&lines) {
                return lines;
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.said.extend(bytes),
                Err(why) => panic!("{what} is not shown ({why}):\n{}", lines.join("\n")),
            }
        }
    }

    /// Sets the size of the terminal.
    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.ours, size).expect("a terminal has a size");
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: i32) {
        crate::signal(self.child.id() as i32, signal);
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

/// Draws the output of a program that moves the cursor and erases the screen; colors are left out.
/// Returns the lines without the blanks at their ends.
fn screen(output: &[u8]) -> Vec<String> {
    const ROWS: usize = 100;
    let text = String::from_utf8_lossy(output);
    let mut lines = vec![Vec::new(); ROWS];
    let (mut x, mut y) = (0, 0);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' => {
                if rest.next() != Some('[') {
                    continue;
                }
                let mut parameters = String::new();
                let last = rest.by_ref().find(|c| {
                    let is_last = ('@'..='~').contains(c);
                    if !is_last {
                        parameters.push(*c);
                    }
                    is_last
                });
                let mut numbers = parameters.split(';').map(|n| n.parse().unwrap_or(1));
                match last {
                    Some('H') => {
                        let mut place = || numbers.next().unwrap_or(1_usize).saturating_sub(1);
                        (y, x) = (place().min(ROWS - 1), place());
                    }
                    Some('J') => lines.iter_mut().for_each(Vec::clear),
                    _ => {}
                }
            }
            '\r' => x = 0,
            '\n' => y = (y + 1).min(ROWS - 1),
            c => {
                let line = &mut lines[y];
                if line.len() <= x {
                    line.resize(x + 1, ' ');
                }
                line[x] = c;
                x += 1;
            }
        }
    }
    let text = lines.into_iter().map(|line| {
        let line: String = line.into_iter().collect();
        line.trim_end().to_owned()
    });
    text.collect()
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
