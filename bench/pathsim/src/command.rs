//! Commands of a tester.

use std::str::FromStr;
use std::time::Duration;

/// Direction through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// A command. Faults accumulate until `pass` clears all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Clears all faults; held data is delivered.
    Pass,
    /// `rate=BYTES`: limits each direction to this many bytes per second, over all connections.
    Rate(u64),
    /// `delay=MS`: delays all data by this time.
    Delay(Duration),
    /// `jitter=MS`: adds a random delay up to this time, without reordering.
    Jitter(Duration),
    /// `hole`: reads and delivers nothing; connections stay open.
    Hole,
    /// `hold`: reads and keeps the client's data, and delivers it after `pass`, even if the client
    /// has disconnected by then.
    Hold,
    /// `rst`: resets all connections immediately.
    Rst,
    /// `refuse`: closes the listener, so that new connections are refused.
    Refuse,
    /// `half-close=up|down`: ends the stream in this direction; the other one stays open.
    HalfClose(Direction),
    /// `corrupt=once` or `corrupt=BYTES`: flips one bit in data to the client, once or every
    /// `BYTES` bytes.
    Corrupt(u64),
    /// `accept-delay=MS`: delays the forwarding of a new connection.
    AcceptDelay(Duration),
    /// `record`: records the clients' data from here on for `replay`.
    Record,
    /// `replay`: sends each recorded stream again, on a new connection.
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
                    "unknown command `{text}`; expected pass, rate=BYTES, delay=MS, jitter=MS, \
                     hole, hold, rst, refuse, half-close=up|down, corrupt=once|BYTES, \
                     accept-delay=MS, record, replay, stats"
                ));
            }
        })
    }
}
