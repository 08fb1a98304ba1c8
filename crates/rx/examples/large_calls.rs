//! Makes calls over loopback that are large enough for jumbograms to be probed, in both directions.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{bytes, check_echo, client, connect, echo, serve};

fn main() {
    let (server, client) = (serve(1, echo), client());
    let connection = connect(&client, &server);
    for round in 0..3 {
        check_echo(&connection, round, 1_000_000).unwrap();
    }
    // Several at once, with mixed batches.
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let connection = connection.clone();
            scope.spawn(move || check_echo(&connection, 10 + caller, 200_000).unwrap());
        }
    });
    assert!(connection.request(bytes(9, 100), 100).unwrap() == bytes(9, 100));
    // All refused datagrams were sent again with a smaller size.
    assert_eq!(
        (server.stats().send_errors, client.stats().send_errors),
        (0, 0)
    );
}
