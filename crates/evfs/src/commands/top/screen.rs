//! The terminal: full-screen mode, keys, signals, and the loop that draws samples.
//!
//! **Invariant:** the terminal has its former settings and content again when the program ends, in
//! whichever way: by a key, an error, a signal or a panic. Only SIGKILL cannot be handled.
//!
//! Keys are read here and not by `crossterm`, whose reader never returns after the terminal was
//! closed.

use super::keys::Decoder;
use super::model::{Effect, Model};
use super::render;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::tcgetwinsize;
use stack::watch::{Sample, Watcher};
use stack::{Error, Result, StopSignals, exit};
use std::io::{self, Read, Stdout, Write as _, stdin, stdout};
use std::os::unix::net::UnixStream;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Longest wait for answers before a sample is shown without them.
const GRACE: Duration = Duration::from_millis(250);

/// Time between two checks of the size of the terminal.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// Time after which an incomplete escape sequence is the Escape key.
const ESCAPE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Exit code of a program whose terminal was closed.
const HUNG_UP: u8 = 129;

/// Shows samples until the user quits, a signal arrives, or `count` samples were taken. Returns the
/// exit code.
///
/// # Errors
/// The directory of the services is not safe; the terminal cannot be used.
pub fn run(watcher: Watcher, mut model: Model, count: Option<u64>) -> Result<u8> {
    let signals = StopSignals::install()?;
    let failed = |e| Error::Failed(format!("cannot start the sampling: {e}"));
    let samples = Samples::start(watcher, model.interval).map_err(failed)?;
    let mut screen = Screen::enter().map_err(unusable)?;
    let ended = show(&mut screen, &signals, &samples, &mut model, count);
    drop(screen);
    ended
}

fn unusable(error: io::Error) -> Error {
    let why = stack::without_number(&error.to_string());
    Error::Failed(format!(
        "cannot use the terminal: {why}; `evfs top --once` prints a sample as text"
    ))
}

fn show(
    screen: &mut Screen,
    signals: &StopSignals,
    samples: &Samples,
    model: &mut Model,
    count: Option<u64>,
) -> Result<u8> {
    let mut decoder = Decoder::default();
    let mut left = count;
    let mut size = window_size();
    screen.draw(model)?;
    loop {
        let ready = wait(signals, samples, decoder.is_waiting())?;
        if let Some(signal) = signals.stop_asked() {
            return Ok(u8::try_from(128 + signal).unwrap_or(exit::FAILURE));
        }
        let mut keys = Vec::new();
        if ready.keys {
            let mut bytes = [0; 256];
            match rustix::io::read(stdin(), &mut bytes) {
                Ok(0) => return Ok(HUNG_UP),
                Ok(len) => keys = decoder.decode(&bytes[..len]),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(rustix::io::Errno::IO) => return Ok(HUNG_UP),
                Err(error) => return Err(unusable(error.into())),
            }
        } else if decoder.is_waiting() {
            keys.extend(decoder.flush());
        }
        let now = window_size();
        let mut changed = now != size;
        size = now;
        for key in keys {
            changed = true;
            match model.handle(key, screen.page(model)) {
                Effect::Draw => {}
                Effect::Redraw => screen.erase()?,
                Effect::Quit => return Ok(exit::OK),
                Effect::Interrupt => return Ok(exit::INTERRUPTED),
                Effect::Suspend => screen.suspend()?,
            }
        }
        while let Some(sample) = samples.next()? {
            model.take(sample);
            changed = true;
            left = left.map(|left| left.saturating_sub(1));
        }
        if changed {
            screen.draw(model)?;
        }
        if left == Some(0) {
            return Ok(exit::OK);
        }
    }
}

/// Events that a wait has found.
struct Ready {
    /// The terminal has bytes to read, or was closed.
    keys: bool,
}

/// Waits for keys, signals or a sample, and for at most a tick.
fn wait(signals: &StopSignals, samples: &Samples, is_waiting: bool) -> Result<Ready> {
    let input = stdin();
    let mut fds = [
        PollFd::new(&input, PollFlags::IN),
        PollFd::new(signals, PollFlags::IN),
        PollFd::new(&samples.wake, PollFlags::IN),
    ];
    let limit = if is_waiting { &ESCAPE } else { &TICK };
    match poll(&mut fds, Some(limit)) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok(Ready { keys: false }),
        Err(error) => return Err(unusable(error.into())),
    }
    let keys = !fds[0].revents().is_empty();
    samples.drain();
    Ok(Ready { keys })
}

fn window_size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(stdout()).ok()?;
    Some((size.ws_col, size.ws_row))
}

/// Samples that a thread takes.
struct Samples {
    taken: Receiver<Result<Sample>>,
    /// Readable after a sample was taken.
    wake: UnixStream,
}

impl Samples {
    fn start(mut watcher: Watcher, interval: Duration) -> io::Result<Samples> {
        let (sender, taken) = channel();
        let (wake, mut waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let take = move || {
            let mut next = Instant::now();
            loop {
                let sample = watcher.sample(GRACE.min(interval / 2));
                let is_last = sample.is_err();
                if sender.send(sample).is_err() || waker.write_all(&[0]).is_err() || is_last {
                    return;
                }
                next = (next + interval).max(Instant::now());
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        };
        let thread = std::thread::Builder::new().name("evfs-top".into());
        thread.spawn(take)?;
        Ok(Samples { taken, wake })
    }

    /// The next sample, if there is one.
    fn next(&self) -> Result<Option<Sample>> {
        match self.taken.try_recv() {
            Ok(sample) => sample.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                Err(Error::Failed("the thread that samples has ended".into()))
            }
        }
    }

    fn drain(&self) {
        while (&self.wake).read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
    }
}

/// Whether the terminal is in full-screen mode.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The terminal in full-screen mode, which ends with this value.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    fn enter() -> io::Result<Screen> {
        restore_at_panics();
        let entered = enter().and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        match entered {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    fn draw(&mut self, model: &Model) -> Result<()> {
        let draw = |frame: &mut ratatui::Frame<'_>| {
            let area = frame.area();
            render::render(model, area, frame.buffer_mut());
        };
        self.terminal.draw(draw).map(drop).map_err(unusable)
    }

    /// The number of visible rows.
    fn page(&self, model: &Model) -> usize {
        let size = self.terminal.size().unwrap_or_default();
        render::page(model, (ratatui::layout::Position::ORIGIN, size).into())
    }

    /// Erases the screen, so that the next drawing is complete.
    fn erase(&mut self) -> Result<()> {
        self.terminal.clear().map_err(unusable)
    }

    /// Stops the process, as Ctrl-Z does elsewhere, until the shell continues it.
    fn suspend(&mut self) -> Result<()> {
        restore();
        let stopped = kill_process(getpid(), Signal::TSTP);
        enter().map_err(unusable)?;
        stopped.map_err(|error| unusable(error.into()))?;
        self.erase()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn enter() -> io::Result<()> {
    ACTIVE.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// Ends the full-screen mode, if it is active.
fn restore() {
    if ACTIVE.swap(false, Ordering::SeqCst) {
        // A terminal that was closed cannot be restored.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// Restores the terminal before a panic of any thread is reported.
fn restore_at_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
    });
}
