//! Volume location: by name and by number, in three generations, and nonexistent volumes.

mod common;

use afs_proto::vl::{
    self, ANY_TYPE, ListAddrByAttributes, NameWanted, Reply, Request, address_by, site_flag,
    volume_flag,
};
use afs_proto::{Abort, Reader, Uuid, to_bytes};
use afs_server::{Config, Kind};
use common::{Cell, VOLUME, config};
use rx::{End, Port, Settings, Timeouts};
use std::net::Ipv4Addr;

const ANNOUNCED: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 2, 2), Ipv4Addr::new(10, 77, 0, 1)];

/// Makes a call; returns the reply or the abort code.
fn ask(cell: &Cell, request: &Request<'_>) -> Result<Reply, Abort> {
    let port = Port::open(&Settings::default(), Vec::new()).expect("a port");
    let to = cell.server.location_service();
    let connection = port.connect(to, vl::SERVICE, Timeouts::default());
    match connection.request(to_bytes(request), 4096) {
        Ok(bytes) => {
            let mut from = Reader::new(&bytes);
            Ok(vl::read_reply(request.opcode(), &mut from).expect("a reply"))
        }
        Err(rx::Error::Ended(End::Aborted(code))) => Err(Abort(code)),
        Err(error) => panic!("{error}"),
    }
}

fn by_name(name: &str) -> NameWanted<'_> {
    NameWanted::new(name.as_bytes()).expect("a name")
}

#[test]
fn a_volume_is_found_by_each_of_its_names_and_numbers() {
    let cell = Cell::with(Config {
        announced: ANNOUNCED.to_vec(),
        ..config()
    });
    let tree = cell.fs.fileset_named(VOLUME).expect("there").id();
    cell.fs
        .snapshot(tree, &format!("{VOLUME}.readonly"))
        .expect("made");
    cell.server.volumes().refresh().expect("read");
    let (write, read) = (cell.volume(Kind::ReadWrite), cell.volume(Kind::ReadOnly));
    let names = [
        VOLUME.to_owned(),
        format!("{VOLUME}.readonly"),
        write.to_string(),
        read.to_string(),
    ];
    let mut entries = Vec::new();
    for name in &names {
        let volume_name = by_name(name);
        match ask(&cell, &Request::GetEntryByNameU { volume_name }) {
            Ok(Reply::GetEntryByNameU { entry }) => entries.push(entry),
            other => panic!("{other:?}"),
        }
    }
    for volume in [write, read] {
        let kind = ANY_TYPE;
        match ask(&cell, &Request::GetEntryByIDU { volume, kind }) {
            Ok(Reply::GetEntryByIDU { entry }) => entries.push(entry),
            other => panic!("{other:?}"),
        }
    }
    let first = entries[0].clone();
    assert!(entries.iter().all(|entry| *entry == first));
    assert_eq!(first.name.as_bytes(), VOLUME.as_bytes());
    assert_eq!(first.volumes, [write, read, 0]);
    assert_eq!(first.flags, volume_flag::RWEXISTS | volume_flag::ROEXISTS);
    let site = first.sites[0];
    assert_eq!(
        site.flags,
        site_flag::RWVOL | site_flag::ROVOL | site_flag::UUID
    );

    // The UUID resolves to the addresses.
    let wanted = ListAddrByAttributes {
        mask: address_by::UUID,
        address: Ipv4Addr::UNSPECIFIED,
        index: 0,
        spare: 0,
        uuid: site.server,
    };
    match ask(
        &cell,
        &Request::GetAddrsU {
            wanted: wanted.clone(),
        },
    ) {
        Ok(Reply::GetAddrsU { addresses, .. }) => assert_eq!(addresses[..], ANNOUNCED),
        other => panic!("{other:?}"),
    }
    let other = ListAddrByAttributes {
        uuid: Uuid([1; 16]),
        ..wanted
    };
    let none = ask(&cell, &Request::GetAddrsU { wanted: other });
    assert_eq!(none, Err(Abort::VL_NOENT));
}

#[test]
fn older_generations_have_addresses_and_what_is_not_there_is_said() {
    let cell = Cell::with(Config {
        announced: ANNOUNCED.to_vec(),
        ..config()
    });
    let volume = cell.volume(Kind::ReadWrite);
    let (volume_name, kind) = (by_name(VOLUME), ANY_TYPE);
    let old = [
        Request::GetEntryByNameO { volume_name },
        Request::GetEntryByIDO { volume, kind },
        Request::GetEntryByNameN { volume_name },
        Request::GetEntryByIDN { volume, kind },
    ];
    for request in old {
        let (name, server) = match ask(&cell, &request).expect("there") {
            Reply::GetEntryByNameO { entry } | Reply::GetEntryByIDO { entry } => {
                (entry.name, entry.sites[0].server)
            }
            Reply::GetEntryByNameN { entry } | Reply::GetEntryByIDN { entry } => {
                (entry.name, entry.sites[0].server)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((name.as_bytes(), server), (VOLUME.as_bytes(), ANNOUNCED[0]));
    }
    for missing in [
        "nothing",
        "root.cell.readonly",
        "root.cell.backup",
        "5",
        "99999999999",
        "",
    ] {
        let volume_name = by_name(missing);
        let answer = ask(&cell, &Request::GetEntryByNameU { volume_name });
        assert_eq!(answer, Err(Abort::VL_NOENT), "{missing}");
    }
    assert_eq!(
        ask(&cell, &Request::ProbeServer {}),
        Ok(Reply::ProbeServer {})
    );
}
