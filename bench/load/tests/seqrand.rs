//! Checks that `seqrand` moves the stated bytes to the stated places.

use bench_core::Error;
use bench_core::files::{Files, HostDirectory, Open};
use bench_load::workload::seqrand::{Config, Phase, remove, run};

fn small(threads: usize) -> Config {
    Config {
        threads,
        file: 1 << 20,
        record: 16 << 10,
        verify: true,
        ..Config::default()
    }
}

#[test]
fn every_phase_moves_every_record_of_every_file() {
    let dir = tempfile::tempdir().unwrap();
    let folder = HostDirectory::open(dir.path()).unwrap();
    for (threads, shared) in [(1, false), (3, false), (3, true)] {
        let config = Config {
            shared,
            stonewall: false,
            with_sync: true,
            with_close: true,
            ..small(threads)
        };
        let outcomes = run(&folder, &config, &Phase::ALL).unwrap();
        let files = if shared { 1 } else { threads as u64 };
        for outcome in &outcomes {
            assert_eq!(
                outcome.bytes.iter().sum::<u64>(),
                files << 20,
                "{outcome:?}"
            );
            assert!(outcome.parent() > 0.0 && outcome.children() >= outcome.parent() * 0.99);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count() as u64, files);
        remove(&folder, &config).unwrap();
    }
}

#[test]
fn the_first_to_finish_stops_the_clocks_and_not_the_writing() {
    let dir = tempfile::tempdir().unwrap();
    let folder = HostDirectory::open(dir.path()).unwrap();
    let config = small(4);
    let outcomes = run(&folder, &config, &[Phase::Write, Phase::Read]).unwrap();
    for outcome in outcomes {
        assert!(outcome.bytes.contains(&(1 << 20)), "somebody was first");
        assert!(outcome.bytes.iter().all(|b| *b <= 1 << 20));
    }
    for n in 0..4 {
        assert_eq!(folder.stat(&format!("seqrand.{n}")).unwrap().size, 1 << 20);
    }
}

#[test]
fn a_wrong_byte_and_a_short_file_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let folder = HostDirectory::open(dir.path()).unwrap();
    let config = Config {
        stonewall: false,
        ..small(2)
    };
    run(&folder, &config, &[Phase::Write]).unwrap();
    let file = folder
        .open(
            "seqrand.1",
            Open {
                write: true,
                ..Open::READ
            },
        )
        .unwrap();
    file.write_at(5 * (16 << 10) + 777, &[1, 2, 3]).unwrap();
    let found = run(&folder, &config, &[Phase::RandomRead]).unwrap_err();
    assert!(
        matches!(found, Error::Verify { offset, .. } if offset == 5 * (16 << 10)),
        "{found}"
    );
    let path = dir.path().join("seqrand.0");
    std::fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(1000)
        .unwrap();
    let unverified = Config {
        verify: false,
        ..config
    };
    assert!(matches!(
        run(&folder, &unverified, &[Phase::Read]),
        Err(Error::Verify { .. })
    ));
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = HostDirectory::open(dir.path()).unwrap();
    for config in [
        Config {
            threads: 0,
            ..small(1)
        },
        Config {
            record: 100,
            ..small(1)
        },
        Config {
            file: 1000,
            ..small(1)
        },
        Config {
            file: (1 << 20) + 512,
            ..small(1)
        },
    ] {
        assert!(matches!(
            run(&folder, &config, &[Phase::Write]),
            Err(Error::Spec(_))
        ));
    }
    let missing = run(&folder, &small(2), &[Phase::Read]).unwrap_err();
    assert!(missing.to_string().contains("open seqrand."), "{missing}");
}
