//! Packets byte by byte: the wire format of each type, and known behavior of peers that the
//! protocol does not suggest.
//!
//! The dumps follow the layouts in `docs/protocol/rx.md`; the values were observed from OpenAFS
//! 1.8.9 and kafs (Linux 6.1, 6.12).

mod common;

use common::{Random, SERVICE, endpoint};
use rx_proto::{
    Ack, CallNumber, Cid, Config, Connect, DataPackets, End, Endpoint, Epoch, Event, HEADER_BYTES,
    Header, Incoming, PACKET_DATA_BYTES, PacketType, Read, Reason, Route, Seq, Serial, Shared,
    Timeouts, Timestamp, Transmit, code, flag,
};
use std::time::Duration;

/// Parses hexadecimal digits into bytes; `;` starts a comment.
fn dump(text: &str) -> Vec<u8> {
    let digits: String = text
        .lines()
        .filter_map(|line| line.split(';').next())
        .flat_map(|line| {
            line.chars()
                .filter(char::is_ascii_hexdigit)
                .collect::<Vec<_>>()
        })
        .collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// An endpoint, and a peer that sends dumps to it and inspects the answers.
struct Wire {
    endpoint: Endpoint<Shared, Shared>,
    now: Timestamp,
    route: Route,
}

impl Wire {
    fn new() -> Wire {
        Wire {
            endpoint: endpoint(Config::default(), 5),
            now: Timestamp::from_nanos(1_000_000_000),
            route: Route {
                peer: "192.0.2.7:7001".parse().unwrap(),
                local: Some("192.0.2.1".parse().unwrap()),
            },
        }
    }

    /// Passes in a packet and returns all packets sent in response.
    fn exchange(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        self.endpoint
            .handle_input(self.now, self.route, Shared::from(packet));
        self.sent()
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut batch = Transmit::new(64);
        let mut all = Vec::new();
        while self.endpoint.poll_transmit(self.now, &mut batch) {
            assert_eq!(
                batch.route(),
                self.route,
                "answers leave from the address that was called"
            );
            all.extend(batch.datagrams());
        }
        all
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.endpoint.handle_timeout(self.now);
    }

    /// Returns a proven and announced call with the one-packet request `body`.
    fn call(&mut self, body: &[u8]) -> Incoming {
        let ping = self.exchange(&request(body));
        let ping = Header::parse(&ping[0]).unwrap();
        self.exchange(&pong(ping.serial));
        match self.endpoint.poll_event() {
            Some(Event::Call(incoming)) => incoming,
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the header of a client's packet for call 1 of channel 2.
fn client_header(kind: PacketType, seq: u32, serial: u32, flags: u8) -> Vec<u8> {
    let header = Header {
        epoch: Epoch(0x8ed4_0c11),
        cid: Cid(0x5c0d_e3a2),
        call_number: CallNumber(1),
        seq: Seq(seq),
        serial: Serial(serial),
        kind,
        flags,
        user_status: 0,
        security_index: 0,
        checksum: 0,
        service: SERVICE,
    };
    header.encode().to_vec()
}

fn request(body: &[u8]) -> Vec<u8> {
    let mut packet = client_header(PacketType::Data, 1, 1, 0x05);
    packet.extend(body);
    packet
}

/// Returns an acknowledgement as kafs sends it: window 255, four packets in a datagram.
fn kafs_ack(first: u32, previous: u32, serial: Serial, reason: Reason, acks: &[u8]) -> Vec<u8> {
    let mut packet = client_header(PacketType::Ack, 0, 9, 0x21);
    packet.extend([0; 4]);
    packet.extend(first.to_be_bytes());
    packet.extend(previous.to_be_bytes());
    packet.extend(serial.0.to_be_bytes());
    packet.extend([reason as u8, acks.len() as u8]);
    packet.extend(acks);
    packet.extend([0; 3]);
    for word in [5692u32, 1444, 255, 4] {
        packet.extend(word.to_be_bytes());
    }
    packet
}

fn pong(serial: Serial) -> Vec<u8> {
    kafs_ack(1, 0, serial, Reason::PingResponse, &[])
}

fn ack_of(packet: &[u8]) -> Ack<'_> {
    Ack::parse(&packet[HEADER_BYTES..]).unwrap()
}

#[test]
fn a_data_packet() {
    let bytes = dump(
        "8ed40c11  ; epoch, random (highest bit)
         5c0de3a2  ; connection 5c0de3a0, channel 2
         00000003  ; call 3
         00000001  ; packet 1
         00000009  ; transmission 9
         01        ; DATA
         07        ; from the client, answer asked for, last
         01        ; userStatus: asks whether the service may be upgraded
         00        ; rxnull
         abcd      ; checksum: before the service
         0034      ; service 52
         0000020f  ; VL GetEntryByNameU",
    );
    let header = Header::parse(&bytes).unwrap();
    let expected = Header {
        epoch: Epoch(0x8ed4_0c11),
        cid: Cid(0x5c0d_e3a2),
        call_number: CallNumber(3),
        seq: Seq(1),
        serial: Serial(9),
        kind: PacketType::Data,
        flags: flag::CLIENT_INITIATED | flag::REQUEST_ACK | flag::LAST_PACKET,
        user_status: 1,
        security_index: 0,
        checksum: 0xabcd,
        service: 52,
    };
    assert_eq!((header, header.channel()), (expected, 2));
    assert_eq!(header.encode(), bytes[..HEADER_BYTES]);
    let packets: Vec<_> = DataPackets::parse(&header, &bytes).unwrap().collect();
    assert_eq!((packets.len(), packets[0].range.clone()), (1, 28..32));
}

#[test]
fn an_ack_packet() {
    let bytes = dump(
        "8ed40c11 5c0de3a2 00000001 00000000 00000011
         02        ; ACK
         20        ; from the server, slow start
         00 00 0000 0001
         0000      ; bufferSpace
         0000      ; maxSkew
         00000004  ; firstPacket: 1 to 3 were received for good
         00000007  ; previousPacket
         00000008  ; serial of the packet that prompted it
         03        ; OUT_OF_SEQUENCE
         04        ; four packets follow
         01 00 01 03 ; 4, 6 and 7 were received: only the lowest bit counts
         000000    ; three bytes of padding
         0000163c  ; maxMTU 5692
         000005a4  ; ifMTU 1444
         00000020  ; window of 32 packets
         00000004  ; four packets in a datagram",
    );
    let ack = ack_of(&bytes);
    assert_eq!(
        (ack.first, ack.previous, ack.serial),
        (Seq(4), Seq(7), Serial(8))
    );
    assert_eq!(ack.reason, Some(Reason::OutOfSequence));
    assert_eq!(ack.packets, [1, 0, 1, 3]);
    let trailer = ack.trailer.unwrap();
    assert_eq!((trailer.max_mtu, trailer.if_mtu), (5692, 1444));
    assert_eq!(
        (trailer.window, trailer.datagram_packets),
        (Some(32), Some(4))
    );
    // AFS 3.3 ends after two words, 3.4 after three; earlier versions have none.
    for (cut, words) in [(4, 3), (8, 2), (12, 0), (16, 0)] {
        let ack = Ack::parse(&bytes[HEADER_BYTES..bytes.len() - cut]).unwrap();
        let trailer = ack.trailer.map(|t| 2 + usize::from(t.window.is_some()));
        assert_eq!(trailer.unwrap_or(0), words, "without {cut} bytes");
    }
}

#[test]
fn a_jumbogram() {
    let header = client_header(PacketType::Data, 7, 40, flag::CLIENT_INITIATED | 0x20);
    let mut bytes = header.clone();
    bytes.extend(vec![b'a'; PACKET_DATA_BYTES]);
    bytes.extend(dump("21 00 1234 ; another follows, checksum"));
    bytes.extend(vec![b'b'; PACKET_DATA_BYTES]);
    bytes.extend(dump(
        "05 00 5678 ; the last, of the datagram and of the request",
    ));
    bytes.extend(b"end");
    let header = Header::parse(&bytes).unwrap();
    let packets: Vec<_> = DataPackets::parse(&header, &bytes).unwrap().collect();
    let seen: Vec<_> = packets
        .iter()
        .map(|p| {
            (
                p.seq.0,
                p.serial.0,
                p.flags,
                p.checksum,
                bytes[p.range.clone()].len(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (7, 40, 0x21, 0, 1412),
            (8, 41, 0x21, 0x1234, 1412),
            (9, 42, 0x05, 0x5678, 3)
        ]
    );
    // Cut within a header or full packet it is invalid; cut within the last one it is shorter.
    for len in 0..bytes.len() {
        let parsed = DataPackets::parse(&header, &bytes[..len]);
        assert_eq!(parsed.is_some(), len >= bytes.len() - 3, "{len} bytes");
    }
    // A packet that is the last of the request cannot be followed by another.
    let mut bad = bytes.clone();
    bad[21] |= flag::LAST_PACKET;
    assert!(DataPackets::parse(&Header::parse(&bad).unwrap(), &bad).is_none());
}

#[test]
fn a_stranger_is_asked_before_anything_is_done() {
    let mut wire = Wire::new();
    let sent = wire.exchange(&request(b"work"));
    assert_eq!(sent.len(), 1);
    let mut ping = sent[0].clone();
    let serial = Serial(u32::from_be_bytes(ping[16..20].try_into().unwrap()));
    assert!(
        (1..1 << 30).contains(&serial.0),
        "unguessable, and positive for all peers"
    );
    ping[16..20].fill(0);
    let expected = dump(
        "8ed40c11 5c0de3a2 00000001 00000000
         00000000  ; serial, blanked
         02        ; ACK
         22        ; from the server, answer asked for, slow start
         00 00 0000 0007
         0000 0000
         00000001  ; nothing is acknowledged
         00000000
         00000000
         06        ; PING
         00
         000000
         000005a4  ; maxMTU 1444
         000005a4  ; ifMTU 1444
         00000001  ; a window of one packet, for now
         00000000  ; how many packets in a datagram is to be probed",
    );
    assert_eq!(ping, expected);
    assert_eq!(wire.endpoint.poll_event(), None);

    // The answer to another ping proves nothing, and after a wrong guess the answer to this one is
    // not enough.
    assert!(wire.exchange(&pong(serial.next())).is_empty());
    assert_eq!(wire.endpoint.poll_event(), None);
    let sent = wire.exchange(&pong(serial));
    assert_eq!(sent.len(), 1);
    let mut second = sent[0].clone();
    let higher = Serial(u32::from_be_bytes(second[16..20].try_into().unwrap()));
    assert!((serial.0 + 1..1 << 31).contains(&higher.0));
    second[16..20].fill(0);
    assert_eq!(second, expected);
    assert!(wire.exchange(&pong(serial)).is_empty());
    assert_eq!(wire.endpoint.poll_event(), None);
    wire.exchange(&pong(higher));
    let Some(Event::Call(incoming)) = wire.endpoint.poll_event() else {
        panic!("the call is shown");
    };
    assert_eq!(
        (incoming.peer, incoming.service),
        (wire.route.peer, SERVICE)
    );
    // The peer is not challenged again.
    let again = wire.exchange(&request(b"work"));
    assert!(
        again
            .iter()
            .all(|p| ack_of(p).reason == Some(Reason::Duplicate))
    );
}

#[test]
fn a_short_call_is_one_packet_each_way() {
    let mut wire = Wire::new();
    let incoming = wire.call(b"what is the time?");
    let Ok(Read::Data(data)) = wire.endpoint.read(wire.now, incoming.call) else {
        panic!("the request can be read");
    };
    assert_eq!(data.as_ref(), b"what is the time?");
    assert_eq!(wire.endpoint.read(wire.now, incoming.call), Ok(Read::End));
    let reply = Shared::from(&b"late"[..]);
    wire.endpoint.write(wire.now, incoming.call, reply).unwrap();
    wire.endpoint.finish(wire.now, incoming.call).unwrap();
    let mut sent = wire.sent();
    // The reply implies that the request arrived: no acknowledgement is sent beside it.
    assert_eq!(sent.len(), 1);
    sent[0][16..20].fill(0);
    let expected = dump(
        "8ed40c11 5c0de3a2 00000001 00000001 00000000
         01        ; DATA
         04        ; last; it does not ask for an answer, for OpenAFS's sake
         00        ; userStatus 0: no upgrade
         00 0000
         0007      ; the service that was called
         6c617465  ; late",
    );
    assert_eq!(sent[0], expected);
    // A soft acknowledgement is enough: clients keep the received packets of a reply.
    wire.exchange(&kafs_ack(1, 1, Serial(0), Reason::Delay, &[1]));
    assert_eq!(wire.endpoint.calls(), 0);
}

#[test]
fn an_upgrade_is_asked_for_and_not_given() {
    let mut wire = Wire::new();
    let mut probe = request(b"capabilities?");
    probe[22] = 1;
    let sent = wire.exchange(&probe);
    let ping = Header::parse(&sent[0]).unwrap();
    wire.exchange(&pong(ping.serial));
    let Some(Event::Call(incoming)) = wire.endpoint.poll_event() else {
        panic!("the call is shown");
    };
    assert_eq!(incoming.user_status, 1);
    wire.endpoint.finish(wire.now, incoming.call).unwrap();
    let reply = Header::parse(&wire.sent()[0]).unwrap();
    assert_eq!((reply.service, reply.user_status), (SERVICE, 0));
}

#[test]
fn abort_busy_and_ackall_packets() {
    // An abort of a call.
    let mut wire = Wire::new();
    let incoming = wire.call(b"x");
    let mut abort = client_header(PacketType::Abort, 0, 20, 1);
    abort.extend(dump("0000006e ; VBUSY, 110"));
    assert!(wire.exchange(&abort).is_empty(), "an abort is not answered");
    let ended = Event::Ended {
        call: incoming.call,
        reason: End::Aborted(110),
    };
    assert_eq!(wire.endpoint.poll_event(), Some(ended));
    wire.endpoint.release(wire.now, incoming.call);

    // Our abort, sent again for each late packet.
    let mut wire = Wire::new();
    let incoming = wire.call(b"x");
    wire.endpoint.abort(wire.now, incoming.call, 102);
    let mut sent = wire.sent();
    sent.extend(wire.exchange(&request(b"x")));
    sent.extend(wire.exchange(&request(b"x")));
    assert_eq!(sent.len(), 3);
    for abort in sent {
        assert_eq!(abort[20..28], dump("04 00 00 00 0000 0007"));
        assert_eq!(abort[28..], dump("00000066"));
    }

    // A client that has received everything.
    let mut wire = Wire::new();
    let incoming = wire.call(b"x");
    wire.endpoint
        .write(wire.now, incoming.call, Shared::from(vec![0; 5000]))
        .unwrap();
    wire.endpoint.finish(wire.now, incoming.call).unwrap();
    assert_eq!(wire.sent().len(), 4);
    wire.exchange(&client_header(PacketType::AckAll, 0, 21, 1));
    assert_eq!(wire.endpoint.calls(), 0);

    // A client ignores BUSY and retransmits.
    let mut wire = Wire::new();
    let (call, header) = wire.start(b"x");
    let busy = wire.reply(&header, PacketType::Busy, 0, &[]);
    assert!(wire.exchange(&busy).is_empty());
    assert_eq!(wire.endpoint.poll_event(), None);
    wire.pass(Duration::from_secs(2));
    assert_eq!(Header::parse(&wire.sent()[0]).unwrap().seq, Seq(1));
    wire.endpoint.release(wire.now, call);
}

impl Wire {
    /// Starts a call as a client; returns the header of its only packet.
    fn start(&mut self, body: &[u8]) -> (rx_proto::CallId, Header) {
        let connect = Connect {
            route: self.route,
            service: SERVICE,
            timeouts: Timeouts::default(),
            security: None,
        };
        let connection = self.endpoint.connect(self.now, connect);
        let call = self.endpoint.start(self.now, connection).unwrap();
        self.endpoint
            .write(self.now, call, Shared::from(body))
            .unwrap();
        self.endpoint.finish(self.now, call).unwrap();
        let sent = self.sent();
        (call, Header::parse(&sent[0]).unwrap())
    }

    /// Returns a packet of the server for the call of `request`.
    fn reply(&self, request: &Header, kind: PacketType, seq: u32, body: &[u8]) -> Vec<u8> {
        let header = Header {
            seq: Seq(seq),
            serial: Serial(seq + 1),
            kind,
            flags: if seq > 0 { flag::LAST_PACKET } else { 0 },
            ..*request
        };
        let mut packet = header.encode().to_vec();
        packet.extend(body);
        packet
    }
}

#[test]
fn a_clients_side_of_a_call() {
    let mut wire = Wire::new();
    let (call, header) = wire.start(b"ask");
    assert_eq!(
        (header.seq, header.flags, header.service),
        (Seq(1), 0x07, SERVICE)
    );
    assert_eq!(header.epoch.0 >> 31, 1, "the epoch says that it is random");
    let reply = wire.reply(&header, PacketType::Data, 1, b"answer");
    assert!(
        wire.exchange(&reply).is_empty(),
        "the next call may say that it arrived"
    );
    let Ok(Read::Data(data)) = wire.endpoint.read(wire.now, call) else {
        panic!("the reply can be read");
    };
    assert_eq!(data.as_ref(), b"answer");
    assert_eq!(wire.endpoint.read(wire.now, call), Ok(Read::End));
    // There is no next call.
    wire.pass(Duration::from_millis(20));
    let sent = wire.sent();
    assert_eq!(sent.len(), 1);
    let ack = ack_of(&sent[0]);
    assert_eq!((ack.first, ack.previous), (Seq(2), Seq(1)));
    assert_eq!((ack.reason, ack.packets.len()), (Some(Reason::Delay), 0));
    // The acknowledgement was lost, and the server retransmits.
    let sent = wire.exchange(&reply);
    let ack = ack_of(&sent[0]);
    assert_eq!((ack.first, ack.reason), (Seq(2), Some(Reason::Duplicate)));
    assert_eq!(ack.serial, Serial(2));
}

#[test]
fn acknowledgements_of_what_was_never_sent_end_the_call() {
    let nothing = kafs_ack(0, 0, Serial(0), Reason::Delay, &[]);
    let beyond = kafs_ack(9, 8, Serial(0), Reason::Delay, &[]);
    let too_many = kafs_ack(1, 5, Serial(0), Reason::Delay, &[1; 5]);
    for ack in [nothing, beyond, too_many] {
        let mut wire = Wire::new();
        let incoming = wire.call(b"x");
        wire.endpoint
            .write(wire.now, incoming.call, Shared::from(vec![0; 5000]))
            .unwrap();
        wire.sent();
        let sent = wire.exchange(&ack);
        assert_eq!(sent[0][20], PacketType::Abort as u8);
        assert_eq!(sent[0][28..], code::PROTOCOL_ERROR.to_be_bytes());
        let ended = Event::Ended {
            call: incoming.call,
            reason: End::Violation,
        };
        assert_eq!(wire.endpoint.poll_event(), Some(ended));
    }
}

#[test]
fn a_serial_in_place_of_the_previous_packet_does_not_hide_an_acknowledgement() {
    let mut wire = Wire::new();
    let incoming = wire.call(b"x");
    wire.endpoint
        .write(wire.now, incoming.call, Shared::from(vec![0; 50_000]))
        .unwrap();
    assert_eq!(seqs(&wire.sent()), (1..=10).collect::<Vec<_>>());
    // OpenAFS kernel clients before 1.6.23: the serial number is far beyond the window.
    wire.exchange(&kafs_ack(1, 700_000, Serial(0), Reason::Delay, &[1, 1]));
    wire.exchange(&kafs_ack(1, 2, Serial(0), Reason::Delay, &[1, 1, 1]));
    let before = wire.endpoint.stats().packets_out[0];
    // A reordered older acknowledgement does not revoke packets that a later one reported.
    wire.exchange(&kafs_ack(1, 1, Serial(0), Reason::Delay, &[1]));
    assert_eq!(wire.endpoint.stats().lost, 0);
    assert_eq!(wire.endpoint.stats().packets_out[0], before);
}

#[test]
fn what_a_peer_dropped_after_it_had_it_is_sent_again() {
    let mut wire = Wire::new();
    let incoming = wire.call(b"x");
    wire.endpoint
        .write(wire.now, incoming.call, Shared::from(vec![0; 50_000]))
        .unwrap();
    wire.sent();
    wire.exchange(&kafs_ack(1, 10, Serial(0), Reason::Delay, &[1; 10]));
    // OpenAFS may drop packets that its application has not read.
    let mut acks = [0; 30];
    acks[0] = 1;
    acks[2] = 1;
    acks[10..].fill(1);
    let sent = wire.exchange(&kafs_ack(1, 30, Serial(0), Reason::Delay, &acks));
    assert_eq!(seqs(&sent)[..8], [2, 4, 5, 6, 7, 8, 9, 10]);
}

/// Returns the sequence numbers of the DATA packets.
fn seqs(packets: &[Vec<u8>]) -> Vec<u32> {
    let headers = packets.iter().map(|p| Header::parse(p).unwrap());
    headers
        .filter(|h| h.kind == PacketType::Data)
        .map(|h| h.seq.0)
        .collect()
}

#[test]
fn a_server_that_forgot_the_call_ends_it() {
    for reason in [Reason::ExceedsWindow, Reason::OutOfSequence] {
        let mut wire = Wire::new();
        let (call, header) = wire.start(&vec![0; 30_000]);
        let mut ack = wire.reply(&header, PacketType::Ack, 0, &[]);
        let body = |first: u32, previous: u32, reason: Reason| {
            kafs_ack(first, previous, Serial(0), reason, &[])[HEADER_BYTES..].to_vec()
        };
        ack.extend(body(5, 4, Reason::Idle));
        wire.exchange(&ack);
        assert_eq!(wire.endpoint.poll_event(), None);
        ack.truncate(HEADER_BYTES);
        ack.extend(body(1, 0, reason));
        wire.exchange(&ack);
        let reason = End::Forgotten;
        assert_eq!(
            wire.endpoint.poll_event(),
            Some(Event::Ended { call, reason })
        );
    }
}

#[test]
fn a_request_whose_beginning_never_comes_is_turned_away() {
    // The server restarted in the middle of a request, and the client ignores all hints.
    let mut wire = Wire::new();
    let mut middle = client_header(PacketType::Data, 9, 30, 0x01);
    middle.extend(vec![0; PACKET_DATA_BYTES]);
    let ping = Header::parse(&wire.exchange(&middle)[0]).unwrap();
    let sent = wire.exchange(&pong(ping.serial));
    assert!(sent.iter().all(|p| ack_of(p).first == Seq(1)));
    let mut waited = Duration::ZERO;
    let abort = loop {
        wire.pass(Duration::from_secs(1));
        waited += Duration::from_secs(1);
        if let Some(abort) = wire.exchange(&middle).into_iter().find(|p| p[20] == 4) {
            break abort;
        }
        assert!(waited < Duration::from_secs(10));
    };
    assert_eq!(abort[28..], code::RESTARTING.to_be_bytes());
    assert_eq!(
        wire.endpoint.poll_event(),
        None,
        "the application never knew of it"
    );
}

#[test]
fn a_ping_is_answered_with_its_serial() {
    let mut wire = Wire::new();
    let incoming = wire.call(b"x");
    wire.sent();
    let mut ping = kafs_ack(1, 0, Serial(0), Reason::Ping, &[]);
    ping[21] |= flag::REQUEST_ACK;
    let sent = wire.exchange(&ping);
    assert_eq!(sent.len(), 1);
    let ack = ack_of(&sent[0]);
    assert_eq!(
        (ack.reason, ack.serial),
        (Some(Reason::PingResponse), Serial(9))
    );
    assert_eq!(ack.trailer.unwrap().window, Some(255));
    wire.endpoint.release(wire.now, incoming.call);
}

#[test]
fn a_packet_cut_at_any_length_does_no_harm() {
    let mut wire = Wire::new();
    let incoming = wire.call(b"x");
    wire.endpoint
        .write(wire.now, incoming.call, Shared::from(vec![0; 50_000]))
        .unwrap();
    wire.sent();
    let kinds = [
        kafs_ack(1, 3, Serial(7), Reason::Requested, &[1, 0, 1]),
        client_header(PacketType::AckAll, 0, 3, 1),
        client_header(PacketType::Params, 0, 3, 1),
        [client_header(PacketType::Response, 0, 3, 1), vec![1; 40]].concat(),
        [
            client_header(PacketType::Debug, 0, 3, 1),
            dump("00000001 00000000"),
        ]
        .concat(),
        [client_header(PacketType::Version, 0, 3, 1), vec![0; 65]].concat(),
        [client_header(PacketType::Challenge, 0, 3, 0), vec![1; 40]].concat(),
    ];
    for packet in &kinds {
        for len in 0..=packet.len() {
            wire.exchange(&packet[..len]);
        }
    }
    // The call still exists.
    let stats = wire.endpoint.stats();
    assert!(stats.malformed > 28, "{stats:?}");
    assert_eq!(wire.endpoint.poll_event(), None);
    let abort = [client_header(PacketType::Abort, 0, 3, 1), dump("00000001")].concat();
    for len in 0..HEADER_BYTES {
        wire.exchange(&abort[..len]);
    }
    assert_eq!(wire.endpoint.poll_event(), None);
    // An abort with a truncated code is still an abort.
    wire.exchange(&abort[..HEADER_BYTES + 3]);
    let reason = End::Aborted(code::CALL_DEAD);
    let call = incoming.call;
    assert_eq!(
        wire.endpoint.poll_event(),
        Some(Event::Ended { call, reason })
    );
}

#[test]
fn headers_read_back_as_they_were_written() {
    let mut random = Random::new(3);
    for _ in 0..1000 {
        let mut bytes = [0; HEADER_BYTES];
        bytes.fill_with(|| random.next_u64() as u8);
        bytes[20] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13][random.below(10) as usize];
        assert_eq!(Header::parse(&bytes).unwrap().encode(), bytes);
        bytes[20] = [0, 10, 11, 12, 14, 255][random.below(6) as usize];
        assert_eq!(Header::parse(&bytes), None);
    }
}
