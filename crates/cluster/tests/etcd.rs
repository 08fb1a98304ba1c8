//! The client of etcd, against real members.

use cluster::{Drain, Endpoints, Host, Own, Seen, Store};
use cluster_proto::{Answer, Ask, Notice, Record};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use test_support::etcd::Etcd;

const WITHIN: Duration = Duration::from_secs(10);

fn store(endpoints: &Endpoints) -> Store {
    Store::new(endpoints, "/evfs").unwrap()
}

fn in_clear(etcd: &Etcd) -> Endpoints {
    Endpoints {
        urls: etcd.endpoints(),
        ..Endpoints::default()
    }
}

/// A machine that may serve the units `u0` to `uN`.
fn own(units: usize) -> Own {
    Own {
        name: "m1".into(),
        host: Host {
            host: "host".into(),
        },
        units: (0..units).map(|unit| format!("u{unit}").into()).collect(),
    }
}

/// Returns the units that a machine learns of when it starts.
fn load(store: &Store, own: &Own) -> (BTreeSet<String>, u64) {
    let (answer, loaded) = store.carry_out(own, &Ask::Load, WITHIN);
    let Answer::Loaded(notices) = answer else {
        panic!("{answer:?}");
    };
    let units = notices.into_iter().filter_map(|notice| match notice {
        Notice::Unit { unit, .. } => Some(unit.to_string()),
        _ => None,
    });
    (units.collect(), loaded.unwrap().0)
}

/// Lets the watches of a test end, also when it panics.
struct EndsAtExit<'a>(&'a AtomicBool);

impl Drop for EndsAtExit<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn members_and_clients_know_each_other_by_certificates() {
        let place = tempfile::tempdir().unwrap();
        let etcd = Etcd::start_with_tls(place.path(), 3);
        let [ca, certificate, key] = etcd.certificates();
        let known = Endpoints {
            urls: etcd.endpoints(),
            ca: Some(ca.clone()),
            client: Some((certificate, key)),
        };
        let one = store(&known);
        assert!(one.create("a", &Record::new(Vec::new()), WITHIN).unwrap());
        let drain = Drain {
            machine: "m1".into(),
            is_drained: true,
        };
        one.set_drain(&drain, WITHIN).unwrap();
        let (state, _) = one.state(WITHIN).unwrap();
        assert_eq!(state.units.len(), 1);
        assert_eq!(
            state.drained.into_iter().collect::<Vec<_>>(),
            [drain.machine]
        );
        let versions = one.etcd().versions(WITHIN);
        assert!(
            versions.iter().all(|(_, version)| version.is_ok()),
            "{versions:?}"
        );

        // A client without a certificate.
        let stranger = Endpoints {
            client: None,
            ..known.clone()
        };
        assert!(store(&stranger).state(WITHIN).is_err());

        // Members with certificates of another authority.
        let other = tempfile::tempdir().unwrap();
        test_support::tls::create_authority(other.path());
        let misled = Endpoints {
            ca: Some(other.path().join("ca-cert.pem")),
            ..known.clone()
        };
        let refused = store(&misled).state(WITHIN).unwrap_err().to_string();
        assert!(refused.contains("ertificate"), "{refused}");

        // The same members by a name that is in no certificate.
        let elsewhere = |url: &String| url.replace("127.0.0.1", "localhost");
        let misled = Endpoints {
            urls: known.urls.iter().map(elsewhere).collect(),
            ..known
        };
        let refused = store(&misled).state(WITHIN).unwrap_err().to_string();
        assert!(refused.contains("ertificate"), "{refused}");
    }

    /// The records of few units are read one by one, those of many together.
    #[test]
    fn a_machine_learns_of_its_units_whether_they_are_few_or_many() {
        let place = tempfile::tempdir().unwrap();
        let etcd = Etcd::start(place.path(), 3);
        let one = store(&in_clear(&etcd));
        let record = Record::new(Vec::new());
        for unit in 0..1300 {
            assert!(one.create(&format!("u{unit}"), &record, WITHIN).unwrap());
        }
        for units in [0, 1, 250, 1200] {
            let own = own(units);
            let (learned, revision) = load(&one, &own);
            assert_eq!(learned.len(), units);
            let seen = Mutex::new(Vec::new());
            let ends = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _end = EndsAtExit(&ends);
                scope.spawn(|| {
                    one.watch(&own, revision, &mut |what| {
                        if !matches!(what, Seen::Nothing) {
                            seen.lock().unwrap().push(format!("{what:?}"));
                        }
                        !ends.load(Relaxed)
                    });
                });
                let wait_for = |text: &str| {
                    let text = format!("{text}\"");
                    test_support::wait_until(&text, Duration::from_secs(30), || {
                        seen.lock().unwrap().iter().any(|one| one.contains(&text))
                    });
                };
                let update = |unit: &str| {
                    let (state, _) = one.state(WITHIN).unwrap();
                    let mut units = state.units.iter();
                    let (_, (record, revision)) = units.find(|one| *one.0 == *unit).unwrap();
                    let record = record.as_ref().unwrap();
                    assert!(one.replace(unit, *revision, record, None, WITHIN).unwrap());
                };
                update("u1299");
                for unit in [0, units / 2, units.saturating_sub(1)] {
                    if unit < units {
                        update(&format!("u{unit}"));
                        wait_for(&format!("u{unit}"));
                    }
                }
                // A change while the watches move to other members.
                for round in 0..3 {
                    std::thread::sleep(Duration::from_millis(900));
                    let machine = format!("d{units}-{round}");
                    let drain = Drain {
                        machine: machine.as_str().into(),
                        is_drained: true,
                    };
                    one.set_drain(&drain, WITHIN).unwrap();
                    wait_for(&machine);
                }
            });
            let seen = seen.into_inner().unwrap();
            let others = seen.iter().filter(|one| one.contains("u1299")).count();
            assert_eq!(others, 0, "{seen:?}");
            for round in 0..3 {
                let change = format!("d{units}-{round}\"");
                let told = seen.iter().filter(|one| one.contains(&change)).count();
                assert_eq!(told, 1, "{seen:?}");
            }
        }
    }

    #[test]
    fn changes_that_etcd_does_not_have_any_more_are_reported_as_missed() {
        let place = tempfile::tempdir().unwrap();
        let etcd = Etcd::start(place.path(), 1);
        let one = store(&in_clear(&etcd));
        let record = Record::new(Vec::new());
        for unit in ["u0", "u1", "other"] {
            assert!(one.create(unit, &record, WITHIN).unwrap());
        }
        let (_, revision) = one.state(WITHIN).unwrap();
        etcd.ctl(&["compact", &revision.to_string()]);
        let is_missed = Mutex::new(false);
        one.watch(&own(2), 2, &mut |seen| {
            if matches!(seen, Seen::Notice(Notice::Missed)) {
                *is_missed.lock().unwrap() = true;
            }
            !*is_missed.lock().unwrap()
        });
        assert!(*is_missed.lock().unwrap());
    }
}
