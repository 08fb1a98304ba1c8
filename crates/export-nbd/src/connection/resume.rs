//! A connection of a predecessor, continued.

use super::reply::{FirstReply, reply_bytes};
use super::{Connection, Incoming, Input, Phase, Taken, read_bytes, refusal};
use crate::admission::ConnectionSlot;
use crate::hub::Hub;
use crate::kept::{self, Done, Entry, Known, Left, distance};
use crate::session::Session;
use crate::socket::Socket;
use block::Buf;
use nbd_proto::{Command, Errno, Handshake, REQUEST_BYTES, RequestHeader};
use std::collections::HashMap;
use std::sync::Arc;

/// Buffers of writes that are not done, with their order, by place and position of the request.
pub(crate) type Owned = HashMap<(u32, u64), Vec<(u32, Buf)>>;

/// A request to carry out again.
pub(crate) struct Again {
    pub(crate) export: usize,
    pub(crate) request: Taken,
    pub(crate) payload: Vec<Buf>,
}

/// A connection that is continued.
pub(crate) struct Resumed {
    pub(crate) connection: Connection,
    pub(crate) again: Vec<Again>,
}

/// Tasks of a connection besides its input.
#[derive(Default)]
struct Work {
    again: Vec<Again>,
    replies: Vec<(Taken, Option<Errno>)>,
    first: Option<FirstReply>,
    /// Bytes of the next reply that were sent.
    skip: usize,
    incoming: Option<Incoming>,
}

/// How requests are interpreted.
struct Terms<'a> {
    hub: &'a Hub,
    export: usize,
    structured: bool,
}

impl Connection {
    /// Continues a connection of a predecessor. `take` allocates buffers, as for
    /// [`Connection::next`].
    pub(crate) fn resume(
        mut left: Left,
        hub: &Arc<Hub>,
        mut slot: ConnectionSlot,
        take: &mut dyn FnMut(usize) -> Option<Vec<Buf>>,
        owned: &mut Owned,
    ) -> Option<Resumed> {
        let prepared = match Prepared::new(&mut left, hub, &mut slot, take, owned) {
            Ok(prepared) => prepared,
            Err(why) => {
                kept::warn_of_end(why);
                left.give_up();
                return None;
            }
        };
        let Left {
            entry,
            areas,
            raw,
            pipe,
        } = left;
        let socket = Socket::new(raw, pipe);
        let mut connection =
            Connection::without_requests(socket, slot, Arc::clone(hub), prepared.phase);
        let (received, which) = (entry.received, entry.input.1);
        connection.input = Input::adopted(areas, which, prepared.input, received);
        connection.place = Some(entry.place);
        connection.session = prepared.session;
        connection.structured = prepared.structured;
        let work = prepared.work;
        connection.in_flight = work.again.len();
        if entry.in_place {
            connection.input.bypass(None);
        }
        if let Some(write) = work.incoming {
            connection.receive(write);
        }
        connection.output.skip(work.skip);
        if let (Phase::Handshake(_), Some(place)) = (&connection.phase, &mut connection.place) {
            // All of it is repeated, and what was sent is not sent again.
            place.negotiates_again();
            connection.push_negotiation();
        }
        connection.first = work.first;
        for (request, error) in work.replies {
            connection.reply(request, error, Vec::new());
        }
        Some(Resumed {
            connection,
            again: work.again,
        })
    }
}

/// State with which a connection goes on.
struct Prepared {
    phase: Phase,
    session: Option<Arc<Session>>,
    structured: bool,
    /// Bytes in the input area that were processed, and all bytes in it.
    input: (usize, usize),
    work: Work,
}

impl Prepared {
    fn new(
        left: &mut Left,
        hub: &Arc<Hub>,
        slot: &mut ConnectionSlot,
        take: &mut dyn FnMut(usize) -> Option<Vec<Buf>>,
        owned: &mut Owned,
    ) -> Result<Prepared, &'static str> {
        const DAMAGED: &str = "its input is damaged";
        let entry = &mut left.entry;
        match entry.phase {
            kept::Phase::Unfit => Err("it has TLS, or waited for a fence"),
            kept::Phase::Negotiating => {
                let len = entry.input_len().ok_or(DAMAGED)?;
                // The position of parsed input may be stated already, just before the phase.
                if entry.input != (0, 0) || entry.in_place {
                    return Err(DAMAGED);
                }
                let handshake = Handshake::new(hub.infos(), super::tls_policy(hub, &left.raw));
                Ok(Prepared {
                    phase: Phase::Handshake(Box::new(handshake)),
                    session: None,
                    structured: false,
                    input: (0, len),
                    work: Work {
                        skip: entry.place.output_at() as usize,
                        ..Work::default()
                    },
                })
            }
            kept::Phase::Transmission {
                export,
                structured,
                key,
                left: has_left,
            } => {
                if export >= hub.exports.len() {
                    return Err("its entry in the table is damaged");
                }
                let terms = Terms {
                    hub,
                    export,
                    structured,
                };
                let session = key.map(|key| hub.sessions.join(key, slot.address()));
                let session = session.transpose()?;
                slot.establish()?;
                let mut work = Work::default();
                let incoming = terms.output(entry, &mut work, take, owned)?;
                let input = terms
                    .input(entry, incoming, &mut work, owned)
                    .ok_or(DAMAGED)?;
                let phase = if has_left {
                    Phase::Closing
                } else {
                    Phase::Transmission {
                        export,
                        incoming: None,
                    }
                };
                Ok(Prepared {
                    phase,
                    session,
                    structured,
                    input,
                    work,
                })
            }
        }
    }
}

impl Terms<'_> {
    /// Decides what has to be done for each known request. Returns the write whose payload has not
    /// arrived completely.
    fn output(
        &self,
        entry: &mut Entry,
        work: &mut Work,
        take: &mut dyn FnMut(usize) -> Option<Vec<Buf>>,
        owned: &mut Owned,
    ) -> Result<Option<Known>, &'static str> {
        let bytes = |header: &RequestHeader, error| reply_bytes(self.structured, header, error);
        let partial = entry.sort_output(bytes)?;
        let mut incoming = None;
        for known in std::mem::take(&mut entry.known) {
            let request = Taken {
                header: known.header,
                slot: Some(known.slot),
            };
            let is_read = matches!(known.header.command, Command::Read);
            let is_first = partial.is_some_and(|(slot, _)| slot == known.slot);
            let refused = refusal(&self.hub.exports[self.export], &known.header);
            match known.done {
                Done::At(..) | Done::Unqueued(_) if is_first => {
                    let sent = partial.map_or(0, |(_, sent)| sent as usize);
                    let error = match known.done {
                        Done::At(_, error) | Done::Unqueued(error) => error,
                        Done::No => None,
                    };
                    work.first = Some(FirstReply {
                        slot: known.slot,
                        sent,
                        others: Vec::new(),
                    });
                    if is_read && error.is_none() {
                        work.again.push(self.read(request, take)?);
                    } else {
                        work.replies.insert(0, (request, error));
                    }
                }
                Done::At(_, error) | Done::Unqueued(error) if !is_read || error.is_some() => {
                    work.replies.push((request, error));
                }
                _ if distance(entry.parsed, behind(&known)) > 0 => {
                    if incoming.is_some() || !matches!(known.header.command, Command::Write) {
                        return Err("its requests are damaged");
                    }
                    incoming = Some(known);
                }
                _ if refused.is_some() => work.replies.push((request, refused)),
                _ if is_read => {
                    entry.place.repeat(known.slot);
                    work.again.push(self.read(request, take)?);
                }
                _ => {
                    let payload = match known.header.command {
                        Command::Write => {
                            let bufs = owned.remove(&(entry.number(), known.at));
                            whole(bufs.unwrap_or_default(), Some(known.header.len))
                                .ok_or("the payload of a write is missing")?
                        }
                        _ => Vec::new(),
                    };
                    work.again.push(Again {
                        export: self.export,
                        request,
                        payload,
                    });
                }
            }
        }
        Ok(incoming)
    }

    /// Finds the end of what was processed in the input area: its offset, and the number of bytes in
    /// the area. `None`: it contradicts what else is known.
    fn input(
        &self,
        entry: &mut Entry,
        incoming: Option<Known>,
        work: &mut Work,
        owned: &mut Owned,
    ) -> Option<(usize, usize)> {
        // Positions near that of what was parsed, which do not go round.
        let near = |at: u64| entry.parsed.wrapping_add(distance(entry.parsed, at) as u64);
        let received = near(entry.received);
        let base = near(entry.input.0);
        let mut at = entry.parsed;
        if let Some(known) = incoming {
            let total = known.header.len as usize;
            let first = near(known.at).wrapping_add(REQUEST_BYTES as u64);
            // Bytes that were received past the area, or were removed from it, are in the buffers.
            let until = if entry.in_place { received } else { base };
            let got = distance(first, until).clamp(0, total as i64) as usize;
            let refused = refusal(&self.hub.exports[self.export], &known.header);
            let bufs = owned
                .remove(&(entry.number(), known.at))
                .unwrap_or_default();
            let bufs = whole(bufs, None)?;
            let room = bufs.iter().map(|buf| buf.len()).sum();
            if refused.is_none() && got > room || room > total {
                return None;
            }
            at = first.wrapping_add(got as u64);
            work.incoming = Some(Incoming {
                request: Taken {
                    header: known.header,
                    slot: Some(known.slot),
                },
                at: known.at,
                bufs,
                room,
                empty_handed: true,
                got,
                refused,
            });
        }
        if entry.in_place {
            return (at == received).then_some((0, 0));
        }
        let len = entry.input_len()?;
        let used = usize::try_from(distance(base, at)).ok()?;
        (used <= len).then_some((used, len))
    }

    /// Prepares a read to be carried out again.
    fn read(
        &self,
        request: Taken,
        take: &mut dyn FnMut(usize) -> Option<Vec<Buf>>,
    ) -> Result<Again, &'static str> {
        let bytes = read_bytes(&self.hub.exports[self.export], &request.header);
        Ok(Again {
            export: self.export,
            request,
            payload: take(bytes).ok_or("no buffers are left")?,
        })
    }
}

/// Returns the position behind a request and its payload.
fn behind(known: &Known) -> u64 {
    let payload = match known.header.command {
        Command::Write => u64::from(known.header.len),
        _ => 0,
    };
    known.at + REQUEST_BYTES as u64 + payload
}

/// Returns the buffers in their order, if none is missing and they have `len` bytes.
fn whole(bufs: Vec<(u32, Buf)>, len: Option<u32>) -> Option<Vec<Buf>> {
    let is_complete = bufs
        .iter()
        .zip(0..)
        .all(|((at, _), expected)| *at == expected);
    let bytes: usize = bufs.iter().map(|(_, buf)| buf.len()).sum();
    let fits = len.is_none_or(|len| len as usize == bytes);
    (is_complete && fits).then(|| bufs.into_iter().map(|(_, buf)| buf).collect())
}
