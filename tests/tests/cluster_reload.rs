//! HUP of a machine of a cluster: units that are new, removed or changed in its tables, and what
//! `evfs status` shows of a unit.

use serde_json::Value;
use std::fs;
use tests::cluster::{Cluster, Kind, MACHINES};
use tests::{Ran, Random, wait_until};

mod needs_peer {
    use super::*;

    /// Name of a unit that only one machine has.
    const MORE: &str = "more";

    /// Returns the status of a service on a machine, if it is served there.
    fn status(cluster: &Cluster, node: usize, name: &str) -> Option<Value> {
        let ran = cluster.evfs(node, &["--json", "status", name]);
        let shown: Value = serde_json::from_str(&ran.stdout).ok()?;
        Some(shown["volumes"][0].clone()).filter(|status| !status.is_null())
    }

    /// Waits until a machine serves the second unit, and `is` holds for its status.
    #[track_caller]
    fn wait_for_more(cluster: &Cluster, node: usize, is: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        wait_until("the second unit has the status", || {
            found = status(cluster, node, MORE).filter(|status| is(status));
            found.is_some()
        });
        found.unwrap()
    }

    #[test]
    fn hup_takes_new_units_gives_removed_ones_up_in_order_and_keeps_the_others() {
        let cluster = Cluster::start(Kind::Volume);
        let recorder = cluster.record(&mut Random::from_environment());
        recorder.wait_for(100);
        let (_, epoch, owner) = cluster.unit();
        let owner = owner.unwrap();
        let unit = cluster.processes(owner)[1];
        let stays = || {
            recorder.wait_for(100);
            assert_eq!(cluster.unit(), ("served".into(), epoch, Some(owner)));
            assert!(cluster.processes(owner).contains(&unit));
        };
        let (tables, name) = (cluster.path(owner, "units.toml"), format!("m{owner}"));
        let disk = fs::read_to_string(&tables).unwrap();
        let reload = |text: &str| {
            fs::write(&tables, text).unwrap();
            tests::signal(cluster.processes(owner)[0], libc::SIGHUP);
        };

        // A file that cannot be read changes nothing.
        reload("[volume.disk\n");
        wait_until("the machine says why", || {
            cluster.log(owner).contains("EVFS-0807")
        });
        stays();

        // A new table.
        let create = ["volume", "create", "more.img", "--size", "32M"];
        let create = [&create[..], &["--passphrase-fd", "0"]].concat();
        Ran::with_input(cluster.command(owner).args(create), b"secret\n").ok();
        let more = format!(
            "[volume.{MORE}]\ndevice = \"{}\"\nkey-file = \"{}\"\nnbd-unix = \"{}\"\n",
            cluster.path(owner, "more.img").display(),
            cluster.path(owner, "key").display(),
            cluster.path(owner, "more.nbd").display(),
        );
        let both = format!("{disk}{more}");
        fs::write(&tables, &both).unwrap();
        let init = ["cluster", "init", MORE, "--config", "units.toml"];
        let init = [&init[..], &["--machines", &name]].concat();
        cluster.evfs(owner, &init).ok();
        recorder.wait_for(100);
        assert!(status(&cluster, owner, MORE).is_none());
        reload(&both);
        let first = wait_for_more(&cluster, owner, |_| true);
        assert_eq!(first["cluster"]["machine"], *name);
        let lease = first["cluster"]["lease_ms"].as_u64().unwrap();
        assert!((1..=2000).contains(&lease), "{lease} ms");
        stays();
        let shown = status(&cluster, owner, "disk").unwrap();
        assert_eq!(shown["cluster"]["epoch"], epoch);
        let text = cluster.evfs(owner, &["status", "disk"]).ok().stdout;
        let line = format!("unit  of machine {name} in its cluster, epoch {epoch}, lease for");
        assert!(text.contains(&line), "{text}");

        // A changed table takes effect when the unit is opened the next time.
        assert_ne!(first["threads"], 3);
        let changed = format!("{more}threads = 3\n");
        reload(&format!("{disk}{changed}"));
        let is_told = |status: &Value| {
            let warning = status["warning"].as_str().unwrap_or_default();
            warning.contains("has changed") && warning.contains("`evfs detach more`")
        };
        let told = wait_for_more(&cluster, owner, is_told);
        assert_eq!(told["cluster"]["epoch"], first["cluster"]["epoch"]);
        assert_eq!(told["threads"], first["threads"]);
        cluster.evfs(owner, &["detach", MORE]).ok();
        let second = wait_for_more(&cluster, owner, |status| status["threads"] == 3);
        assert!(second["cluster"]["epoch"].as_u64() > first["cluster"]["epoch"].as_u64());
        assert!(!is_told(&second), "{second}");
        stays();

        // Without its table, a unit moves in order, and the other one stays.
        reload(&changed);
        let next = cluster.wait_for_owner(epoch, |next| next != owner);
        recorder.wait_for(100);
        assert_eq!(cluster.processes(owner).len(), 2);
        assert!(!cluster.has_address(owner));
        let third = wait_for_more(&cluster, owner, |_| true);
        assert_eq!(third["cluster"]["epoch"], second["cluster"]["epoch"]);
        assert_eq!(third["pid"], second["pid"]);

        // Its table is back: the unit may, but does not, return.
        reload(&format!("{disk}{changed}"));
        recorder.wait_for(100);
        assert_eq!(cluster.unit().2, Some(next));
        let back = ["cluster", "move", "disk", &name];
        cluster.evfs(owner, &back).ok();
        assert_eq!(cluster.unit().2, Some(owner));
        recorder.wait_for(100);

        // No crash is in the history, and nothing was fenced.
        recorder.finish().check().unwrap();
        for node in 0..MACHINES {
            assert!(!cluster.log(node).contains("EVFS-1006"), "m{node}");
        }
    }
}
