//! Asks a volume location server of OpenAFS for a volume that it does not have.
//!
//! ```text
//!   call_vlserver ADDRESS
//! ```
//!
//! Fails unless the server replies with the error codes of OpenAFS.

use rx::{End, Error, Port, Settings, Timeouts};
use std::net::IpAddr;
use std::time::{Duration, Instant};

fn main() {
    /// `VL_NOENT` of `src/vlserver/vl_errors.et`, and ubik's `UNOQUORUM`, while the server is
    /// alone.
    const NO_ENTRY: i32 = 363_524;
    const NO_QUORUM: i32 = 5376;
    let server: IpAddr = std::env::args()
        .nth(1)
        .and_then(|address| address.parse().ok())
        .expect("which address?");
    let settings = Settings {
        listen: ([0, 0, 0, 0], 0).into(),
        ..Settings::default()
    };
    let port = Port::open(&settings, Vec::new()).unwrap();
    let connection = port.connect((server, 7003).into(), 52, Timeouts::default());
    let opcode = |number: u32| number.to_be_bytes().to_vec();
    // ProbeServer: the port answers before the service is there.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = connection.request(opcode(514), 100);
        if answer == Ok(Vec::new()) {
            break;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    // A procedure that OpenAFS does not know.
    let unknown = connection.request(opcode(65_537), 100);
    assert_eq!(unknown, Err(Error::Ended(End::Aborted(-455))));
    // GetEntryByNameO of "no.volume": a string is encoded as its length, then its bytes padded to a
    // multiple of four.
    let mut request = opcode(504);
    request.extend(9_u32.to_be_bytes());
    request.extend(b"no.volume\0\0\0");
    let start = Instant::now();
    loop {
        match connection.request(request.clone(), 1000) {
            Err(Error::Ended(End::Aborted(NO_ENTRY))) => break,
            Err(Error::Ended(End::Aborted(NO_QUORUM)))
                if start.elapsed() < Duration::from_secs(60) =>
            {
                std::thread::sleep(Duration::from_millis(200));
            }
            other => panic!("{other:?}"),
        }
    }
}
