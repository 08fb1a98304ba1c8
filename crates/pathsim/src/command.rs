//! What a tester says.

use std::str::FromStr;
use std::time::Duration;

/// One way through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// A command. Faults add up until `pass` ends all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// No fault any more; what was held is delivered.
    Pass,
    /// `rate=BYTES`: so many bytes each second in each direction, over all connections.
    Rate(u64),
    /// `delay=MS`: everything arrives so much later.
    Delay(Duration),
    /// `jitter=MS`: up to so much later, by chance, in order.
    Jitter(Duration),
    /// `hole`: nothing is read and nothing delivered; connections stay open.
    Hole,
    /// `hold`: what the client sends is read and kept, and delivered after `pass`, even when the
    /// client is gone by then.
    Hold,
    /// `rst`: all connections are reset, now.
    Rst,
    /// `refuse`: nobody listens.
    Refuse,
    /// `half-close=up|down`: the stream ends in this direction, and goes on in the other.
    HalfClose(Direction),
    /// `corrupt=once` or `corrupt=BYTES`: one bit is flipped, once or every so many bytes, on the
    /// way down.
    Corrupt(u64),
    /// `accept-delay=MS`: a connection goes on only after this.
    AcceptDelay(Duration),
    /// `record`: what clients send from here on is kept for `replay`.
    Record,
    /// `replay`: what was recorded is sent again, on connections of its own.
    Replay,
}

impl FromStr for Command {
    type Err = String;

    fn from_str(text: &str) -> Result<Command, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let number = || {
            let parsed = value.parse::<u64>().ok().filter(|n| *n > 0);
            parsed.ok_or_else(|| format!("`{name}` needs a number: {name}=N"))
        };
        let time = || Ok::<_, String>(Duration::from_millis(number()?));
        Ok(match (name, value) {
            ("pass", "") => Command::Pass,
            ("rate", _) => Command::Rate(number()?),
            ("delay", _) => Command::Delay(time()?),
            ("jitter", _) => Command::Jitter(time()?),
            ("hole", "") => Command::Hole,
            ("hold", "") => Command::Hold,
            ("rst", "") => Command::Rst,
            ("refuse", "") => Command::Refuse,
            ("half-close", "up") => Command::HalfClose(Direction::Up),
            ("half-close", "down") => Command::HalfClose(Direction::Down),
            ("corrupt", "once") => Command::Corrupt(0),
            ("corrupt", _) => Command::Corrupt(number()?),
            ("accept-delay", _) => Command::AcceptDelay(time()?),
            ("record", "") => Command::Record,
            ("replay", "") => Command::Replay,
            _ => {
                return Err(format!(
                    "`{text}` is no command; there are pass, rate=BYTES, delay=MS, jitter=MS, \
                     hole, hold, rst, refuse, half-close=up|down, corrupt=once|BYTES, \
                     accept-delay=MS, record, replay, stats"
                ));
            }
        })
    }
}
