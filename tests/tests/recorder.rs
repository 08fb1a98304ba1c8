//! The recorder and the checker of histories with real servers that are killed, and with planted
//! faults of these servers.

mod needs_peer {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::Duration;
    use test_support::history::{History, Violation};
    use test_support::network::{Link, Machine, Network};
    use test_support::{dies_with_parent, installed};
    use tests::recorder::{BLOCK, Load, Recorder};
    use tests::targets::{free_port, image};
    use tests::{Killed, Random, Sandbox};

    const BLOCKS: u32 = 64;

    /// Writes that stay in a file of `nbdkit` until a flush, and are lost when it is killed.
    const WRITE_BACK: &[&str] = &["--filter=cache", "cache=writeback"];
    /// The same without the flush.
    const UNSAFE: &[&str] = &["--filter=cache", "cache=unsafe"];

    /// Serves an image with `nbdkit`.
    fn serve(on: Option<&Machine>, at: SocketAddr, image: &Path, options: &[&str]) -> Killed {
        let program = installed("nbdkit");
        let mut command = match on {
            Some(machine) => machine.command(program),
            None => Command::new(program),
        };
        if on.is_none() {
            dies_with_parent(&mut command);
        }
        let (filters, parameters) = options.split_at(options.len() / 2);
        command
            .args([
                "-f",
                "-i",
                &at.ip().to_string(),
                "-p",
                &at.port().to_string(),
            ])
            .args(filters)
            .arg("file")
            .arg(image)
            .args(parameters)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Killed(command.spawn().expect("it starts"))
    }

    fn load(servers: &[SocketAddr]) -> Load {
        Load {
            servers: servers.into(),
            export: String::new(),
            threads: 6,
            blocks: BLOCKS,
            within: Duration::from_secs(2),
            pause: Duration::from_micros(500),
        }
    }

    /// A server on the loopback interface that is killed and started again.
    struct Restarted {
        s: Sandbox,
        at: SocketAddr,
        options: &'static [&'static str],
    }

    impl Restarted {
        fn new(options: &'static [&'static str]) -> Restarted {
            let s = Sandbox::new();
            image(&s, "disk", u64::from(BLOCKS) * BLOCK as u64);
            let at = (Ipv4Addr::LOCALHOST, free_port()).into();
            Restarted { s, at, options }
        }

        fn serve(&self) -> Killed {
            serve(None, self.at, &self.s.path("disk"), self.options)
        }

        /// Kills the server some times while it is used.
        fn history(&self, kills: usize) -> History {
            let mut server = self.serve();
            let mut recorder = Recorder::start(load(&[self.at]), &mut Random::from_environment());
            for _ in 0..kills {
                recorder.wait_for(500);
                server = recorder.crash(|recorder| {
                    drop(server);
                    let server = self.serve();
                    recorder.wait_for(1);
                    server
                });
            }
            recorder.wait_for(500);
            let history = recorder.finish();
            drop(server);
            history
        }
    }

    fn accepted(history: &History) {
        let unanswered = history
            .operations
            .iter()
            .filter(|o| o.completed.is_none())
            .count();
        println!(
            "{} operations, {unanswered} unanswered",
            history.operations.len()
        );
        assert!(unanswered > 0, "the kills met no operation");
        if let Err(violation) = history.check() {
            panic!("{violation}");
        }
    }

    fn violation(history: &History) -> Violation {
        let violation = history.check().expect_err("a fault was planted");
        println!("{violation}");
        violation
    }

    #[test]
    fn a_server_that_is_killed_and_started_again_on_its_file_is_accepted() {
        accepted(&Restarted::new(&[]).history(4));
    }

    #[test]
    fn a_server_that_loses_what_was_not_flushed_is_accepted() {
        let mut history = Restarted::new(WRITE_BACK).history(4);
        accepted(&history);
        // It did lose something: without crashes, nothing explains what was read.
        history.crashes.clear();
        violation(&history);
    }

    #[test]
    fn a_server_that_ignores_flushes_is_found() {
        violation(&Restarted::new(UNSAFE).history(2));
    }

    #[test]
    fn a_server_that_starts_again_on_an_older_copy_of_its_file_is_found() {
        let server = Restarted::new(&[]);
        let running = server.serve();
        let mut recorder = Recorder::start(load(&[server.at]), &mut Random::from_environment());
        let copy = || std::fs::copy(server.s.path("disk"), server.s.path("copy")).expect("a copy");
        recorder.wait_for(500);
        copy();
        recorder.wait_for(1000);
        let _running = recorder.crash(|recorder| {
            drop(running);
            std::fs::rename(server.s.path("copy"), server.s.path("disk")).expect("the copy");
            let running = server.serve();
            recorder.wait_for(1);
            running
        });
        recorder.wait_for(100);
        violation(&recorder.finish());
    }

    /// Two machines serve one file in turn, with write-back caches. The second takes over when the
    /// first is cut off from the clients, after the first is killed if it is `fenced`.
    fn take_over(fenced: bool) -> History {
        let network = Network::new(2);
        let s = Sandbox::new();
        let disk = image(&s, "disk", u64::from(BLOCKS) * BLOCK as u64);
        let at = |machine: &Machine| SocketAddr::from((machine.address(Link::Clients), 10809));
        let serve = |machine: &Machine| serve(Some(machine), at(machine), &disk, WRITE_BACK);
        let [old, new] = network.machines() else {
            panic!("two machines");
        };
        let mut of_old = Some(serve(old));
        let servers = [at(old), at(new)];
        let mut recorder = Recorder::start(load(&servers), &mut Random::from_environment());
        recorder.wait_for(500);
        let _of_new = recorder.crash(|recorder| {
            network.cut(old.number(), Link::Clients);
            if fenced {
                of_old = None;
            }
            let of_new = serve(new);
            recorder.wait_for(500);
            of_new
        });
        network.heal(old.number(), Link::Clients);
        recorder.wait_for(500);
        if !fenced {
            // The clients return to the server that has missed all that happened.
            network.cut(new.number(), Link::Clients);
            recorder.wait_for(500);
            network.heal(new.number(), Link::Clients);
        }
        recorder.finish()
    }

    #[test]
    fn a_take_over_by_another_machine_is_accepted() {
        accepted(&take_over(true));
    }

    #[test]
    fn a_take_over_with_an_address_that_moves_is_accepted() {
        let network = Network::new(2);
        let s = Sandbox::new();
        let disk = image(&s, "disk", u64::from(BLOCKS) * BLOCK as u64);
        let at = SocketAddr::from((Ipv4Addr::new(10, 91, 3, 100), 10809));
        let ip = |mut command: Command, arguments: String| {
            let ran = command.args(arguments.split(' ')).status();
            assert!(ran.expect("it starts").success(), "ip {arguments}");
        };
        let take = |machine: &Machine| {
            let (program, link) = (installed("ip"), Link::Clients.name());
            let add = format!("address add {}/24 dev {link}", at.ip());
            ip(machine.command(&program), add);
            // An announcement of the address would have this effect. Without one, the clients ask
            // the old machine for half a minute.
            let forget = format!("neighbour flush to {}", at.ip());
            ip(Command::new(&program), forget);
            serve(Some(machine), at, &disk, WRITE_BACK)
        };
        let [old, new] = network.machines() else {
            panic!("two machines");
        };
        let mut server = take(old);
        let mut recorder = Recorder::start(load(&[at]), &mut Random::from_environment());
        recorder.wait_for(500);
        server = recorder.crash(|recorder| {
            // The cut machine keeps the address.
            network.cut(old.number(), Link::Clients);
            drop(server);
            let server = take(new);
            recorder.wait_for(1);
            server
        });
        recorder.wait_for(500);
        accepted(&recorder.finish());
        drop(server);
    }

    #[test]
    fn a_take_over_from_a_machine_that_goes_on_is_found() {
        violation(&take_over(false));
    }
}
