//! DEBUG and VERSION packets: answered according to the configured policy and at a limited rate,
//! without information that proves an address or a connection.

use super::Endpoint;
use crate::call::{Call, Role};
use crate::config::DebugAccess;
use crate::connection::Connection;
use crate::debug::{self, CallState, ChannelView, ConnectionView, PeerView, Question, Totals};
use crate::packet::{HEADER_BYTES, Header, PacketType, flag};
use crate::path::Path;
use crate::payload::{Datagram, Payload};
use crate::time::Timestamp;
use crate::transmit::Route;

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Answers a question. The header is returned unchanged except for the direction flag:
    /// `rxdebug` matches answers by call number.
    pub(super) fn question(
        &mut self,
        now: Timestamp,
        route: Route,
        header: &Header,
        datagram: &[u8],
    ) {
        if !header.has(flag::CLIENT_INITIATED) {
            // An answer without a question, or a keep-alive of Linux, which lacks this flag.
            self.stats.stray += 1;
            return;
        }
        let body = datagram.get(HEADER_BYTES..).unwrap_or_default();
        let question = (header.kind == PacketType::Debug).then(|| Question::parse(body));
        let answers = self.config.questions.of(route.peer.ip());
        let allowed = match question {
            None => answers != DebugAccess::None,
            Some(question) => answers == DebugAccess::Full && question.is_some(),
        };
        if !allowed || !self.strays.take(now) {
            self.stats.strays_unanswered += 1;
            return;
        }
        let mut answer = match question.flatten() {
            None => debug::version(&self.config.version),
            Some(question) => self.answer(question),
        };
        if answers == DebugAccess::Short {
            answer.truncate(body.len());
        }
        let header = Header {
            flags: header.flags & !flag::CLIENT_INITIATED,
            ..*header
        };
        self.queue(route, &header, &answer);
    }

    fn answer(&self, question: Question) -> Vec<u8> {
        let nth = |index: u32| usize::try_from(index).unwrap_or(usize::MAX);
        match question {
            Question::Basics => debug::basics(&self.stats),
            Question::BusyConnection(index) => {
                let busy = self
                    .connections
                    .iter()
                    .filter(|(_, c)| c.is_proven() && c.has_calls())
                    .nth(nth(index));
                debug::connection(busy.map(|(_, c)| self.connection_view(c)).as_ref())
            }
            Question::Connection(index) => {
                let mut proven = self.connections.iter().filter(|(_, c)| c.is_proven());
                let any = proven.nth(nth(index));
                debug::connection(any.map(|(_, c)| self.connection_view(c)).as_ref())
            }
            Question::Peer(index) => {
                let path = self.paths.iter().nth(nth(index));
                debug::peer(path.map(|(_, path)| peer_view(path)).as_ref())
            }
            Question::Stats => debug::statistics(&self.stats, &self.totals()),
            Question::Unknown(kind) => debug::unknown(kind),
        }
    }

    fn totals(&self) -> Totals {
        Totals {
            server_connections: self.connections.incoming(),
            client_connections: self.connections.len() - self.connections.incoming(),
            peers: self.paths.len(),
            calls: self.calls.len(),
        }
    }

    fn connection_view(&self, connection: &Connection<P, D>) -> ConnectionView {
        ConnectionView {
            peer: connection.key.peer,
            security_index: connection.security_index,
            server: connection.is_server(),
            channels: connection.channels.map(|channel| {
                let call = channel.call.and_then(|call| self.calls.get(call));
                ChannelView {
                    number: channel.number.0,
                    ..call.map(channel_view).unwrap_or_default()
                }
            }),
        }
    }
}

fn channel_view<P: Payload, D: Payload>(call: &Call<P, D>) -> ChannelView {
    let state = match (call.user.announced, call.user.held) {
        (false, _) => CallState::Precall,
        (true, true) => CallState::Active,
        (true, false) => CallState::Hold,
    };
    let sending = match call.role {
        Role::Client => !call.sender.is_finished(),
        Role::Server => call.receiver.complete(),
    };
    ChannelView {
        number: call.place.number.0,
        state,
        sending,
        holds_input: call.receiver.held() > 0,
        holds_output: call.sender.stream.held() > 0,
    }
}

fn peer_view(path: &Path) -> PeerView {
    PeerView {
        peer: path.peer,
        connections: u16::try_from(path.users).unwrap_or(u16::MAX),
        rtt_nanos: path.rtt.smoothed(),
        deviation_nanos: path.rtt.variation(),
        timeout_nanos: path.rtt.timeout(0),
        sent: path.sent,
        resent: path.resent,
        window: path.congestion.window(),
        datagram_packets: path.jumbo.carries(),
        bytes_sent: path.bytes_sent,
        bytes_received: path.bytes_received,
    }
}
