//! Admission control: limits on strangers, and on clients that have chosen an export.
//!
//! A connection is a stranger until its negotiation, TLS included, has ended. Strangers have places
//! of their own, so regardless of their number a client that negotiates in time is admitted: a new
//! stranger replaces the oldest one, of the same address first. An established client never has to
//! leave.
//!
//! **Invariant:** every place is released when its [`ConnectionSlot`] is dropped.

use crate::Limits;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Admission state of a server.
pub(crate) struct Admission {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of open connections, including those that have been asked to leave.
    open: usize,
    established: usize,
    /// Number of established connections by address; clients on this machine are not counted.
    by_address: HashMap<IpAddr, usize>,
    /// Strangers in order of arrival.
    strangers: VecDeque<Arc<NewClient>>,
}

struct NewClient {
    address: Option<IpAddr>,
    leaves: AtomicBool,
}

/// Place of one connection.
pub(crate) struct ConnectionSlot {
    admission: Arc<Admission>,
    client: Arc<NewClient>,
    established: bool,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Admission> {
        let state = Mutex::default();
        Arc::new(Admission { limits, state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Counts the open connections.
    pub(crate) fn open(&self) -> usize {
        self.lock().open
    }

    /// Admits a new connection as a stranger; `None` if too many connections are open.
    /// The flag reports whether another stranger has to leave for it, which the workers enforce.
    pub(crate) fn admit(
        self: &Arc<Admission>,
        address: Option<IpAddr>,
    ) -> Option<(ConnectionSlot, bool)> {
        let most = self.limits.strangers.max(1);
        let mut state = self.lock();
        if state.open >= self.limits.connections + 2 * most {
            return None;
        }
        let same = |other: &Arc<NewClient>| other.address == address;
        let crowd = state.strangers.iter().filter(|other| same(other)).count();
        let leaves = if state.strangers.len() < most && crowd < most.div_ceil(2) {
            None
        } else if crowd >= most.div_ceil(2) {
            state.strangers.iter().position(same)
        } else {
            Some(0)
        };
        if let Some(oldest) = leaves.and_then(|place| state.strangers.remove(place)) {
            oldest.leaves.store(true, Ordering::SeqCst);
        }
        let stranger = Arc::new(NewClient {
            address,
            leaves: AtomicBool::new(false),
        });
        state.open += 1;
        state.strangers.push_back(Arc::clone(&stranger));
        let guest = ConnectionSlot {
            admission: Arc::clone(self),
            client: stranger,
            established: false,
        };
        Some((guest, leaves.is_some()))
    }
}

/// Returns the address under which a client is counted. Clients on this machine are not counted:
/// they are the server's own user and root.
fn counted(address: Option<IpAddr>) -> Option<IpAddr> {
    address.filter(|address| !address.is_loopback())
}

impl ConnectionSlot {
    /// Turns the stranger into an established client after a successful negotiation.
    ///
    /// # Errors
    /// The reason why no place is available.
    pub(crate) fn establish(&mut self) -> Result<(), &'static str> {
        let limits = &self.admission.limits;
        let mut state = self.admission.lock();
        if state.established >= limits.connections {
            return Err("the connection limit is reached");
        }
        if let Some(address) = counted(self.client.address) {
            let count = state.by_address.entry(address).or_default();
            if *count >= limits.connections_per_address {
                return Err("the connection limit of its address is reached");
            }
            *count += 1;
        }
        state.established += 1;
        state.strangers.retain(|s| !Arc::ptr_eq(s, &self.client));
        self.established = true;
        Ok(())
    }

    /// Reports whether it has to leave for another stranger.
    pub(crate) fn is_evicted(&self) -> bool {
        !self.established && self.client.leaves.load(Ordering::SeqCst)
    }

    /// Returns the address under which the client is counted.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        counted(self.client.address)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        state.open -= 1;
        if !self.established {
            state.strangers.retain(|s| !Arc::ptr_eq(s, &self.client));
            return;
        }
        state.established -= 1;
        if let Some(address) = counted(self.client.address)
            && let Some(count) = state.by_address.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                state.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(connections: usize, strangers: usize) -> Arc<Admission> {
        Admission::new(Limits {
            connections,
            strangers,
            connections_per_address: 2,
            ..Limits::default()
        })
    }

    fn at(last: u8) -> Option<IpAddr> {
        Some([192, 0, 2, last].into())
    }

    #[test]
    fn a_new_stranger_takes_the_place_of_the_oldest_of_its_address_or_of_all() {
        let door = door(8, 4);
        let (one, _) = door.admit(at(1)).unwrap();
        let (two, _) = door.admit(at(2)).unwrap();
        let (three, _) = door.admit(at(2)).unwrap();
        let (four, pushed) = door.admit(at(2)).unwrap();
        assert!(pushed && two.is_evicted() && !one.is_evicted() && !three.is_evicted());
        let (five, pushed) = door.admit(at(3)).unwrap();
        assert!(!pushed);
        let (_six, pushed) = door.admit(at(4)).unwrap();
        assert!(pushed && one.is_evicted());
        assert!(!three.is_evicted() && !four.is_evicted() && !five.is_evicted());
        assert_eq!(door.open(), 6);
        drop((one, two, three, four, five));
        assert_eq!((door.open(), door.lock().strangers.len()), (1, 1));
    }

    #[test]
    fn strangers_never_keep_an_established_client_out() {
        let door = door(3, 2);
        let mut all: Vec<ConnectionSlot> = (0..7).map(|n| door.admit(at(n)).unwrap().0).collect();
        assert!(door.admit(at(9)).is_none(), "descriptors have a limit");
        assert!(all[6].establish().is_ok() && !all[6].is_evicted());
        all.truncate(0);
        let mut two: Vec<ConnectionSlot> = (0..3).map(|_| door.admit(at(1)).unwrap().0).collect();
        assert!(two[0].establish().is_ok() && two[1].establish().is_ok());
        assert!(two[2].establish().is_err(), "a limit per address");
        let (mut local, _) = door.admit(Some([127, 0, 0, 1].into())).unwrap();
        assert!(local.establish().is_ok());
        let (mut unix, _) = door.admit(None).unwrap();
        assert!(unix.establish().is_err(), "a limit for all");
        drop(two);
        assert!(unix.establish().is_ok());
    }
}
