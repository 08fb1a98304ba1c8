//! Checks that `mailmix` does the same as PostMark: files, sizes, order and counts.

use bench_core::files::HostDirectory;
use bench_load::workload::mailmix::{Config, Script, Step, run};
use std::process::Command;

/// Returns the operations in the form of an `strace` of PostMark 1.53: call, file, and bytes
/// written or read.
fn trace(config: &Config) -> Vec<String> {
    let mut script = Script::new(config);
    let mut steps: Vec<Step> = (0..config.number).map(|_| script.create()).collect();
    steps.extend((0..config.transactions).flat_map(|_| script.transaction()));
    steps.extend(script.rest());
    let line = |step: &Step| match step {
        Step::Create(name, size) => Some(format!("create {name} {size}")),
        Step::Read(name, size) => Some(format!("read {name} {size}")),
        Step::Append(name, more) => Some(format!("append {name} {more}")),
        Step::Delete(name) => Some(format!("delete {name} 0")),
        Step::Nothing => None,
    };
    steps.iter().filter_map(line).collect()
}

#[test]
fn the_script_is_what_the_real_program_does() {
    let big = "set size 10240 1048576\nset read 8192\nset write 8192\nset number 5\n";
    let plain = Config::parse(&format!("{big}set transactions 20\nrun\nquit\n")).unwrap();
    let more = "set transactions 10\nset subdirectories 4\nset bias read 3\nset bias create 8\nset seed 7\n";
    let folders = Config::parse(&format!("{big}{more}")).unwrap();
    let expected = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        trace(&plain),
        expected(include_str!("postmark/plain.trace"))
    );
    assert_eq!(
        trace(&folders),
        expected(include_str!("postmark/folders.trace"))
    );
}

/// Runs PostMark and returns the numbers in the counting lines of its report.
fn counts_of_the_real_program(config: &str) -> Vec<f64> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config");
    let location = format!("set location {}\n", dir.path().display());
    std::fs::write(&file, format!("{location}{config}run\nquit\n")).unwrap();
    let output = Command::new(test_support::installed("postmark"))
        .arg(&file)
        .output();
    let output = output.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().skip_while(|l| !l.starts_with("Files:"));
    lines
        .filter_map(|l| {
            l.split_once('(')
                .map_or(Some(l), |(before, _)| Some(before))
        })
        .filter_map(|l| l.split_whitespace().find_map(|w| w.parse().ok()))
        .collect()
}

#[test]
fn the_published_counts_of_a_thousand_files() {
    let config = "set number 1000\nset transactions 1000\nset size 10240 1048576\n";
    let config = Config::parse(config).unwrap();
    let mut counts = [0; 4];
    let (mut read, mut written) = (0, 0);
    for line in trace(&config) {
        let mut words = line.split(' ');
        let (call, bytes) = (
            words.next().unwrap(),
            words.nth(1).unwrap().parse::<u64>().unwrap(),
        );
        match call {
            "create" => (counts[0], written) = (counts[0] + 1, written + bytes),
            "read" => (counts[1], read) = (counts[1] + 1, read + bytes),
            "append" => (counts[2], written) = (counts[2] + 1, written + bytes),
            _ => counts[3] += 1,
        }
    }
    assert_eq!(counts, [1518, 486, 514, 1518]);
    let mib = |bytes: u64| (bytes as f64 / 10485.76).round() / 100.0;
    assert_eq!((mib(read), mib(written)), (273.73, 888.14));
}

#[test]
fn what_cannot_be_carried_out_is_refused_with_its_line() {
    for (text, why) in [
        ("set number 0", "number is 0, but must be 1 to"),
        ("\nset size 10 ten", "line 2: `ten` is not a whole number"),
        ("set size 10 5", "the largest size is 5"),
        ("set bias read 11", "`11` is not a bias"),
        ("!rm -rf /", "unsupported command `!rm ...`"),
        ("set number 99999999999", "number is 99999999999"),
        ("set read 0", "read is 0"),
        // PostMark rejects it as well.
        ("set read false", "`false` is not a whole number"),
        ("set buffering maybe", "unsupported command"),
        ("run\nset number 5", "line 2: commands after `run`"),
        ("set location /a\nset location /b 3", "several locations"),
    ] {
        let error = Config::parse(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn what_follows_the_end_of_a_configuration_is_not_read() {
    let config = Config::parse("set number 7\nset location /a\nrun\nquit\nset number 8\n").unwrap();
    assert_eq!(config.number, 7);
}

#[test]
fn a_target_that_fails_ends_the_run_with_its_words() {
    let dir = tempfile::tempdir().unwrap();
    let folder = HostDirectory::open(dir.path()).unwrap();
    std::fs::create_dir(dir.path().join("3")).unwrap();
    let error = run(&folder, &Config::default()).unwrap_err();
    assert!(error.to_string().contains("open 3"), "{error}");
}

mod needs_peer {
    use super::*;

    #[test]
    fn the_counts_are_those_of_the_real_program() {
        for config in [
            "set number 200\nset transactions 500\nset size 500 20000\n",
            "set number 100\nset transactions 1000\nset size 100 3000\nset subdirectories 7\nset seed 99\n",
            "set number 20\nset transactions 300\nset size 1000\nset bias create 9\n",
        ] {
            let theirs = counts_of_the_real_program(config);
            let dir = tempfile::tempdir().unwrap();
            let ours = run(
                &HostDirectory::open(dir.path()).unwrap(),
                &Config::parse(config).unwrap(),
            )
            .unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
            let created = ours.created_alone + ours.created_mixed;
            let deleted = ours.deleted_alone + ours.deleted_mixed;
            let counts = [
                created,
                ours.created_alone,
                ours.created_mixed,
                ours.read,
                ours.appended,
                deleted,
                ours.deleted_alone,
                ours.deleted_mixed,
            ];
            assert_eq!(theirs[..8], counts.map(|n| n as f64), "{config}");
            // PostMark rounds bytes and prints them in units of its own choice.
            for (theirs, ours) in theirs[8..]
                .iter()
                .zip([ours.bytes_read, ours.bytes_written])
            {
                let near = |unit: f64| {
                    (theirs * unit - ours as f64).abs() <= 0.006 * unit + ours as f64 * 1e-6
                };
                assert!(
                    [1.0, 1024.0, 1048576.0].iter().any(|u| near(*u)),
                    "{config}: {theirs} {ours}"
                );
            }
        }
    }
}
