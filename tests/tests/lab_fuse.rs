//! The comparison of the mount with a null FUSE server, `benches/fuse`: it runs on every side, and
//! the kernel sends EVFS no more requests than the server that does as little as possible.

mod needs_root {
    use serde_json::Value;
    use std::path::Path;
    use std::process::Command;
    use tests::{Ran, Sandbox, installed, needs_root, program};

    const SIDES: [&str; 3] = ["null", "evfs", "ext4"];

    /// Number of rows that are measured unless others are chosen.
    const ROWS: usize = 11;

    /// Tracepoint that counts requests, of Linux 6.12 and later.
    const SINCE: (u32, u32) = (6, 12);

    fn kernel() -> (u32, u32) {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map(|n| n.parse().unwrap_or(0));
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    /// Returns the measurements of a row in the order of [`SIDES`].
    fn row<'a>(rows: &'a [Value], name: &str) -> Vec<&'a Value> {
        let of = |side| move |entry: &&Value| entry["row"] == name && entry["side"] == side;
        let find = |side| rows.iter().find(of(side));
        let found = SIDES.map(|side| find(side).unwrap_or_else(|| panic!("{name} on {side}")));
        found.to_vec()
    }

    #[test]
    fn every_side_does_the_same_work_and_evfs_gets_the_requests_of_the_null_server() {
        needs_root("it mounts");
        for program in ["git", "mkfs.ext4", "postmark", "python3"] {
            installed(program);
        }
        let s = Sandbox::new();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/fuse/run.py");
        let mut run = Command::new(script);
        s.environment(&mut run);
        run.arg("--quick").arg("--binary").arg(program());
        run.arg("--json").arg(s.path("result.json"));
        let table = Ran::of(&mut run).ok().stdout;
        let result = std::fs::read_to_string(s.path("result.json")).unwrap();
        let result: Value = serde_json::from_str(&result).unwrap();
        let rows = result["settings"][0]["rows"].as_array().unwrap();
        let mut names: Vec<&str> = rows.iter().map(|r| r["row"].as_str().unwrap()).collect();
        names.dedup();
        assert_eq!(names.len(), ROWS, "{names:?}");
        for name in names {
            let measured = row(rows, name);
            for (entry, side) in measured.iter().zip(SIDES) {
                assert_eq!(entry["names"], measured[0]["names"], "{name} on {side}");
                assert!(entry["names"].as_u64().unwrap() > 0, "{name} on {side}");
                assert!(table.contains(&format!("| {name} | {side} |")), "{table}");
            }
            if kernel() < SINCE {
                continue;
            }
            let [null, evfs] = [0, 1].map(|side| measured[side]["requests_per_name"].as_f64());
            let (null, evfs) = (null.unwrap(), evfs.unwrap());
            let count = measured[0]["names"].as_f64().unwrap();
            let [null_by, evfs_by] = [0, 1].map(|side| &measured[side]["requests"]);
            // Cached reads are two requests in all, to open and to close the file.
            assert!(
                (evfs - null).abs() <= 0.03 * null + 2.0 / count,
                "{name}: {evfs} requests per name, and {null} of the null server: {evfs_by} {null_by}"
            );
        }
    }
}
