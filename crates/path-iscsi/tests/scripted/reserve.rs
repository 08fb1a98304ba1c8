//! Persistent reservations of a scripted target. They survive connections: a registration belongs
//! to an initiator port and a target port, and stays when the session is lost.

use std::sync::Mutex;

/// Session identifier of an initiator and the target port it is connected to.
pub type Nexus = ([u8; 6], usize);

/// Registrations of one unit and the holder of its reservation.
#[derive(Default)]
pub struct Reservations(Mutex<State>);

#[derive(Default)]
struct State {
    keys: Vec<(Nexus, u64)>,
    holder: Option<Nexus>,
}

/// Completion of a command.
pub enum Told {
    Data(Vec<u8>),
    Good,
    Conflict,
}

impl Reservations {
    /// Returns the registered keys.
    pub fn keys(&self) -> Vec<u64> {
        let state = self.0.lock().expect("no panic under this lock");
        state.keys.iter().map(|(_, key)| *key).collect()
    }

    /// Returns whether unregistered initiators may write.
    pub fn is_free(&self) -> bool {
        self.0
            .lock()
            .expect("no panic under this lock")
            .holder
            .is_none()
    }

    /// Returns whether a session may write.
    pub fn lets_write(&self, nexus: Nexus) -> bool {
        let state = self.0.lock().expect("no panic under this lock");
        state.holder.is_none() || state.keys.iter().any(|(n, _)| *n == nexus)
    }

    /// Executes PERSISTENT RESERVE IN.
    pub fn tell(&self, cdb: &[u8; 16]) -> Told {
        let state = self.0.lock().expect("no panic under this lock");
        let mut data = vec![0; 8];
        match (cdb[1] & 0x1f, state.holder) {
            (0, _) => data.extend(state.keys.iter().flat_map(|(_, key)| key.to_be_bytes())),
            (_, None) => {}
            (_, Some(holder)) => {
                let key = state.keys.iter().find(|(n, _)| *n == holder);
                data.extend(key.map_or(0, |(_, key)| *key).to_be_bytes());
                data.extend([0, 0, 0, 0, 0, 5, 0, 0]);
            }
        }
        let len = data.len() as u32 - 8;
        data[4..8].copy_from_slice(&len.to_be_bytes());
        Told::Data(data)
    }

    /// Executes PERSISTENT RESERVE OUT.
    pub fn change(&self, nexus: Nexus, cdb: &[u8; 16], data: &[u8]) -> Told {
        let state = &mut *self.0.lock().expect("no panic under this lock");
        let word = |at: usize| u64::from_be_bytes(data[at..at + 8].try_into().expect("8 bytes"));
        let (key, new) = (word(0), word(8));
        let own = state.keys.iter().position(|(n, _)| *n == nexus);
        let proven = own.is_some_and(|at| state.keys[at].1 == key);
        match (cdb[1] & 0x1f, own) {
            (6, Some(at)) => state.keys[at].1 = new,
            (6, None) => state.keys.push((nexus, new)),
            _ if !proven => return Told::Conflict,
            (0, Some(at)) if new == 0 => {
                state.keys.remove(at);
                state.holder = state.holder.filter(|holder| *holder != nexus);
            }
            (1, _) if state.holder.is_none_or(|holder| holder == nexus) => {
                state.holder = Some(nexus);
            }
            (4, _) if state.keys.iter().any(|(_, key)| *key == new) => {
                let gone = |n: Nexus| state.keys.contains(&(n, new));
                if state.holder.is_some_and(gone) {
                    state.holder = Some(nexus);
                }
                state.keys.retain(|(n, key)| *key != new || *n == nexus);
            }
            _ => return Told::Conflict,
        }
        Told::Good
    }
}
