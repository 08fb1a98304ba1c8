//! Tests of the in-use record, with the storage in memory.

use super::*;
use block_testing::{Delay, Mem, Random};

const TICK: Duration = Duration::from_millis(100);

fn sample() -> Record {
    let mut record = Record::of_this_process(TICK).unwrap();
    record.boot = [7; 16];
    record
}

fn device() -> Arc<Mem> {
    Arc::new(Mem::new(64 << 10, 512))
}

fn until(what: impl Fn() -> bool) {
    let end = now_ms() + 60_000;
    while !what() {
        assert!(now_ms() < end, "waited a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Checks that a device is refused whose record another machine renews once `after` returns.
fn refuses_while_renewed(
    device: &Arc<Mem>,
    after: impl FnOnce() + Send,
    mut record: impl FnMut() -> Record + Send,
) {
    let (stop, stops) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            after();
            while stops.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                write(&**device, 0, &record()).unwrap();
            }
        });
        let refused = InUse::begin(device.clone(), 0, "d", TICK, None, Others::CanWrite)
            .err()
            .unwrap();
        assert!(matches!(refused, Error::Busy(_)), "{refused}");
        drop(stop);
    });
}

#[test]
fn a_record_comes_back_and_a_damaged_one_is_in_use() {
    let whole = sample();
    let bytes = whole.encode();
    assert_eq!((bytes.len(), Record::decode(&bytes)), (BYTES, Some(whole)));
    assert_eq!(Record::decode(&[0; BYTES]), None);
    let mut random = Random::new(1);
    for _ in 0..2000 {
        let mut bytes = bytes.clone();
        bytes[8 + random.below(4088) as usize] ^= 1 + random.below(255) as u8;
        let read = Record::decode(&bytes).expect("the magic is there");
        assert!(read.in_use && read.boot == [0; 16]);
    }
}

#[test]
fn what_this_machine_left_is_free_at_once_and_a_dead_record_of_another_later() {
    let device = device();
    let mut left = Record::of_this_process(Duration::from_secs(60)).unwrap();
    write(&*device, 4096, &left).unwrap();
    drop(InUse::begin(device.clone(), 4096, "d", TICK, None, Others::CanWrite).unwrap());
    let clean = Record::decode(&read(&*device, 4096).unwrap()).unwrap();
    assert!(!clean.in_use);
    left = sample();
    write(&*device, 4096, &left).unwrap();
    InUse::begin(device, 4096, "d", TICK, None, Others::CanWrite).unwrap();
}

#[test]
fn a_record_of_another_machine_that_moves_is_refused() {
    let device = device();
    let mut theirs = sample();
    theirs.interval_ms = 2000;
    write(&*device, 0, &theirs).unwrap();
    refuses_while_renewed(
        &device,
        || {},
        move || {
            theirs.count += 1;
            theirs.clone()
        },
    );
}

#[test]
fn a_holder_that_lost_the_record_does_nothing_more() {
    let device = device();
    let own = InUse::begin(device.clone(), 0, "d", TICK, None, Others::CanWrite).unwrap();
    let mut blocking = Blocking::over(own.queue(device.queue().unwrap()));
    blocking.write_at(8192, &[1; 512]).unwrap();
    // After a late heartbeat, a write verifies the record first; this process still owns it.
    own.shared.seen.store(0, Ordering::SeqCst);
    blocking.write_at(8192, &[2; 512]).unwrap();
    let theirs = sample();
    write(&*device, 0, &theirs).unwrap();
    until(|| own.shared.lost.load(Ordering::SeqCst) || write(&*device, 0, &theirs).is_err());
    assert!(blocking.write_at(8192, &[3; 512]).is_err());
    assert!(blocking.flush().is_err());
    assert!(blocking.read_at(8192, &mut [0; 512]).is_err());
    drop(own);
    assert_eq!(Record::decode(&read(&*device, 0).unwrap()), Some(theirs));
    let mut data = [0; 512];
    Blocking::open(&*device)
        .unwrap()
        .read_at(8192, &mut data)
        .unwrap();
    assert_eq!(data, [2; 512]);
}

#[test]
fn the_late_renewal_of_a_replaced_owner_is_undone_and_any_other_record_is_not() {
    let device = device();
    let mut earlier = sample();
    write(&*device, 0, &earlier).unwrap();
    let own = InUse::begin(device.clone(), 0, "d", TICK * 20, None, Others::CanWrite).unwrap();
    let found = || Record::decode(&read(&*device, 0).unwrap()).unwrap();
    let owner = own.shared.lock().owner;
    write(&*device, 0, &earlier).unwrap();
    until(|| found().owner == owner);
    assert!(!own.shared.lost.load(Ordering::SeqCst));
    until(|| {
        // A third machine may have taken it over from one that is this late.
        own.shared.seen.store(0, Ordering::SeqCst);
        write(&*device, 0, &earlier).unwrap();
        own.shared.lost.load(Ordering::SeqCst)
    });
    drop(own);
    earlier.in_use = false;
    write(&*device, 0, &earlier).unwrap();
    let own = InUse::begin(device.clone(), 0, "d", TICK, None, Others::CanWrite).unwrap();
    until(|| {
        write(&*device, 0, &earlier).unwrap();
        own.shared.lost.load(Ordering::SeqCst)
    });
}

#[test]
fn a_takeover_ends_when_the_old_owner_renews_its_record() {
    let device = device();
    let mut theirs = sample();
    theirs.interval_ms = 2000;
    write(&*device, 0, &theirs).unwrap();
    let owner_now = || Record::decode(&read(&*device, 0).unwrap()).unwrap().owner;
    let taken_over = || until(|| owner_now() != theirs.owner);
    refuses_while_renewed(&device, taken_over, || theirs.clone());
}

#[test]
fn an_owner_whose_renewal_takes_too_long_does_nothing_more_unless_others_are_refused() {
    for others in [Others::CanWrite, Others::AreRefused] {
        renews_late(others);
    }
}

fn renews_late(others: Others) {
    let mem = device();
    let slow = Arc::new(Delay::new(mem.clone(), Duration::ZERO, TICK * (FRESH + 1)));
    // No heartbeat but those of this test.
    let own = InUse::begin(
        slow.clone(),
        0,
        "d",
        Duration::from_secs(60),
        None,
        Others::CanWrite,
    )
    .unwrap();
    let shared = Shared {
        device: slow.clone(),
        at: 0,
        interval_ms: TICK.as_millis() as u64,
        record: Mutex::new(own.shared.lock().clone()),
        seen: AtomicU64::new(now_ms() + 60_000),
        lost: Arc::default(),
        replaced: OnceLock::new(),
        others,
    };
    // Late, but no other machine can have taken it over yet.
    shared.verify(&mut shared.lock()).unwrap();
    assert!(!shared.lost.load(Ordering::SeqCst));
    shared.seen.store(0, Ordering::SeqCst);
    let mut queue = Blocking::over(Box::new(Guarded {
        lower: slow.queue().unwrap(),
        shared: Arc::new(shared),
        refused: VecDeque::new(),
    }));
    let goes_on = others == Others::AreRefused;
    assert_eq!(queue.write_at(8192, &[1; 512]).is_ok(), goes_on);
    let mut data = [0; 512];
    mem.peek(8192, &mut data);
    assert_eq!(data, [u8::from(goes_on); 512]);
}

/// A claim with this epoch.
struct Claimed {
    epoch: u64,
    is_fenced: bool,
    newer: AtomicU64,
}

impl Ownership for Claimed {
    fn must_fence(&self) -> Result<bool> {
        Ok(self.is_fenced)
    }

    fn fenced(&self, _result: &Result<()>) {}

    fn epoch(&self) -> Result<u64> {
        Ok(self.epoch)
    }

    fn newer(&self, epoch: u64) {
        self.newer.store(epoch, Ordering::SeqCst);
    }

    fn stored(&self) -> Result<()> {
        Ok(())
    }

    fn held(&self) -> Option<crate::Held> {
        None
    }
}

#[test]
fn a_claim_stores_its_epoch_and_none_opens_a_device_after_a_later_one() {
    let device = device();
    let stored = || Record::decode(&read(&*device, 0).unwrap()).unwrap().epoch;
    let claim = |epoch, is_fenced| Claimed {
        epoch,
        is_fenced,
        newer: AtomicU64::new(0),
    };
    let begin = |claim: &Claimed| {
        let device = device.clone();
        InUse::begin(device, 0, "d", TICK, Some(claim), Others::AreRefused)
    };
    // It is in use on another machine, which was not fenced: only a fence makes the wait needless.
    let mut theirs = sample();
    theirs.interval_ms = 60_000;
    write(&*device, 0, &theirs).unwrap();
    drop(begin(&claim(7, true)).unwrap());
    assert_eq!(stored(), 7);
    let late = claim(6, true);
    let refused = begin(&late).err().unwrap();
    assert!(matches!(refused, Error::Busy(_)), "{refused}");
    assert_eq!(late.newer.load(Ordering::SeqCst), 7);
    // An owner outside of the cluster keeps the epoch.
    drop(InUse::begin(device.clone(), 0, "d", TICK, None, Others::CanWrite).unwrap());
    assert_eq!(stored(), 7);
    theirs.interval_ms = 100;
    let theirs = theirs.clone();
    std::thread::scope(|scope| {
        let (stop, stops) = channel::<()>();
        let renewed = device.clone();
        scope.spawn(move || {
            while stops.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let mut record = theirs.clone();
                record.epoch = 7;
                record.count = now_ms();
                write(&*renewed, 0, &record).unwrap();
            }
        });
        until(|| Record::decode(&read(&*device, 0).unwrap()).unwrap().in_use);
        // An owner that lives and was not fenced.
        assert!(begin(&claim(8, false)).is_err());
        drop(stop);
    });
    drop(begin(&claim(8, false)).unwrap());
    assert_eq!(stored(), 8);
}
