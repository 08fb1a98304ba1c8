//! Failed write-back is logged once when it begins, and once when it ends.

mod common;

use block::{ErrorKind, OpKind};
use block_testing::{ErrorDevice, Failure, Mem};
use cache::{Cache, Config, FileId};
use common::{Parts, until};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SPAN: u64 = 4 << 20;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn lines_with(&self, words: &str) -> usize {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(words)).count()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_failure_that_lasts_is_said_once_and_its_end_as_well() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .init();
    let (device, errors) = ErrorDevice::new(Arc::new(Mem::new(SPAN, 512)));
    let config = Config {
        tick: Duration::from_millis(5),
        retry: Duration::from_millis(1),
        sync_interval: Duration::from_millis(20),
        ..Config::new(8 << 20)
    };
    let cache = Cache::new(config).unwrap();
    let volume = cache
        .volume(Arc::new(Parts::new(Arc::new(device), SPAN)))
        .unwrap();
    let mut session = volume.session().unwrap();
    let vnode = volume.vnode(FileId(0), 0);
    let mut open = volume.open(&vnode);
    for round in 1..=2 {
        errors.set(Some(
            Failure::every(1, ErrorKind::NoSpace).of(OpKind::Write),
        ));
        let before = errors.failed();
        session.write(&mut open, 0, &vec![round; 3 << 20]).unwrap();
        until("the background has tried ten times", || {
            errors.failed() >= before + 10
        });
        errors.set(None);
        until("it was written", || vnode.stats().dirty_bytes == 0);
        let times = usize::from(round);
        assert_eq!(log.lines_with("write-back failed"), times);
        until("its end is said", || {
            log.lines_with("write-back has recovered") == times
        });
    }
    assert!(log.lines_with("is retried") == 2 && session.flush(&mut open).is_err());
}
