//! A format of its own on the cache: a device that is a list of fixed records of files.
//!
//! ```text
//!   block 0: number of files          block n: name (32 bytes), length, content
//! ```

use block::{BlockDevice, Blocking};
use block_testing::Mem;
use cache::{Cache, Config};
use foreign::bytes::{le32, part};
use foreign::{
    Attr, Disk, Entry, Error, Files, Kind, Node, Piece, Place, ROOT, Result, Space, Tree,
};
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = 4096;
const HEAD: u64 = 36;

/// The file in block n has the node n + 1.
struct Records {
    count: u64,
}

impl Records {
    fn record(&self, disk: &mut Disk, node: Node) -> Result<(Vec<u8>, u64)> {
        if node <= ROOT || node > self.count + 1 {
            return Err(Error::corrupt("no such record"));
        }
        let head = disk.bytes((node - 1) * BLOCK, HEAD as usize)?;
        let name = part(&head, 0, 32)?
            .iter()
            .copied()
            .take_while(|b| *b != 0)
            .collect();
        let size = u64::from(le32(&head, 32)?);
        if size <= BLOCK - HEAD {
            Ok((name, size))
        } else {
            Err(Error::corrupt("a record is too long"))
        }
    }
}

impl Tree for Records {
    fn format(&self) -> &'static str {
        "records"
    }

    fn space(&self) -> Space {
        Space::default()
    }

    fn attr(&self, disk: &mut Disk, node: Node) -> Result<Attr> {
        let (mode, size) = match node {
            ROOT => (libc::S_IFDIR | 0o555, 0),
            node => (libc::S_IFREG | 0o444, self.record(disk, node)?.1),
        };
        Ok(Attr {
            ino: node,
            mode,
            links: 1,
            size,
            ..Attr::default()
        })
    }

    fn read_dir(&self, disk: &mut Disk, dir: Node, from: u64, count: usize) -> Result<Vec<Entry>> {
        if dir != ROOT {
            return Err(Kind::NotDirectory.into());
        }
        let mut entries = Vec::new();
        for position in from..(self.count + 2).min(from + count as u64) {
            let (name, node) = match position {
                0 => (b".".to_vec(), 0),
                1 => (b"..".to_vec(), 0),
                n => (self.record(disk, n)?.0, n),
            };
            entries.push(Entry {
                name,
                node,
                ino: node.max(ROOT),
                kind: if node == 0 {
                    libc::S_IFDIR
                } else {
                    libc::S_IFREG
                },
                next: position + 1,
            });
        }
        Ok(entries)
    }

    fn read_link(&self, _disk: &mut Disk, _node: Node) -> Result<Vec<u8>> {
        Err(Kind::Invalid.into())
    }

    fn map(&self, _disk: &mut Disk, node: Node, range: Range<u64>) -> Result<Vec<Piece>> {
        let place = Place::Device((node - 1) * BLOCK + HEAD + range.start);
        let len = range.end - range.start;
        Ok(vec![Piece { len, place }])
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(1 << 20, 512));
    let mut block = vec![0; BLOCK as usize];
    block[..8].copy_from_slice(b"greeting");
    block[32] = 5;
    block[36..41].copy_from_slice(b"hello");
    Blocking::open(&*device)?.write_at(BLOCK, &block)?;

    let cache = Cache::new(Config::new(16 << 20))?;
    let files = Files::with_tree(Arc::new(Records { count: 1 }), device, &cache)?;
    let mut lane = files.lane()?;
    let (node, attr) = lane.lookup(ROOT, b"greeting")?;
    let mut content = vec![0; attr.size as usize];
    lane.read(node, 0, &mut content)?; // into a page of the cache
    println!("{}", String::from_utf8_lossy(&content));
    drop(lane);
    files.close()?;
    Ok(())
}
