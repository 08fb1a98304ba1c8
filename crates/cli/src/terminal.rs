//! Questions at a terminal whose answers are not shown.
//!
//! **Invariant:** the echo is off before the first question is shown and until the last answer is
//! read. Then the terminal has its former settings, also if Ctrl-C ends the process.

use crate::output::printable;
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use secret::SecretBytes;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};

/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 4096;

const CTRL_C: u8 = 0x03;
const CTRL_D: u8 = 0x04;
const BACKSPACE: u8 = 0x08;
const CTRL_U: u8 = 0x15;
const CTRL_W: u8 = 0x17;
const ESCAPE: u8 = 0x1b;
const CTRL_BACKSLASH: u8 = 0x1c;
const DELETE: u8 = 0x7f;

/// A terminal that does not show typed characters while this value lives.
pub(crate) struct HiddenTerminal<'a> {
    terminal: &'a File,
    before: Termios,
}

impl HiddenTerminal<'_> {
    /// Turns off the echo of `terminal`. Characters typed before are discarded, because the
    /// terminal has shown them.
    pub(crate) fn begin(terminal: &File) -> io::Result<HiddenTerminal<'_>> {
        let before = tcgetattr(terminal)?;
        let mut hidden = before.clone();
        // Without signals from the terminal, Ctrl-C arrives as a character, and the settings can
        // be restored before the process ends.
        hidden.local_modes.remove(
            LocalModes::ECHO
                | LocalModes::ECHONL
                | LocalModes::ICANON
                | LocalModes::ISIG
                | LocalModes::IEXTEN,
        );
        hidden.special_codes[SpecialCodeIndex::VMIN] = 1;
        hidden.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(terminal, OptionalActions::Flush, &hidden)?;
        Ok(HiddenTerminal { terminal, before })
    }

    /// Shows `question` and reads an answer of one line.
    ///
    /// # Errors
    /// Ctrl-D without an answer, the end of the terminal, and errors of the system.
    pub(crate) fn ask(&self, question: &str) -> io::Result<SecretBytes> {
        self.show(&format!("{}: ", printable(question)));
        let answer = self.read();
        self.show("\n");
        answer
    }

    fn show(&self, text: &str) {
        let mut terminal = self.terminal;
        if terminal.write_all(text.as_bytes()).is_err() {
            // A descriptor of the user may be open for reading only.
            let _ = io::stderr().lock().write_all(text.as_bytes());
        }
    }

    fn read(&self) -> io::Result<SecretBytes> {
        let mut line = Line::new();
        loop {
            match self.read_byte()? {
                b'\r' | b'\n' => return Ok(line.finish()),
                CTRL_C => return Err(self.interrupt(Signal::INT)),
                CTRL_BACKSLASH => return Err(self.interrupt(Signal::QUIT)),
                CTRL_D if line.len == 0 => {
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, "no answer"));
                }
                ESCAPE => self.skip_sequence()?,
                byte => line.edit(byte)?,
            }
        }
    }

    fn read_byte(&self) -> io::Result<u8> {
        let mut terminal = self.terminal;
        let mut byte = [0];
        loop {
            match terminal.read(&mut byte) {
                Ok(0) => {
                    return Err(io::Error::new(
                        ErrorKind::UnexpectedEof,
                        "the terminal was closed",
                    ));
                }
                Ok(_) => return Ok(byte[0]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Discards the rest of an escape sequence, such as that of an arrow key.
    fn skip_sequence(&self) -> io::Result<()> {
        if matches!(self.read_byte()?, b'[' | b'O') {
            while !(0x40..=0x7e).contains(&self.read_byte()?) {}
        }
        Ok(())
    }

    /// Restores the terminal and sends the signal of a typed character to this process.
    fn interrupt(&self, signal: Signal) -> io::Error {
        self.restore();
        // A service has a handler, and returns from here.
        let _ = kill_process(getpid(), signal);
        io::Error::new(ErrorKind::Interrupted, "interrupted")
    }

    fn restore(&self) {
        // Discards the rest of a pasted answer, which a shell would execute.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

impl Drop for HiddenTerminal<'_> {
    fn drop(&mut self) {
        self.restore();
    }
}

/// A line as it is edited.
struct Line {
    text: SecretBytes,
    len: usize,
}

impl Line {
    fn new() -> Line {
        Line {
            text: SecretBytes::zeroed(ANSWER_BYTES_MAX),
            len: 0,
        }
    }

    fn edit(&mut self, byte: u8) -> io::Result<()> {
        match byte {
            BACKSPACE | DELETE => self.remove_character(),
            CTRL_U => self.len = 0,
            CTRL_W => {
                while self.last() == Some(b' ') {
                    self.len -= 1;
                }
                while self.last().is_some_and(|last| last != b' ') {
                    self.len -= 1;
                }
            }
            byte if byte.is_ascii_control() => {}
            byte if self.len < ANSWER_BYTES_MAX => {
                self.text[self.len] = byte;
                self.len += 1;
            }
            _ => {
                return Err(io::Error::new(
                    ErrorKind::InvalidInput,
                    format!("the answer is longer than {ANSWER_BYTES_MAX} bytes"),
                ));
            }
        }
        Ok(())
    }

    /// Removes the last character, which may have several bytes in UTF-8.
    fn remove_character(&mut self) {
        while let Some(last) = self.last() {
            self.len -= 1;
            if last & 0xc0 != 0x80 {
                break;
            }
        }
    }

    fn last(&self) -> Option<u8> {
        self.text[..self.len].last().copied()
    }

    fn finish(self) -> SecretBytes {
        self.text.truncated(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(typed: &[u8]) -> SecretBytes {
        let mut line = Line::new();
        typed.iter().for_each(|byte| line.edit(*byte).unwrap());
        line.finish()
    }

    #[test]
    fn a_line_is_edited_by_characters_words_and_as_a_whole() {
        let is =
            |typed: &str, text: &str| assert_eq!(&edited(typed.as_bytes())[..], text.as_bytes());
        is("sesame", "sesame");
        is("sesamx\x7fe", "sesame");
        is("sesam\u{e9}\x08e", "sesame");
        is("\x7f\x7fsesame", "sesame");
        is("open \x17sesame", "sesame");
        is("an open  \x17sesame", "an sesame");
        is("open\x15sesame", "sesame");
        is("ses\x01\tame", "sesame");
    }

    #[test]
    fn an_answer_that_is_too_long_is_refused() {
        let mut line = Line::new();
        (0..ANSWER_BYTES_MAX).for_each(|_| line.edit(b'x').unwrap());
        assert!(line.edit(b'x').is_err());
        assert_eq!(line.finish().len(), ANSWER_BYTES_MAX);
    }
}
