//! The address of a unit: neighbours learn of its move, and the kernel removes it in time.

use cluster::Address;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use test_support::network::{Machine, Network};
use test_support::{installed, wait_until};

const SOON: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(300);
const PORT: u16 = 9000;

/// Returns what `ip` prints on a machine.
fn ip(machine: &Machine, args: &str) -> String {
    let mut command = machine.command(installed("ip"));
    let output = command.args(args.split_whitespace()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {args}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn has(machine: &Machine, address: &Address) -> bool {
    let all = ip(machine, "-o address show dev clients");
    all.contains(&format!("{}/", address.ip))
}

/// Returns the hardware address of the interface of a machine, as `ip` prints it.
fn hardware(machine: &Machine) -> String {
    let link = ip(machine, "-o link show dev clients");
    let mut words = link.split_whitespace();
    words.find(|word| *word == "link/ether").unwrap();
    words.next().unwrap().into()
}

/// Connects to the address from a machine. The new owner does not know the client yet, so the entry
/// of the client's table is from its own question, or from an announcement.
fn reach(machine: &Machine, ip: IpAddr) -> bool {
    let to = SocketAddr::new(ip, PORT);
    machine.inside(|| TcpStream::connect_timeout(&to, Duration::from_secs(1)).is_ok())
}

fn moves(text: &str, client_has: &str, any: &str) {
    let network = Network::new(3);
    let [one, two, client] = network.machines() else {
        panic!("three machines");
    };
    let address: Address = text.parse().unwrap();
    if address.ip.is_ipv6() {
        ip(
            client,
            &format!("address add {client_has} dev clients nodad"),
        );
        for machine in [one, two, client] {
            wait_until("the link has an address", SOON, || {
                let all = ip(machine, "-o -6 address show dev clients scope link");
                !all.is_empty() && !all.contains("tentative")
            });
        }
    }
    let listen = || TcpListener::bind((any, PORT)).unwrap();
    let _listeners = [one.inside(listen), two.inside(listen)];

    one.inside(|| address.add(LONG).and_then(|()| address.announce()))
        .unwrap();
    assert!(has(one, &address));
    wait_until("the client reaches it", SOON, || reach(client, address.ip));
    let knows = |machine: &Machine| {
        let neighbours = ip(client, &format!("neighbour show to {}", address.ip));
        neighbours.contains(&hardware(machine))
    };
    assert!(knows(one) && !knows(two));

    // The old owner stands still with the address: it answers the questions of its neighbours.
    two.inside(|| address.add(LONG).and_then(|()| address.announce()))
        .unwrap();
    wait_until(
        "the client learns of the move",
        Duration::from_secs(2),
        || knows(two),
    );
    assert!(!knows(one));
    one.inside(|| address.remove()).unwrap();
    assert!(!has(one, &address) && has(two, &address));
    assert!(reach(client, address.ip));
    // Again, although there is nothing to remove.
    one.inside(|| address.remove()).unwrap();
}

mod needs_root {
    use super::*;

    #[test]
    fn neighbours_learn_of_the_move_of_an_ipv4_address() {
        moves("10.91.3.100/24@clients", "", "0.0.0.0");
    }

    #[test]
    fn neighbours_learn_of_the_move_of_an_ipv6_address() {
        moves("fd00:91::100/64@clients", "fd00:91::3/64", "::");
    }

    #[test]
    fn the_kernel_removes_an_address_that_is_not_renewed() {
        let network = Network::new(1);
        let machine = &network.machines()[0];
        for text in ["10.91.3.100/24@clients", "fd00:91::100/64@clients"] {
            let address: Address = text.parse().unwrap();
            let began = Instant::now();
            let lives = Duration::from_secs(3);
            machine.inside(|| address.add(lives)).unwrap();
            while began.elapsed() < Duration::from_secs(5) {
                machine.inside(|| address.add(lives)).unwrap();
                std::thread::sleep(Duration::from_millis(200));
                assert!(has(machine, &address));
            }
            // The kernel looks at lifetimes now and then.
            wait_until(
                "the address is removed",
                lives + Duration::from_secs(4),
                || !has(machine, &address),
            );
        }
        let elsewhere: Address = "10.91.3.100/24@eth9".parse().unwrap();
        assert!(!machine.inside(|| elsewhere.has_interface()).unwrap());
        machine.inside(|| elsewhere.add(LONG)).unwrap_err();
    }
}
