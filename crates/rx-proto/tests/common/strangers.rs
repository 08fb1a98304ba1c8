//! Many clients of one endpoint, simulated packet by packet.

use super::{SERVICE, endpoint};
use rx_proto::{
    CallNumber, Cid, Config, Endpoint, Epoch, Event, HEADER_BYTES, Header, PacketType, Reason,
    Route, Seq, Serial, Shared, Timestamp, Transmit, flag,
};
use std::net::SocketAddr;
use std::time::Duration;

/// Many clients unknown to the endpoint, each with an address of its own.
pub struct Strangers {
    pub endpoint: Endpoint<Shared, Shared>,
    pub now: Timestamp,
    pub batch: Transmit<Shared>,
}

#[derive(Debug, Clone, Copy)]
pub struct Stranger {
    pub peer: SocketAddr,
    pub cid: u32,
    pub call: u32,
}

/// Returns the n-th client: sixteen ports of each host.
pub fn stranger(n: u32) -> Stranger {
    let [a, b, c, _] = (n / 16 * 256).to_be_bytes();
    Stranger {
        peer: SocketAddr::from(([10, a, b, c], 7000 + (n % 16) as u16)),
        cid: 4 * n,
        call: 1,
    }
}

impl Stranger {
    pub fn data(self, seq: u32, flags: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = self.header(PacketType::Data, seq, flags).encode().to_vec();
        bytes.extend(body);
        bytes
    }

    /// Returns an acknowledgement of no packets.
    pub fn ack(self, serial: u32, reason: Reason, named: Serial, window: u32) -> Vec<u8> {
        let mut header = self.header(PacketType::Ack, 0, 0);
        header.serial = Serial(serial);
        let mut bytes = header.encode().to_vec();
        bytes.extend([0; 4]);
        for word in [1, 0, named.0] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend([reason as u8, 0, 0, 0, 0]);
        for word in [1444, 1444, window, 1] {
            bytes.extend(u32::to_be_bytes(word));
        }
        bytes
    }

    /// Returns the answer to a ping.
    pub fn pong(self, ping: Serial) -> Vec<u8> {
        self.ack(9, Reason::PingResponse, ping, 16)
    }

    pub fn header(self, kind: PacketType, seq: u32, flags: u8) -> Header {
        Header {
            epoch: Epoch(0x8000_0001),
            cid: Cid(self.cid),
            call_number: CallNumber(self.call),
            seq: Seq(seq),
            serial: Serial(seq),
            kind,
            flags: flags | flag::CLIENT_INITIATED,
            user_status: 0,
            security_index: 0,
            checksum: 0,
            service: SERVICE,
        }
    }
}

impl Strangers {
    pub fn new(config: Config) -> Strangers {
        Strangers {
            endpoint: endpoint(config, 9),
            now: Timestamp::from_nanos(1_000_000_000),
            batch: Transmit::new(64),
        }
    }

    /// Passes in a packet of a client; returns the packets sent in response.
    pub fn send(&mut self, from: Stranger, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        let route = Route {
            peer: from.peer,
            local: None,
        };
        self.endpoint
            .handle_input(self.now, route, Shared::from(bytes));
        self.sent()
    }

    pub fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while self.endpoint.poll_transmit(self.now, &mut self.batch) {
            all.extend(self.batch.datagrams());
        }
        all
    }

    /// Lets a client answer the pings among `packets`.
    pub fn answer(&mut self, from: Stranger, packets: &[Vec<u8>]) {
        for packet in packets {
            let header = Header::parse(packet).unwrap();
            if header.kind == PacketType::Ack && packet[HEADER_BYTES + 16] == Reason::Ping as u8 {
                self.send(from, from.pong(header.serial));
            }
        }
    }

    /// Makes a call that is shown to the application.
    pub fn call(&mut self, from: Stranger, body: &[u8]) -> Option<rx_proto::CallId> {
        let sent = self.send(from, from.data(1, flag::LAST_PACKET, body));
        self.answer(from, &sent);
        while let Some(event) = self.endpoint.poll_event() {
            if let Event::Call(incoming) = event {
                return Some(incoming.call);
            }
        }
        None
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.endpoint.handle_timeout(self.now);
    }
}
