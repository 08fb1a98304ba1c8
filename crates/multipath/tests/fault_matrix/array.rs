//! A scripted disk array of two ports with asymmetric access: two instances of the scripted target
//! of the iSCSI crate, over one disk.

#[allow(dead_code)]
#[path = "../../../path-iscsi/tests/scripted/mod.rs"]
mod scripted;

pub use scripted::disk::{self, Disk};
pub use scripted::{Reply, Script};

use crate::common::{SIZE, open};
use lunpath::Lunpath;
use multipath::{Attributes, Lun};
use path_iscsi::{IscsiPath, Options};
use scripted::{Manner, Scripted, start};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// A disk and its two ports.
pub struct Array {
    pub disk: Arc<Disk>,
    ports: [Scripted; 2],
}

impl Array {
    /// Creates an array that executes every command.
    pub fn new(access: [u8; 2]) -> Array {
        Array::with(
            access,
            [None, None],
            [Box::new(|_| Reply::Good), Box::new(|_| Reply::Good)],
        )
    }

    /// Creates an array whose ports have scripts and optional limits: the number of commands in
    /// progress, and the duration of each.
    pub fn with(
        access: [u8; 2],
        tasks: [Option<(usize, Duration)>; 2],
        scripts: [Script; 2],
    ) -> Array {
        let disk = Arc::new(Disk::new(SIZE as usize, access));
        let mut scripts = scripts.into_iter();
        let ports = [0, 1].map(|number| {
            let manner = Manner {
                port: Some((Arc::clone(&disk), number)),
                tasks: tasks[number],
                ..Manner::default()
            };
            start(manner, scripts.next().expect("two scripts"))
        });
        Array { disk, ports }
    }

    pub fn lun(&self, change: impl Fn(&mut Attributes)) -> Arc<Lun> {
        let path = |port: &Scripted| -> Arc<dyn Lunpath> {
            // The scripted target does not support longer transfers.
            let options = Options {
                max_transfer: 128 << 10,
                ..Options::default()
            };
            Arc::new(IscsiPath::parse(&port.uri, options).unwrap())
        };
        Arc::new(open(self.ports.iter().map(path).collect(), change))
    }

    /// Returns the number of reads, writes and similar commands sent to a port.
    pub fn seen(&self, port: usize) -> usize {
        self.ports[port].seen.lock().unwrap().len()
    }

    /// Returns the number of commands of a port that ended in TASK SET FULL.
    pub fn full(&self, port: usize) -> usize {
        self.ports[port].full.load(SeqCst)
    }
}
