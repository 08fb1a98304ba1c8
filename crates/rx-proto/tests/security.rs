//! A security class in the form of rxgk replaces rxnull: a challenge, sealed packets with an
//! overhead, and packets that are not authentic.
//!
//! The class here is a toy: it adds a key to each byte and a sum at the end. It shows that the core
//! calls every function of a class in the right places.

mod common;

use common::{CLIENT, Link, Outcome, Pair, SERVER, SERVICE, seed};
use rx_proto::{
    Acceptor, Cid, Connect, ConnectionId, End, Epoch, PacketPlace, Payload, Sealed, Security,
    SecurityError, Service, Shared, Timeouts,
};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const TOY: u8 = 6;
const OVERHEAD: usize = 24;

struct Toy {
    key: u8,
    /// Outstanding challenge at a server, until the client has answered.
    challenge: Option<Vec<u8>>,
    client: Option<Vec<u8>>,
    seals: u32,
}

impl Toy {
    /// Returns a sum bound to the data and its position.
    fn sum(&self, place: &PacketPlace, data: &[u8]) -> Vec<u8> {
        let mut sum = vec![self.key; OVERHEAD];
        let words = [place.epoch.0, place.cid.0, place.call_number.0, place.seq.0];
        let words = words.map(u32::to_be_bytes).concat();
        let side = [u8::from(place.from_client)];
        for (n, byte) in words.iter().chain(&side).chain(data).enumerate() {
            let at = n % OVERHEAD;
            sum[at] = sum[at].wrapping_mul(31).wrapping_add(*byte);
        }
        sum
    }
}

impl Security<Shared, Shared> for Toy {
    fn index(&self) -> u8 {
        TOY
    }

    fn capacity(&self, room: usize) -> usize {
        room - OVERHEAD
    }

    fn seal(
        &mut self,
        place: &PacketPlace,
        pieces: &[Shared],
    ) -> Result<Sealed<Shared>, SecurityError> {
        self.seals += 1;
        let mut data: Vec<u8> = pieces.iter().flat_map(|p| p.as_ref().to_vec()).collect();
        let sum = self.sum(place, &data);
        data.iter_mut().for_each(|b| *b = b.wrapping_add(self.key));
        data.extend(sum);
        Ok(Sealed {
            checksum: 0x7e57,
            payload: Shared::from(data),
        })
    }

    fn open(
        &mut self,
        place: &PacketPlace,
        checksum: u16,
        data: Shared,
    ) -> Result<Shared, SecurityError> {
        let sealed = data.as_ref();
        if checksum != 0x7e57 || sealed.len() < OVERHEAD {
            return Err(SecurityError::Discard);
        }
        let (data, sum) = sealed.split_at(sealed.len() - OVERHEAD);
        let data: Vec<u8> = data.iter().map(|b| b.wrapping_sub(self.key)).collect();
        if sum != self.sum(place, &data) {
            return Err(SecurityError::Discard);
        }
        Ok(Shared::from(data))
    }

    fn challenge(&mut self) -> Option<Vec<u8>> {
        self.challenge.clone()
    }

    fn check_response(&mut self, response: &[u8]) -> Result<(), SecurityError> {
        let expected = self.challenge.take().unwrap_or_default();
        let (answer, name) = response.split_at(response.len().min(expected.len()));
        if answer
            .iter()
            .map(|b| b.wrapping_sub(self.key))
            .ne(expected.iter().copied())
        {
            return Err(SecurityError::Abort(1_233_242));
        }
        self.client = Some(name.to_vec());
        Ok(())
    }

    fn respond(&mut self, challenge: &[u8]) -> Result<Vec<u8>, SecurityError> {
        let mut answer: Vec<u8> = challenge.iter().map(|b| b.wrapping_add(self.key)).collect();
        answer.extend(b"joe");
        Ok(answer)
    }

    fn identity(&self) -> Option<&[u8]> {
        self.client.as_deref()
    }
}

struct Toys;

impl Acceptor<Shared, Shared> for Toys {
    fn index(&self) -> u8 {
        TOY
    }

    fn accept(
        &mut self,
        _epoch: Epoch,
        _cid: Cid,
        entropy: [u32; 8],
    ) -> Box<dyn Security<Shared, Shared>> {
        Box::new(Toy {
            key: 77,
            challenge: Some(entropy.map(u32::to_be_bytes).concat()),
            client: None,
            seals: 0,
        })
    }
}

fn pair(link: Link, seed: u64, key: u8) -> (Pair, ConnectionId) {
    let mut pair = Pair::new(link, seed);
    pair.hosts[SERVER].endpoint.accept_class(Box::new(Toys));
    pair.hosts[SERVER].endpoint.serve(Service {
        id: SERVICE,
        classes: vec![TOY],
    });
    let connect = Connect {
        route: pair.hosts[CLIENT].route(),
        service: SERVICE,
        timeouts: Timeouts::default(),
        security: Some(Box::new(Toy {
            key,
            challenge: None,
            client: None,
            seals: 0,
        }) as Box<dyn Security<Shared, Shared>>),
    };
    let connection = pair.hosts[CLIENT].endpoint.connect(pair.now, connect);
    (pair, connection)
}

#[test]
fn calls_are_sealed_and_opened() {
    let (mut pair, connection) = pair(Link::default(), seed(81), 77);
    let plain = std::rc::Rc::new(std::cell::Cell::new(0));
    let seen = plain.clone();
    pair.net.tap = Some(Box::new(move |_, bytes: &[u8]| {
        let text = common::reply_bytes(3, 40);
        seen.set(seen.get() + usize::from(bytes.windows(40).any(|w| w == text)));
    }));
    for tag in 0..4 {
        pair.call(CLIENT, connection, tag, 200_000, 100_000)
            .unwrap();
    }
    pair.finish_calls(CLIENT, 4, MINUTE);
    assert_eq!(plain.get(), 0, "nothing is sent in the clear");
    // The challenge proved the client's address; no ping was needed.
    assert_eq!(pair.hosts[SERVER].endpoint.stats().packets_out[5], 1);
    let server = pair.hosts[SERVER]
        .events
        .iter()
        .find_map(|event| match event {
            rx_proto::Event::Call(incoming) => Some(incoming.connection),
            _ => None,
        });
    let identity = pair.hosts[SERVER].endpoint.identity(server.unwrap());
    assert_eq!(identity, Some(&b"joe"[..]));
}

#[test]
fn sealed_calls_survive_loss_and_use_jumbograms() {
    let link = Link {
        mtu: 65_507,
        loss: 0.05,
        reorder: 0.05,
        duplicate: 0.05,
        ..Link::default()
    };
    let (mut pair, connection) = pair(link, seed(82), 77);
    for tag in 0..8 {
        pair.run(MINUTE, |pair| {
            pair.call(CLIENT, connection, tag, 300_000, 300_000)
                .is_some()
        });
    }
    pair.finish_calls(CLIENT, 8, 10 * MINUTE);
    assert!(pair.hosts[SERVER].largest_seen > 1440);
}

#[test]
fn a_wrong_answer_ends_the_connection() {
    let (mut pair, connection) = pair(Link::default(), seed(83), 76);
    pair.call(CLIENT, connection, 1, 10, 0).unwrap();
    pair.run(MINUTE, |pair| !pair.hosts[CLIENT].outcomes.is_empty());
    let end = Outcome::Ended(End::Aborted(1_233_242));
    assert_eq!(pair.hosts[CLIENT].outcomes[&1], end);
    assert_eq!(pair.hosts[SERVER].endpoint.connections(), 0);
    assert!(
        pair.hosts[SERVER].events.is_empty(),
        "its application never knew"
    );
}

#[test]
fn packets_that_are_not_genuine_are_as_if_they_never_came() {
    let (mut pair, connection) = pair(Link::default(), seed(84), 77);
    pair.net.corrupt = 0.05;
    for tag in 0..4 {
        pair.call(CLIENT, connection, tag, 200_000, 100_000)
            .unwrap();
    }
    pair.finish_calls(CLIENT, 4, 10 * MINUTE);
    assert!(pair.hosts[CLIENT].endpoint.stats().not_genuine > 5);
    assert!(pair.hosts[SERVER].endpoint.stats().not_genuine > 5);
}

#[test]
fn a_class_that_the_service_does_not_take_is_refused() {
    let (mut pair, _) = pair(Link::default(), seed(85), 77);
    let null = pair.connect(CLIENT);
    pair.call(CLIENT, null, 1, 10, 0).unwrap();
    pair.run(MINUTE, |pair| !pair.hosts[CLIENT].outcomes.is_empty());
    let code = rx_proto::code::INVALID_OPERATION;
    assert_eq!(
        pair.hosts[CLIENT].outcomes[&1],
        Outcome::Ended(End::Aborted(code))
    );
}

#[test]
fn a_payload_is_what_the_driver_says_it_is() {
    // The toy needs to read the data it seals; rxnull never does: this payload cannot be read.
    #[derive(Clone)]
    struct Blind(usize);
    impl Payload for Blind {
        fn len(&self) -> usize {
            self.0
        }
        fn slice(&self, range: std::ops::Range<usize>) -> Blind {
            Blind(range.len())
        }
    }
    let mut endpoint: rx_proto::Endpoint<Blind, Shared> =
        rx_proto::Endpoint::new(rx_proto::Config::default(), [1; 32]);
    let now = rx_proto::Timestamp::from_nanos(1);
    let connect = Connect {
        route: rx_proto::Route {
            peer: "192.0.2.1:7000".parse().unwrap(),
            local: None,
        },
        service: SERVICE,
        timeouts: Timeouts::default(),
        security: None,
    };
    let connection = endpoint.connect(now, connect);
    let call = endpoint.start(now, connection).unwrap();
    assert!(endpoint.write(now, call, Blind(10_000)).is_ok());
    endpoint.finish(now, call).unwrap();
    let mut batch = rx_proto::Transmit::new(64);
    assert!(endpoint.poll_transmit(now, &mut batch));
    let payloads = batch
        .parts()
        .filter(|p| matches!(p, rx_proto::Part::Payload(_)));
    assert_eq!((batch.segments(), payloads.count()), (8, 8));
}
