//! The client of etcd, against real members.

use cluster::{Drain, Endpoints, Store};
use cluster_proto::Record;
use std::time::Duration;
use test_support::etcd::Etcd;

const WITHIN: Duration = Duration::from_secs(10);

fn store(endpoints: &Endpoints) -> Store {
    Store::new(endpoints, "/evfs").unwrap()
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
}
