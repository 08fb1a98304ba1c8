//! Keepers of real processes: crashes, orderly ends, signals, and the death of the keeper.
//!
//! Each case is a process of its own, because a keeper forks and must be the only thread: this binary
//! has no test harness, and calls itself.

use keeper::{Begin, Side};
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

fn die(signal: i32) -> ! {
    // SAFETY: a signal to this process.
    unsafe { libc::kill(libc::getpid(), signal) };
    loop {
        std::thread::park();
    }
}

/// Keeps a counter in a file, and dies until it is 5.
fn counts(mut begin: Begin) -> u8 {
    let mut file = match begin.kept.take_one("counter") {
        Some(file) => std::fs::File::from(file),
        None => {
            assert_eq!(begin.generation, 0);
            tempfile::tempfile().expect("a file")
        }
    };
    file.seek(std::io::SeekFrom::End(0)).expect("a place");
    file.write_all(b"x").expect("written");
    begin
        .link
        .replace("counter", &[file.as_fd()])
        .expect("kept");
    begin.link.serving().expect("said");
    file.rewind().expect("a place");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text.len() as u32, begin.generation + 1);
    if begin.generation < 5 {
        die(libc::SIGKILL);
    }
    42
}

/// Serves once, and then dies whenever it starts.
fn never_starts_again(begin: Begin) -> u8 {
    let file = tempfile::tempfile().expect("a file");
    begin.link.replace("file", &[file.as_fd()]).expect("kept");
    if begin.generation == 0 {
        begin.link.serving().expect("said");
    }
    die(libc::SIGABRT)
}

/// Asks to be replaced: by another file, again after a death, and by one that cannot serve.
fn is_replaced(mut begin: Begin) -> u8 {
    let place = std::path::PathBuf::from(std::env::args().nth(2).expect("the place"));
    let inode = || {
        let own = std::fs::metadata("/proc/self/exe").expect("a program");
        std::os::unix::fs::MetadataExt::ino(&own)
    };
    let put = |content: &[u8]| {
        let new = place.with_extension("new");
        std::fs::write(&new, content).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&new, mode).expect("executable");
        std::fs::rename(&new, &place).expect("replaced");
    };
    let mut file = match begin.kept.take_one("inodes") {
        Some(file) => std::fs::File::from(file),
        None => tempfile::tempfile().expect("a file"),
    };
    begin.link.replace("inodes", &[file.as_fd()]).expect("kept");
    let mut inodes = String::new();
    file.rewind().expect("a place");
    file.read_to_string(&mut inodes).expect("read");
    writeln!(file, "{}", inode()).expect("written");
    let inodes: Vec<u64> = inodes
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    // Generation 3 was what cannot be executed.
    assert_eq!(inodes.len() as u32, begin.generation.min(3));
    assert_eq!(begin.refused, begin.generation >= 4);
    assert_eq!(keeper::is_executed(), begin.generation > 0);
    let own = std::fs::read("/proc/self/exe").expect("a program");
    begin.link.serving().expect("said");
    match begin.generation {
        0 => {
            put(&own);
            begin.link.restart().expect("asked");
        }
        1 => {
            assert_ne!(inodes[0], inode());
            std::fs::remove_file(&place).expect("removed");
            die(libc::SIGKILL);
        }
        2 => {
            assert_eq!(inodes[1], inode());
            put(b"This is no program.");
            begin.link.restart().expect("asked");
        }
        4 => {
            assert_eq!(inodes[1], inode());
            return 42;
        }
        _ => return 1,
    }
    std::thread::sleep(Duration::from_secs(30));
    2
}

/// Asks to be replaced by a program that does not serve in time, which is this one as generation 1.
fn is_replaced_by_one_that_hangs(begin: Begin) -> u8 {
    match begin.generation {
        0 => {
            let file = tempfile::tempfile().expect("a file");
            begin.link.replace("file", &[file.as_fd()]).expect("kept");
            begin.link.serving().expect("said");
            begin.link.restart().expect("asked");
        }
        1 => {}
        _ => {
            begin.link.serving().expect("said");
            assert!(begin.refused && begin.kept.has("file"));
            return 43;
        }
    }
    std::thread::sleep(Duration::from_secs(300));
    1
}

/// Waits for a signal; prints its own number first.
fn waits(begin: Begin) -> u8 {
    begin.link.serving().expect("said");
    println!("{}", std::process::id());
    std::thread::sleep(Duration::from_secs(30));
    0
}

fn case(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.arg(name).stdout(Stdio::piped());
    command
}

fn ends(name: &str) -> ExitStatus {
    case(name).status().expect("it runs")
}

/// Starts a case that waits; returns the keeper and the number of the server.
fn waiting() -> (std::process::Child, i32) {
    let mut keeper = case("waits").spawn().expect("it runs");
    let mut out = std::io::BufReader::new(keeper.stdout.take().expect("piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
    (keeper, line.trim().parse().expect("a number"))
}

fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn keep(serve: impl FnOnce(Begin) -> u8) -> std::io::Result<u8> {
    Ok(match keeper::keep(|| ())? {
        Side::Keeper(code) => code,
        Side::Server(begin) => serve(begin),
    })
}

fn main() {
    let run = match std::env::args().nth(1).as_deref() {
        Some("counts") => keep(counts),
        Some("never") => keep(never_starts_again),
        Some("fails") => keep(|_| 7),
        Some("waits") => keep(waits),
        Some("replaced") => keep(is_replaced),
        Some("hangs") => keep(is_replaced_by_one_that_hangs),
        // The list that the test runner asks for, and its single test.
        Some("--list") => {
            if !std::env::args().any(|arg| arg == "--ignored") {
                println!("keepers: test");
            }
            return;
        }
        _ => return tests(),
    };
    std::process::exit(run.expect("a keeper").into());
}

fn tests() {
    // A new program has a minute, in which the other tests run.
    let mut hangs = case("hangs").spawn().expect("it runs");
    // What a server gave away is there for each of five successors.
    assert_eq!(ends("counts").code(), Some(42));
    // Another program takes over, and the one before it goes on if that cannot serve.
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().join("program");
    std::fs::copy(std::env::current_exe().expect("this program"), &place).expect("copied");
    let mut replaced = Command::new(&place);
    let ended = replaced
        .arg("replaced")
        .arg(&place)
        .status()
        .expect("it runs");
    assert_eq!(ended.code(), Some(42));
    // A server that cannot start is given up after pauses, and not tried on and on.
    let began = Instant::now();
    assert_eq!(ends("never").code(), Some(1));
    assert!(began.elapsed() >= Duration::from_secs(30));
    // A server that ends by itself is not started again.
    assert_eq!(ends("fails").code(), Some(7));
    // A signal to the keeper reaches the server, whose end is that of both.
    let (mut keeper, server) = waiting();
    // SAFETY: a signal to a child.
    unsafe { libc::kill(keeper.id() as i32, libc::SIGTERM) };
    let ended = keeper.wait().expect("it ends");
    assert_eq!((ended.code(), ended.signal()), (Some(128 + 15), None));
    assert!(!is_alive(server));
    // A server does not outlive its keeper.
    let (mut keeper, server) = waiting();
    keeper.kill().expect("killed");
    keeper.wait().expect("it ends");
    let began = Instant::now();
    while is_alive(server) {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "the server lives on"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(hangs.wait().expect("it ends").code(), Some(43));
}
