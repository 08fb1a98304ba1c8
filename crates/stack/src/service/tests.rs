//! Tests of the life cycle, with a graph that fails on request.

use super::hub::Slot;
use super::*;
use crate::device::Disk;
use crate::{Held, Ownership, metrics};
use block::Stats;
use path_file::FileDevice;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Steps that a graph has taken, and the step that fails.
#[derive(Default)]
struct Script {
    steps: Mutex<Vec<&'static str>>,
    fails: Mutex<Option<&'static str>>,
    gone: AtomicBool,
}

impl Script {
    fn step(&self, name: &'static str) -> Result<()> {
        self.steps.lock().unwrap().push(name);
        match *self.fails.lock().unwrap() {
            Some(step) if step == name => Err(Error::Failed(format!("{name} fails"))),
            _ => Ok(()),
        }
    }

    fn taken(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.steps.lock().unwrap())
    }
}

/// A graph with one export, which has a descriptor as a mount does.
struct Scripted {
    script: Arc<Script>,
    export: Option<OwnedFd>,
}

impl Graph for Scripted {
    fn open_exports(&mut self, _status: &mut Status) -> Result<()> {
        if self.export.is_none() {
            self.script.step("open")?;
            self.export = Some(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        }
        Ok(())
    }

    fn in_use(&self) -> Result<()> {
        self.script.step("in use")
    }

    fn flush(&self) -> Result<()> {
        self.script.step("flush")
    }

    fn close_exports(&mut self, _status: &mut Status, _closing: Closing) -> Result<()> {
        self.script.step("close exports")?;
        self.export = None;
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.script.step("close")
    }

    fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.export.as_ref().map(AsFd::as_fd)
    }

    fn has_ended(&self) -> bool {
        self.export.is_none()
    }

    fn update(&self, _status: &mut Status) {}

    fn cached(&self) -> Result<Vec<Arc<Volume>>> {
        Err(Error::NotFound("no cache".into()))
    }

    fn vnode(&self, _path: Option<&str>) -> Result<Arc<Vnode>> {
        Err(Error::NotFound("no files".into()))
    }

    fn grow(&self, _: &Layers<'_>, _: &GrowRequest, _: Run) -> Result<Value> {
        Err(Error::NotFound("no files".into()))
    }

    fn files(&self, _request: &FsRequest, _run: Run) -> Result<Value> {
        Err(Error::NotFound("no files".into()))
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.script.gone.store(true, Ordering::SeqCst);
    }
}

/// Starts a service named `x` in `dir`.
fn started(dir: &Path, script: &Arc<Script>) -> Service {
    let path = dir.join("disk.img");
    let (file, _new) = FileDevice::make(&path, 1 << 20, &path_file::Options::default()).unwrap();
    let disk = Disk::from(file);
    let open = OpenedDevice {
        device: disk.device(),
        cipher: None,
        direct: false,
        disk,
        first_use: None,
        damaged_copy: None,
        kept_key: None,
    };
    let settings = Settings::of_env(&|_| None);
    let run_dir = crate::run_dir(&dir.join("run")).unwrap();
    let mut service = Service {
        status: Status::of("x", &path, 1, &open, open.device.info()),
        listener: Arc::new(Listener::bind(&run_dir, "x").unwrap()),
        graph: Box::new(Scripted {
            script: Arc::clone(script),
            export: None,
        }),
        stats: Stats::new(Arc::clone(&open.device)).1,
        cache: ProcessCache::new(&settings).unwrap(),
        open,
        growing: Mutex::default(),
        settings,
    };
    service.graph.open_exports(&mut service.status).unwrap();
    script.taken();
    service
}

#[test]
fn a_stop_flushes_before_and_after_it_closes_the_exports() {
    let dir = tempfile::tempdir().unwrap();
    let script = Arc::default();
    let mut service = started(dir.path(), &script);
    service.stop(Closing::InOrder).unwrap();
    let order = ["in use", "flush", "close exports", "close"];
    assert_eq!(script.taken(), order);
}

#[test]
fn a_stop_that_fails_opens_the_exports_again() {
    let dir = tempfile::tempdir().unwrap();
    let script = Arc::<Script>::default();
    let slot = Slot::new(started(dir.path(), &script), &Arc::default()).unwrap();
    *script.fails.lock().unwrap() = Some("flush");
    slot.stop(Closing::InOrder).unwrap_err();
    assert_eq!(script.taken(), ["in use", "flush"]);
    *script.fails.lock().unwrap() = Some("close");
    slot.stop(Closing::InOrder).unwrap_err();
    let order = ["in use", "flush", "close exports", "close", "open"];
    assert_eq!(script.taken(), order);
    // Its end was part of the stop, so the main loop must not stop the service by force.
    assert!(!slot.has_ended() && !script.gone.load(Ordering::SeqCst));
    *script.fails.lock().unwrap() = None;
    slot.stop(Closing::InOrder).unwrap();
    assert!(script.gone.load(Ordering::SeqCst));
}

#[test]
fn a_stop_by_force_ends_the_service_even_if_data_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let script = Arc::<Script>::default();
    let slot = Slot::new(started(dir.path(), &script), &Arc::default()).unwrap();
    *script.fails.lock().unwrap() = Some("close");
    let lost = slot.stop(Closing::ByForce).unwrap_err();
    assert!(matches!(lost, Error::DataLost(_)), "{lost}");
    assert_eq!(script.taken(), ["close exports", "close"]);
    assert!(script.gone.load(Ordering::SeqCst));
}

/// A claim with the epoch 7, and 1.5 seconds left.
struct Owner;

impl Ownership for Owner {
    fn must_fence(&self) -> Result<bool> {
        Ok(false)
    }

    fn fenced(&self, _result: &Result<()>) {}

    fn epoch(&self) -> Result<u64> {
        Ok(7)
    }

    fn newer(&self, _epoch: u64) {}

    fn stored(&self) -> Result<()> {
        Ok(())
    }

    fn held(&self) -> Option<Held> {
        let left = Duration::from_millis(1500);
        Some(Held { epoch: 7, left })
    }
}

#[test]
fn a_unit_of_a_cluster_reports_its_claim_and_other_services_none() {
    let dir = tempfile::tempdir().unwrap();
    let slot = Slot::new(started(dir.path(), &Arc::default()), &Arc::default()).unwrap();
    assert!(slot.status_now().cluster.is_none());
    assert!(!metrics::text(&slot.samples()).contains("evfs_cluster_epoch{"));
    drop(slot);
    let mut service = started(dir.path(), &Arc::default());
    let name = |key: &str| (key == "EVFS_CLUSTER_NAME").then(|| "m1".into());
    service.settings = Settings::of_env(&name).for_owner(Arc::new(Owner));
    let slot = Slot::new(service, &Arc::default()).unwrap();
    let claim = slot.status_now().cluster.unwrap();
    assert_eq!(
        (&*claim.machine, claim.epoch, claim.lease_ms),
        ("m1", 7, 1500)
    );
    let text = metrics::text(&slot.samples());
    for line in [
        "\nevfs_cluster_epoch{volume=\"x\",machine=\"m1\"} 7\n",
        "\nevfs_cluster_lease_seconds{volume=\"x\",machine=\"m1\"} 1.5\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}
