//! Finds the owner of the socket at the other end of a local TCP connection, and refuses other
//! users.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpStream};

/// State of an open connection in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
/// How often the table is read before a connection counts as remote.
const PASSES: usize = 2;

/// Reason why a client is refused that must belong to root or to the user of this process.
#[derive(Debug, thiserror::Error)]
pub enum Stranger {
    /// It belongs to another user.
    #[error("it belongs to user {0}")]
    User(u32),
    /// No program has its socket open.
    #[error("no user has its socket open")]
    Gone,
    /// Its user cannot be determined.
    #[error("cannot determine its user: {0}")]
    Unknown(io::Error),
}

/// Checks whether the peer of a local connection is a socket of root or of this process' user.
///
/// # Errors
/// [`Stranger`]: the client must be refused.
pub fn check_own_user(stream: &TcpStream, peer: SocketAddr) -> Result<(), Stranger> {
    match stream.local_addr().and_then(|local| uid(local, peer)) {
        Ok(Some(0)) => Ok(()),
        Ok(Some(uid)) if uid == rustix::process::geteuid().as_raw() => Ok(()),
        Ok(Some(uid)) => Err(Stranger::User(uid)),
        Ok(None) => Err(Stranger::Gone),
        Err(e) => Err(Stranger::Unknown(e)),
    }
}

/// Looks up the user ID of the socket `peer` that is connected to our `local`; `None` if no open
/// socket of this machine is. A socket that its program has closed has no owner any more, and
/// counts as none.
fn uid(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let table = match peer {
        SocketAddr::V4(_) => "/proc/net/tcp",
        SocketAddr::V6(_) => "/proc/net/tcp6",
    };
    let (peer, local) = (shown(peer), shown(local));
    find(|| Ok(BufReader::new(File::open(table)?)), &peer, &local)
}

/// Searches the table twice before it reports no match: the kernel returns the table in parts, and
/// when a connection closes between two of them, an entry after it may be missing.
fn find<T: BufRead>(
    table: impl Fn() -> io::Result<T>,
    own: &str,
    other: &str,
) -> io::Result<Option<u32>> {
    for _pass in 0..PASSES {
        for line in table()?.lines().skip(1) {
            if let Some(uid) = uid_in(&line?, own, other) {
                return Ok(Some(uid));
            }
        }
    }
    Ok(None)
}

/// Parses the user ID from a line of the table, if it is the line of this connection.
///
/// `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode ...`
fn uid_in(line: &str, own: &str, other: &str) -> Option<u32> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, at, to, state, _, _, _, uid, _, inode, ..] = fields[..] else {
        return None;
    };
    let open = state == ESTABLISHED && inode != "0";
    (open && at == own && to == other)
        .then(|| uid.parse().ok())
        .flatten()
}

/// Formats an address like the table: words of 32 bits in the byte order of the machine.
fn shown(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).map(|word| {
        let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        format!("{word:08X}")
    });
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn an_open_socket_has_its_user_and_a_closed_one_has_none() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "every machine has 127.0.0.1");
                continue;
            };
            let local = listener.local_addr().unwrap();
            let client = TcpStream::connect(local).unwrap();
            let peer = client.local_addr().unwrap();
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(uid(local, peer).unwrap(), Some(own));
            let (server, _) = listener.accept().unwrap();
            check_own_user(&server, peer).unwrap();
            drop(client);
            assert_eq!(uid(local, peer).unwrap(), None);
            let refused = check_own_user(&server, peer).unwrap_err();
            assert!(matches!(refused, Stranger::Gone), "{refused}");
        }
    }

    #[test]
    fn a_connection_that_a_look_at_the_table_misses_is_found() {
        let head = "  sl  local_address rem_address   st\n".to_owned();
        let line = "5: a:1 b:2 01 00000000:00000000 00:00000000 00000000  1000 0 71 1";
        let whole = format!("{head}{line}\n");
        let copies = std::cell::RefCell::new([&whole, &head].repeat(4));
        let next = || Ok(copies.borrow_mut().pop().unwrap().as_bytes());
        assert_eq!(find(next, "a:1", "b:2").unwrap(), Some(1000));
        assert_eq!(find(next, "a:1", "c:2").unwrap(), None);
    }

    #[test]
    fn lines_of_others_and_of_closed_sockets_do_not_count() {
        let (own, other) = ("0100007F:8A3C", "0100007F:2A3A");
        let line = |rest: &str| format!("  5: {own} {other} {rest}");
        let at = |state: &str, inode: &str| {
            let rest = format!("{state} 00000000:00000000 00:00000000 00000000  1000 0 {inode} 1");
            uid_in(&line(&rest), own, other)
        };
        assert_eq!(at("01", "71"), Some(1000));
        assert_eq!(at("01", "0"), None);
        assert_eq!(at("05", "71"), None);
        assert_eq!(uid_in(&line("01"), own, other), None);
    }
}
