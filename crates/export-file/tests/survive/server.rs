//! The server: a keeper, and the processes that it forks.

use block::{
    BlockDevice, Blocking, BufPool, Completion, DeviceInfo, Op, Queue, Request, Result, Wait,
};
use export_file::loopdev::LoopDevice;
use export_file::{Config, Export, HeldMount, Mount, Predecessor, WhenBusy};
use keeper::{Begin, Side};
use path_file::{FileDevice, Holder, Options};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the file.
pub const NAME: &str = "disk";

/// What a discarded block reads as, as that of an encrypted volume reads as noise.
pub const NOISE: u8 = 0xdb;

/// What to serve.
pub struct Spec {
    pub image: PathBuf,
    pub dir: PathBuf,
    /// Whether there is a loop device, and whether it passes discards.
    pub on_loop: Option<bool>,
}

impl Spec {
    /// Returns the arguments of the process.
    pub fn args(&self) -> [&str; 4] {
        fn text(path: &Path) -> &str {
            path.to_str().expect("a path of a test")
        }
        [
            "serve",
            text(&self.image),
            text(&self.dir),
            match self.on_loop {
                None => "file",
                Some(false) => "loop",
                Some(true) => "discards",
            },
        ]
    }

    pub fn of_args(args: &[String]) -> Spec {
        Spec {
            image: args[0].clone().into(),
            dir: args[1].clone().into(),
            on_loop: match &*args[2] {
                "file" => None,
                kind => Some(kind == "discards"),
            },
        }
    }
}

/// Keeps servers until one ends in order, when the standard input is closed.
pub fn keep(spec: &Spec) -> u8 {
    match keeper::keep(|| ()).expect("a keeper") {
        Side::Keeper(code) => code,
        Side::Server(begin) => serve(spec, begin),
    }
}

fn serve(spec: &Spec, begin: Begin) -> u8 {
    let Begin {
        link,
        mut kept,
        generation,
        ..
    } = begin;
    let lock = kept.take_one("lock");
    let is_first = lock.is_none();
    let options = Options {
        holder: lock.map_or(Holder::Apart, |lock| Holder::Predecessor(Arc::new(lock))),
        ..Options::default()
    };
    let file = FileDevice::open(&spec.image, &options).expect("the device");
    if is_first {
        let lock = file.lock_holder().expect("a lock");
        link.replace("lock", &[lock]).expect("a keeper");
    }
    let exports = vec![Export {
        name: NAME.into(),
        device: Arc::new(Noisy(file)),
        read_only: false,
    }];
    let clones = |generation: u32| format!("clones-{generation}");
    let mut hold = |mount: &HeldMount<'_>| {
        let record = mount.session.record()?;
        let all: [BorrowedFd<'_>; 3] = [mount.session.device, record.as_fd(), mount.table];
        link.replace("mount", &all)?;
        link.add(&clones(generation), &mount.session.clones)?;
        println!("held {generation}");
        Ok(())
    };
    let config = Config {
        threads: 2,
        ..Config::new(spec.dir.clone())
    };
    let mut left = kept.take("mount").into_iter();
    let mount = match (left.next(), left.next(), left.next()) {
        (Some(device), Some(record), Some(table)) => {
            let before = Predecessor::new(device, &record, table).expect("its record");
            let mut mounts = fuse_mount::mounts().into_iter();
            if !mounts.any(|mount| mount.point == spec.dir) {
                // It was killed at the very end.
                return 0;
            }
            Mount::resume(config, exports, before, &mut hold)
        }
        _ => Mount::start_held(config, exports, &mut hold),
    };
    let mount = mount.expect("a mount");
    let loop_device = spec.on_loop.map(|discards| {
        let device = if generation > 0 {
            mount.adopt_loop(NAME, kept.take_one("loop"), (512, false))
        } else {
            LoopDevice::attach(&mount.path_of(NAME), 512, false)
        };
        let device = device.expect("a loop device");
        let descriptor = device.descriptor().expect("a descriptor");
        link.replace("loop", &[descriptor.as_fd()])
            .expect("a keeper");
        println!("attached {generation}");
        assert!(device.pass_discards(mount.holes().filter(|_| discards)));
        device
    });
    if let Some(before) = generation.checked_sub(1) {
        link.close(&clones(before)).expect("a keeper");
    }
    link.serving().expect("a keeper");
    let path = loop_device.as_ref().map_or(Path::new(""), LoopDevice::path);
    println!("serving {generation} {}", path.display());
    // Until the test closes it, or has ended.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let detached = loop_device.map(|device| device.detach(false).map_err(|(_, error)| error));
    detached.transpose().expect("it is not in use");
    let unmounted = mount.unmount(WhenBusy::Refuse).map_err(|failed| failed.1);
    assert!(unmounted.expect("it is not in use"));
    0
}

/// A device whose discarded blocks contain noise.
struct Noisy(Arc<FileDevice>);

impl BlockDevice for Noisy {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(NoisyQueue {
            queue: self.0.queue()?,
            noise: Blocking::open(&*self.0)?,
            done: Vec::new(),
        }))
    }
}

struct NoisyQueue {
    queue: Box<dyn Queue>,
    noise: Blocking,
    /// Discards.
    done: Vec<Completion>,
}

impl Queue for NoisyQueue {
    fn info(&self) -> &DeviceInfo {
        self.queue.info()
    }

    fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight() + self.done.len()
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        let Op::Discard { offset, len } = request.op else {
            return self.queue.submit(request);
        };
        let result = self.noise.write_at(offset, &vec![NOISE; len as usize]);
        self.done.push(Completion {
            tag: request.tag,
            op: request.op,
            result,
        });
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        self.queue.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        if self.done.is_empty() {
            return self.queue.reap(wait, done);
        }
        let count = self.done.len();
        done.append(&mut self.done);
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.wait_fd()
    }

    fn register(&mut self, pool: &BufPool) {
        self.queue.register(pool);
    }
}
